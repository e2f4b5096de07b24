"""From a configuration to a run: data, network, prior, likelihood, guide, program, method, engine."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from . import config as conf
from .averaged import Averaged, averaged
from .bayesian import Bayesian, Prior
from .compression import Compression
from .config import Config, ConfigError, Evaluation, Patience, Table
from .data import Client, Data, Dataset, Federation
from .datasets import DATASETS
from .engines import choose
from .federation import federate
from .gate import Outliers
from .guides import GUIDES
from .likelihoods import LIKELIHOODS
from .messages import Messages
from .methods import METHODS
from .methods.fedavg import FedAvg
from .priors import PRIORS
from .privacy import Privacy
from .program import Program
from .random import fold, root
from .run import Observer, Participation, Run
from .schema import Schema
from .secure import Secure
from .server_rows import borrow
from .store import RunDirectory, load_tree

_LIFT = ("points",)  # keys of `prior` that say which parameters have none
_GUIDE_GIVEN = {"model": None, "init_loc_fn": None, "create_plates": None}  # set by the program, not by a table


@dataclass(frozen=True)
class Assembled:
    """Everything a run is made of, with the configuration in full."""

    config: Config
    federation: Federation
    method: FedAvg
    device: torch.device
    messages: Messages
    fixed: tuple[str, ...] = ()  # keys that this method keeps from changing on resuming, though they are RESUMABLE

    def run(
        self, directory: RunDirectory | None = None, observer: Observer | None = None, *, read_only: bool = False
    ) -> Run:
        """The run, on a directory or in memory only; `read_only` changes nothing in the directory."""
        options = {**self.options(directory, observer), "read_only": read_only}
        if self.config.engine == "flower":
            from .flower.local import local_run

            run: Run = local_run(
                self.method,
                self.federation,
                patience=flower(self.config),
                **options,
            )
            why = "every message as between machines, in this process"
        else:
            engine, why = choose(self.config.engine, self.method.program, self.device)
            run = Run(self.method, self.federation, engine=engine, **options)
        run.observer.note(f"engine: {run.engine.name} ({why}); device: {self.device}")
        return run

    def options(self, directory: RunDirectory | None, observer: Observer | None) -> dict[str, Any]:
        """What the configuration says of a run beside its clients and their engine."""
        c = self.config
        return {
            "rounds": c.rounds,
            "seed": c.seed,
            "cohort": Participation(**c.cohort),
            "evaluation": Evaluation(**c.evaluate),
            "outliers": Outliers(**c.outliers),
            "on_error": c.on_error,
            "directory": directory,
            "identity": self.identity(directory),
            "start": load_tree(_server_file(c.start), "cpu")[0] if c.start else None,
            "device": self.device,
            "observer": observer,
            "messages": self.messages,
        }

    def identity(self, directory: RunDirectory | None = None) -> str:
        """What a commit says of its configuration; a directory that differs in `fixed` keys alone is refused."""
        mine = self.config.identity(self.fixed)
        made = None if directory is None or not self.fixed else directory.identity()
        if directory is None or made is None or made == mine:
            return mine
        was = directory.table()["rounds"]
        if made == replace(self.config, rounds=was).identity(self.fixed):
            name, rounds = self.config.method["name"], self.config.rounds
            raise ConfigError(
                f"rounds = {rounds}: {directory.path} was made with rounds = {was}, which is fixed for method {name}: "
                f"its updates depend on the total, also those that are done. Start it anew: "
                f"pyrofl run {directory.config} rounds={rounds} --out ANOTHER"
            )
        return mine

    @property
    def names(self) -> list[str]:
        """The clients, in the order of their ids."""
        return [c.name for c in self.federation.clients]


def assemble(
    config: Config,
    *,
    data_root: Path | None = None,
    observer: Observer | None = None,
    at: str | Literal["server"] | None = None,
) -> Assembled:
    """Build everything a configuration names; each table is checked as it is built.

    `at` says where sites keep their rows: at a site, by its name, the data set holds that site's rows alone; at the
    "server" none are loaded, and the configuration's `schema` stands for them.
    """
    device = _device(config.device)
    dataset, federation, data = _loaded(config, data_root, observer or Observer(), at)
    federation = precise(federation, getattr(torch, config.precision))
    method_class = conf.resolve(config.method["name"], METHODS, "method")
    program, tables = _program(config, dataset, federation, method_class, device)
    checked: Mapping[str, Callable[..., Any]] = {
        "cohort": Participation,
        "evaluate": Evaluation,
        "outliers": Outliers,
        "flower": Patience,
    }
    tables |= {k: _checked(cls, getattr(config, k), k) for k, cls in checked.items()}
    if config.engine != "flower":
        tables["flower"] = config.flower
    clients, cohort = len(federation), Participation(**tables["cohort"])
    given = {
        "program": program,
        "clients": clients,
        "participation": cohort.count(clients) / clients,
        "rounds": config.rounds,
        "seed": config.seed,
        "unlabelled": None if federation.unlabelled is None else federation.unlabelled.to(device),
        "labelled": None if federation.labelled is None else Data(*(v.to(device) for v in federation.labelled)),
    }
    method, method_table = conf.build(config.method, METHODS, where="method", given=given)
    values: dict[str, Any] = {**tables, "data": data, "method": method_table}
    full = replace(config, **values)
    _check_engine(config.engine, method, device)
    cohort.count(1 if method.pools else clients)
    fixed = ("rounds",) if _uses_rounds(method_class, method) else ()
    return Assembled(full, federation, method, device, _messages(config, method, cohort.count(clients)), fixed)


def _uses_rounds(target: Callable[..., Any], method: FedAvg) -> bool:
    """Whether `target` was given the run's `rounds`, unless the method that it is says that it makes no use of them."""
    return "rounds" in conf.signature(target) and (type(method) is not target or method.uses_rounds)


