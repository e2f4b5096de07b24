"""Configuration: strict TOML, resolved to the full set of values that reproduces a run.

A component (`data`, `model`, `prior`, `likelihood`, `guide`, `method`) is a table `{ name = ..., arguments }`: `name`
is a registered name or an import path `"my_pkg.mod:Thing"`, relative to the working directory; the other keys are the
keyword arguments of that class or function, checked against its signature and types. An unknown key is an error that
names the nearest one; nothing is ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import tomli_w
from pydantic import ConfigDict, TypeAdapter, ValidationError

from .names import nearest
from .optim import Optimizer, parse, render

Table = dict[str, Any]


class ConfigError(ValueError):
    """Something in a configuration is wrong: the message says what, where, and what to do."""


@dataclass(frozen=True)
class Evaluation:
    """How the run is scored: `every` so many rounds with `draws` posterior draws, and at the end with `final_draws`.

    `balanced` and `matched` add every client's own model on test rows that all share (see `shared_rows`);
    `temperature` adds it with a temperature fitted on the client's validation rows, which `data.validation` puts
    aside.
    """

    every: int = 5
    draws: int = 20
    final_draws: int = 100
    bins: int = 15
    balanced: bool = False
    matched: bool = False
    temperature: bool = False

    def __post_init__(self) -> None:
        for name in ("every", "draws", "final_draws", "bins"):
            if getattr(self, name) < 1:
                raise ValueError(f"evaluate.{name} must be at least 1, got {getattr(self, name)}")

    @property
    def shared(self) -> tuple[str, ...]:
        """The scores on shared test rows that are asked for."""
        return tuple(name for name in ("balanced", "matched") if getattr(self, name))


@dataclass(frozen=True)
class Patience:
    """How long the server waits, in seconds.

    `timeout`: for the replies of a round or of an evaluation; then it goes on with those that came. `wait`: before the
    first round, for `sites` sites (0: for all). A round with fewer than `least` replies changes nothing.
    """

    timeout: float = 600.0
    wait: float = 600.0
    sites: int = 0
    least: int = 1

    def __post_init__(self) -> None:
        for name in ("timeout", "wait"):
            if not getattr(self, name) > 0:
                raise ValueError(f"flower.{name} must be positive seconds, got {getattr(self, name)}")
        if self.sites < 0:
            raise ValueError(f"flower.sites must be a number of sites to wait for, or 0 for all, got {self.sites}")
        if self.least < 1:
            raise ValueError(f"flower.least must be at least 1 reply, got {self.least}")


@dataclass(frozen=True)
class Config:
    """One run. Tables hold component arguments; see the module's text."""

    RESUMABLE: ClassVar[tuple[str, ...]] = ("rounds", "engine", "device", "evaluate", "flower", "on_error")

    data: Table
    model: Table
    method: Table
    prior: Table = field(default_factory=dict)
    guide: Table = field(default_factory=dict)
    likelihood: Table = field(default_factory=dict)
    inference: Table = field(default_factory=dict)
    cohort: Table = field(default_factory=dict)
    evaluate: Table = field(default_factory=dict)
    outliers: Table = field(default_factory=dict)
    flower: Table = field(default_factory=dict)
    schema: Table = field(default_factory=dict)
    privacy: Table = field(default_factory=dict)
    secure: Table = field(default_factory=dict)
    compression: Literal["none", "float16", "int8"] = "none"
    seed: int = 0
    rounds: int = 10
    engine: str = "auto"
    device: str = "auto"
    precision: Literal["float32", "float64"] = "float32"
    on_error: Literal["continue", "stop"] = "continue"
    start: str = ""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")
        for table in ("data", "model", "method"):
            if "name" not in getattr(self, table):
                raise ConfigError(f"{table}.name is missing: write {table} = {{ name = ... }}")

    def toml(self) -> str:
        """The configuration as a file that `load` reads back."""
        return tomli_w.dumps({k: v for k, v in self._values().items() if v not in ("", {})})

    def _values(self) -> Table:
        values = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return dict(sorted(values.items(), key=lambda item: isinstance(item[1], dict)))  # tables last, as TOML wants

    def identity(self, fixed: Collection[str] = ()) -> str:
        """A hash of everything that decides the numbers: all keys but the RESUMABLE ones, and of these the `fixed`."""
        kept = {k: v for k, v in self._values().items() if k not in self.RESUMABLE or k in fixed}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """TOML values only: no None, no tuples, optimizers and paths as text."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Optimizer):
        return render(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value) if isinstance(value, Path) else value


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """A configuration file with `key.path=value` overrides applied (values in TOML syntax, or plain words)."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for text in overrides:
        override(table, text)
    return config_of(table, str(path))