def site_config(config: Config, data: str | Path) -> Config:
    """The configuration with the data set read from a site's own file."""
    return replace(config, data={**config.data, "path": str(data)})


def _messages(config: Config, method: FedAvg, taking_part: int) -> Messages:
    """What happens to the method's messages, refused where it would not hold for this method."""
    privacy: Privacy | None = None
    secure: Secure | None = None
    what: Averaged | None = None
    server = method.init(fold(root(config.seed), "init")) if config.privacy or config.secure else {}
    try:
        if config.privacy:
            privacy = Privacy(**conf.arguments(Privacy, config.privacy, where="privacy"))
            privacy.spent(1)
            privacy.check(method, method.down(server, 0))
        if config.secure:
            if config.compression != "none":
                raise ConfigError('secure sums whole numbers of its own: use compression = "none"')
            secure = Secure(**conf.arguments(Secure, config.secure, where="secure"))
            what = averaged(method, server)
            if privacy is not None and what.rule != "plain":
                raise ConfigError(
                    "privacy's noise must be in what is summed, and epsilon is for the guide's own parameters: use "
                    "method.pooling = 'unconstrained'"
                )
            if privacy is not None and secure.range < privacy.reach():
                raise ConfigError(
                    f"secure.range = {secure.range:g} is too near for privacy's noise, and a site that refuses to send "
                    f"tells of its update: take secure.range = {math.ceil(privacy.reach())} or more"
                )
            if taking_part < secure.least:
                raise ConfigError(
                    f"a sum needs {secure.least} sites (secure.least), and {taking_part} take part in a round"
                )
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from None
    return Messages(method, Compression(method.program, config.compression), privacy, secure, what)


def flower(config: Config) -> Patience:
    """Clients as Flower nodes that get and send messages, in this process; needs the extra `flower`."""
    return Patience(**config.flower)


def reopen(
    directory: RunDirectory,
    overrides: Sequence[str] = (),
    *,
    data_root: Path | None = None,
    observer: Observer | None = None,
) -> Assembled:
    """What a run directory was made of, with `overrides` of what may change on resuming.

    Data are looked for where the run found them, unless `data_root` says otherwise.
    """
    refuse_missing(directory)
    table, text = directory.table(), directory.config.read_text()
    for item in overrides:
        key = item.partition("=")[0].split(".")[0].strip()
        if key not in Config.RESUMABLE:
            raise ConfigError(
                f"{item}: only {', '.join(Config.RESUMABLE)} can change on resuming; start a new run for {key}"
            )
        conf.override(table, item)
    recorded = re.search(r"^# data-root: (.+)$", text, re.MULTILINE)
    root = data_root or (Path(recorded[1]) if recorded else None)
    return assemble(conf.config_of(table, str(directory.config)), data_root=root, observer=observer)


def refuse_missing(directory: RunDirectory) -> None:
    """Raise where a directory holds no run."""
    if not directory.config.exists():
        raise ConfigError(
            f"{directory.path} holds no run (no config.toml); start one with `pyrofl run FILE --out {directory.path}`"
        )


def _checked(target: Callable[..., Any], table: Table, where: str) -> Table:
    keywords = conf.arguments(target, table, where=where)
    try:
        target(**keywords)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return {k: v for k, v in conf.defaults(target, keywords, {}).items() if v is not None}


def _check_engine(name: str, method: FedAvg, device: torch.device) -> None:
    if name == "flower":
        if find_spec("flwr") is None:
            raise ConfigError("engine = 'flower' needs Flower: pip install 'pyrofl[flower]'")
        if method.pools:
            raise ConfigError(
                f"{type(method).__name__} trains on all rows in one place, which clients that keep theirs cannot give "
                "it: use engine = 'sequential'"
            )
        return
    try:
        choose(name, method.program, device)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'device = "{name}": {str(error).splitlines()[0]}') from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        number = "" if device.index is None else f" of number {device.index}"
        raise ConfigError(f'device = "{name}": no CUDA device{number} here; use "cpu" or "auto"')
    return device


def _loaded(
    config: Config, data_root: Path | None, observer: Observer, at: str | None
) -> tuple[Dataset, Federation, Table]:
    if not config.schema:
        if at is not None:
            raise ConfigError("schema is missing: sites that keep their rows agree on sites, shape and likelihood")
        return _federation(config, data_root, observer)
    try:
        schema = Schema(**conf.arguments(Schema, config.schema, where="schema"))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if at == "server":
        return schema.empty(), schema.federation(), config.data
    place = schema.whole if at is None else functools.partial(schema.at, site=at)
    return _federation(config, data_root, observer, place)


def _federation(
    config: Config, data_root: Path | None, observer: Observer, place: Callable[[Dataset], Dataset] | None = None
) -> tuple[Dataset, Federation, Table]:
    stream = fold(root(config.seed), "data")
    given = {"dataset": None, "key": stream}
    table, own = dict(config.data), [n for n in inspect.signature(federate).parameters if n not in given]
    elsewhere = table.pop("unlabelled") if isinstance(table.get("unlabelled"), Mapping) else None
    load, rest, defaults = _loader(table, "data", own, data_root, observer)
    split = conf.arguments(federate, rest, where="data", given=given)
    with _as_config_error("data"):
        dataset = load() if place is None else place(load())
        federation = federate(**{**split, "dataset": dataset})
    full = {**defaults, **conf.defaults(federate, split, given)}
    if elsewhere is not None:
        if elsewhere.get("name") == table["name"]:
            raise ConfigError(
                "data.unlabelled names the clients' own set, whose rows they hold: write the number of rows to keep "
                "from them, as in data.unlabelled = 1000"
            )
        federation, full["unlabelled"] = _borrowed(elsewhere, federation, fold(stream, "server"), data_root, observer)
    return dataset, federation, {"name": table["name"], **{k: v for k, v in full.items() if v is not None}}


def _borrowed(
    table: Table, federation: Federation, key: Tensor, data_root: Path | None, observer: Observer
) -> tuple[Federation, Table]:
    """The federation with the server's inputs from another data set, and the table that names it in full."""
    where = "data.unlabelled"
    if "name" not in table:
        raise ConfigError(f"{where}.name is missing: name a data set, or write a number of rows")
    load, rest, defaults = _loader(table, where, ["rows"], data_root, observer)
    given = {"other": None, "shape": federation.shape, "key": key}
    how = conf.arguments(borrow, rest, where=where, given=given)
    with _as_config_error(where):
        x = borrow(**{**how, "other": load()})
    full = {"name": table["name"], **defaults, **conf.defaults(borrow, how, given)}
    note = f"{len(x)} rows of {table['name']} without labels are the server's own"
    return replace(federation, unlabelled=x, notes=(*federation.notes, note)), full


def _loader(
    table: Table, where: str, also: list[str], data_root: Path | None, observer: Observer
) -> tuple[Callable[[], Dataset], Table, Table]:
    """(load, the keys in `also`, the loader's table in full) for a table that names a data set."""
    loader = conf.resolve(table["name"], DATASETS, where)
    given = {"root": data_root, "progress": lambda done, total, what: observer.progress(what, done, total)}
    names = inspect.signature(loader).parameters
    known = [*(n for n in names if n not in given), *also]
    keys = {k: v for k, v in table.items() if k != "name"}
    for key in keys:
        if key not in known:
            raise ConfigError(f"unknown key {where}.{key}{conf.nearest(key, known)}")
    mine = conf.arguments(loader, {k: v for k, v in keys.items() if k not in also}, where=where)
    given = {k: v for k, v in given.items() if k in names}
    load = functools.partial(loader, **{**mine, **given})
    return load, {k: v for k, v in keys.items() if k in also}, conf.defaults(loader, mine, given)