def override(table: Table, text: str) -> None:
    """Apply `method.epochs=1` to a nested table, in place; `method=fedavg` replaces the whole table."""
    path, sep, value = text.partition("=")
    keys = path.strip().split(".")
    if not sep or not all(keys):
        raise ConfigError(f"override {text!r}: write key=value, for example method.epochs=1")
    at = table
    for depth, key in enumerate(keys[:-1]):
        if depth == 0 and key in _COMPONENTS and isinstance(at.get(key), str):
            at[key] = {"name": at[key]}
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise ConfigError(f"override {text!r}: {key!r} is a value, not a table")
    at[keys[-1]] = _value(value.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def config_of(table: Table, where: str = "configuration") -> Config:
    """A Config from plain tables, with types checked; components are checked when they are built."""
    table = {k: {"name": v} if k in _COMPONENTS and isinstance(v, str) else v for k, v in table.items()}
    for name in _ON_WHEN_GIVEN:
        if table.get(name) == {}:
            raise ConfigError(f"{where}: {name} = {{}} would change nothing: give at least one key, or leave it out")
    try:
        return Config(**arguments(Config, table, where=""))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


_ON_WHEN_GIVEN = ("schema", "privacy", "secure")  # tables whose absence means none
_COMPONENTS = ("data", "model", "prior", "guide", "likelihood", "method")


def resolve(name: str, registry: Mapping[str, Callable[..., Any]], where: str) -> Callable[..., Any]:
    """The class or function behind a registered name or an import path."""
    if name in registry:
        return registry[name]
    if ":" not in name:
        raise ConfigError(
            f'{where}.name = "{name}" is not registered{nearest(name, registry)}; '
            f'your own is named by its import path, as in "my_pkg.my_module:Thing"'
        )
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ConfigError(f'{where}.name = "{name}" is no import path: write it as in "my_pkg.my_module:Thing"')
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f'{where}.name = "{name}": {error}; import paths are relative to {here}') from None
    finally:
        if added:
            sys.path.remove(here)
    if found is None:
        public = [n for n in vars(sys.modules[module]) if not n.startswith("_")]
        raise ConfigError(f'{where}.name = "{name}": {module} has no {attribute!r}{nearest(attribute, public)}')
    return found


_MODULES = ("torch.nn.modules.module", "pyro.nn.module")