@contextmanager
def _as_config_error(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, FileNotFoundError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise ConfigError(str(text) if str(text).startswith(f"{where}.") else f"{where}: {text}") from error


def _program(
    config: Config, dataset: Dataset, federation: Federation, method: Any, device: torch.device
) -> tuple[Program, dict[str, Table]]:
    dtype = getattr(torch, config.precision)
    given = {"shape": federation.shape, "outputs": federation.outputs, "classes": federation.outputs}
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)  # in the fork: initial values come from the run's key, see Program.init
        net, model_table = conf.build(config.model, {}, where="model", given=given)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"model ({config.model['name']}) is a {type(net).__name__}, not a torch or Pyro module")
    net = net.to(device=device, dtype=dtype)
    tables: dict[str, Table] = {"model": model_table}
    likelihood_table = config.likelihood or {"name": federation.likelihood}
    guide_table = config.guide or {"name": getattr(method, "guide", "normal")}
    ours = inspect.isclass(method) and issubclass(method, FedAvg)
    if ours and guide_table["name"] in GUIDES:  # before the program finds the guide's own faults
        with _as_config_error(f"method ({config.method['name']})"):
            method.check_guide(guide_table["name"])
    if _explicit(net):
        if config.prior or config.likelihood:
            raise ConfigError(
                f"model ({config.model['name']}) declares its own priors and likelihood: remove those tables"
            )
        model: PyroModule = net
    else:
        prior_table = config.prior or {"name": getattr(method, "prior", "gaussian")}
        lift = conf.arguments(_points, {k: v for k, v in prior_table.items() if k in _LIFT}, where="prior")
        rest = {k: v for k, v in prior_table.items() if k not in _LIFT}
        prior, tables["prior"] = conf.build(rest, PRIORS, where="prior")
        if not isinstance(prior, Prior):
            raise ConfigError(f"prior ({rest['name']}) must be a pyrofl.Prior, it is a {type(prior).__name__}")
        likelihood, tables["likelihood"] = conf.build(likelihood_table, LIKELIHOODS, where="likelihood")
        if likelihood.kind != federation.likelihood:
            raise ConfigError(f"likelihood {likelihood.kind!r} does not fit data of kind {federation.likelihood!r}")
        try:
            model = Bayesian(net, prior, likelihood, **lift)
        except ValueError as error:
            raise ConfigError(f"model ({config.model['name']}): {error}") from error
        tables["prior"] |= {k: list(v) for k, v in {**_points(), **lift}.items()}
    guide = conf.resolve(guide_table["name"], GUIDES, "guide")
    rest = {k: v for k, v in guide_table.items() if k != "name"}
    keywords = conf.arguments(guide, rest, where="guide", given=_GUIDE_GIVEN)
    keywords = {k: v for k, v in keywords.items() if k not in _GUIDE_GIVEN}
    plain = {
        k: v for k, v in conf.defaults(guide, keywords, _GUIDE_GIVEN).items() if isinstance(v, bool | int | float | str)
    }
    tables["guide"] = {"name": guide_table["name"], **plain}
    x, y = (v[:2].to(device) for v in (dataset.x.to(dtype), _targets(dataset, dtype)))
    inference = conf.arguments(
        Program, config.inference, where="inference", given={"model": None, "x": x, "y": y, "guide": None}
    )
    options = {k: v for k, v in inference.items() if k in ("kl", "beta", "particles")}
    tables["inference"] = {"kl": "closed", "beta": 1.0, "particles": 1, **options}
    try:
        return Program(model, x, y, guide=functools.partial(guide, **keywords), **options), tables
    except (ValueError, TypeError, RuntimeError) as error:
        named = str(error).startswith(("guide.", "inference."))
        raise ConfigError(str(error) if named else f"model ({config.model['name']}): {error}") from error


def _points(*, points: tuple[str, ...] = ("norm",)) -> dict[str, tuple[str, ...]]:
    """The part of a prior table that goes to the lift."""
    return {"points": points}


def _targets(dataset: Dataset, dtype: torch.dtype) -> torch.Tensor:
    return dataset.y if dataset.likelihood == "categorical" else dataset.y.to(dtype)


def _explicit(net: nn.Module) -> bool:
    """Whether a module declares its own observed site: a Pyro model `forward(x, y)`, not a network `forward(x)`."""
    return isinstance(net, PyroModule) and "y" in inspect.signature(net.forward).parameters


def _server_file(start: str) -> Path:
    path = Path(start)
    return path / "server.safetensors" if path.is_dir() else path


def precise(federation: Federation, dtype: torch.dtype) -> Federation:
    """The federation with inputs (and real targets) in the run's precision."""

    def cast(data: Data) -> Data:
        y = data.y.to(dtype) if data.y.is_floating_point() else data.y
        return data._replace(x=data.x.to(dtype), y=y)

    def cast_all(c: Client) -> Client:
        return replace(c, train=cast(c.train), test=cast(c.test), valid=None if c.valid is None else cast(c.valid))

    return replace(
        federation,
        clients=tuple(map(cast_all, federation.clients)),
        common=None if federation.common is None else cast(federation.common),
        unlabelled=None if federation.unlabelled is None else federation.unlabelled.to(dtype),
        labelled=None if federation.labelled is None else cast(federation.labelled),
    )