def signature(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a component; a torch or Pyro module without an `__init__` of its own has none."""
    plain = inspect.isclass(target) and getattr(target.__init__, "__module__", "") in _MODULES
    return {} if plain else inspect.signature(target).parameters


def arguments(target: Callable[..., Any], table: Table, *, where: str, given: Mapping[str, Any] | None = None) -> Table:
    """Keyword arguments for `target` from a table: unknown keys refused, types checked; `given` fills what it asks for.

    `given` holds what the run itself knows (shape, clients, rounds, seed and more): passed where the signature has the
    name, and never a key of the table.
    """
    given = given or {}
    parameters = signature(target)
    hints = _hints(target)
    label = f"{where}." if where else ""
    known = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    free = [n for n in known if n not in given]
    out = {n: v for n, v in given.items() if n in known}
    for key, value in table.items():
        if key in given or (key not in free and not open_ended):
            raise ConfigError(f"unknown key {label}{key}{nearest(key, free)}")
        out[key] = convert(value, hints.get(key, Any), f"{label}{key}")
    missing = [n for n in known if parameters[n].default is inspect.Parameter.empty and n not in out]
    if missing:
        raise ConfigError(f"{label}{missing[0]} is missing")
    return out


def build(
    table: Table,
    registry: Mapping[str, Callable[..., Any]],
    *,
    where: str,
    given: Mapping[str, Any] | None = None,
) -> tuple[Any, Table]:
    """(the component of a table, the table with every default filled in)."""
    target = resolve(table["name"], registry, where)
    rest = {k: v for k, v in table.items() if k != "name"}
    keywords = arguments(target, rest, where=where, given=given)
    try:
        made = target(**keywords)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise ConfigError(
            str(error) if str(error).startswith(where) else f"{where} ({table['name']}): {error}"
        ) from error
    return made, {"name": table["name"], **defaults(target, keywords, given or {})}


def defaults(target: Callable[..., Any], keywords: Table, given: Mapping[str, Any]) -> Table:
    """The keywords of a call with the signature's defaults filled in, without what the run itself gave."""
    parameters = signature(target)
    filled = {n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty}
    return {k: v for k, v in {**filled, **keywords}.items() if k not in given}


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    inner: Any = target
    if inspect.isclass(target) and not dataclasses.is_dataclass(target):
        inner = target.__init__
    try:
        return typing.get_type_hints(inner)
    except (NameError, TypeError):
        return {}


def convert(value: Any, hint: Any, where: str) -> Any:
    """A TOML value as the annotated type, strictly: no text for numbers, no numbers for text."""
    if isinstance(value, Optimizer):
        return value
    nested = _nested(hint)
    if nested is not None:
        if not isinstance(value, Mapping):
            key, number = next((f.name, f.default) for f in dataclasses.fields(nested) if isinstance(f.default, float))
            raise ConfigError(f"{where} = {value!r}: write a table, such as {{ {key} = {number} }}")
        try:
            return nested(**arguments(nested, dict(value), where=where))
        except ValueError as error:
            raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    if _is_optimizer(hint):
        if not isinstance(value, str):
            raise ConfigError(f'{where} = {value!r}: write an optimizer as text, for example "adam:1e-2"')
        return _parsed(value, where)
    if typing.get_origin(hint) is tuple and _is_optimizer(typing.get_args(hint)[0]):
        if not isinstance(value, list | tuple):
            raise ConfigError(
                f'{where} = {value!r}: write a list of optimizers, for example ["adam:1e-2", "adam:1e-3"]'
            )
        return tuple(convert(v, typing.get_args(hint)[0], f"{where}[{i}]") for i, v in enumerate(value))
    if hint is Any or (
        isinstance(hint, type)
        and hint.__module__ != "builtins"
        and not issubclass(hint, Path)
        and not dataclasses.is_dataclass(hint)
    ):
        return value
    try:
        adapter = TypeAdapter(hint, config=None if dataclasses.is_dataclass(hint) else ConfigDict(strict=True))
        return adapter.validate_json(json.dumps(_plain(value)), strict=True)
    except ValidationError as error:
        first, *others = error.errors()
        at = ".".join(str(p) for p in first["loc"] if not str(p).startswith("function"))
        said = first["msg"][:1].lower() + first["msg"][1:]
        if others and typing.get_origin(hint) in (types.UnionType, typing.Union):  # one error for each of its types
            at = ""
            said = " or ".join([said, *(e["msg"].removeprefix("Input should be ") for e in others)])
        raise ConfigError(f"{where}{'.' + at if at else ''} = {value!r}: {said}") from None


def _nested(hint: Any) -> Any:
    """The dataclass that a table inside a table makes, where the hint is one or one or None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    made = [h for h in options if isinstance(h, type) and dataclasses.is_dataclass(h) and not issubclass(h, Optimizer)]
    return made[0] if made else None


def _is_optimizer(hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_is_optimizer(a) for a in typing.get_args(hint))
    return isinstance(hint, type) and issubclass(hint, Optimizer)


def _parsed(text: str, where: str) -> Optimizer:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
