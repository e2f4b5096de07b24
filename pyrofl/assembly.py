"""From a configuration to a run: data, network, prior, likelihood, guide, program, method, engine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from pyro.nn import PyroModule
from torch import nn

from . import config as conf
from .bayesian import Bayesian, Prior
from .compression import Compression
from .config import Config, ConfigError, Evaluation, Patience, Table
from .data import Dataset, Federation
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

    def run(self, directory: RunDirectory | None = None, observer: Observer | None = None) -> Run:
        """The run, on a directory or in memory only."""
        if self.config.engine == "flower":
            from .flower.local import local_run

            run: Run = local_run(
                self.method,
                self.federation,
                patience=flower(self.config),
                **self.options(directory, observer),
            )
            why = "every message as between machines, in this process"
        else:
            engine, why = choose(self.config.engine, self.method.program, self.device)
            run = Run(self.method, self.federation, engine=engine, **self.options(directory, observer))
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
            "identity": c.identity(),
            "start": load_tree(_server_file(c.start), "cpu")[0] if c.start else None,
            "device": self.device,
            "observer": observer,
            "messages": self.messages,
        }

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
    given = {"program": program, "clients": len(federation), "rounds": config.rounds, "seed": config.seed}
    method, method_table = conf.build(config.method, METHODS, where="method", given=given)
    checked: Mapping[str, Callable[..., Any]] = {
        "cohort": Participation,
        "evaluate": Evaluation,
        "outliers": Outliers,
        "flower": Patience,
    }
    tables |= {k: _checked(cls, getattr(config, k), k) for k, cls in checked.items()}
    if config.engine != "flower":
        tables["flower"] = config.flower
    values: dict[str, Any] = {**tables, "data": data, "method": method_table}
    full = replace(config, **values)
    _check_engine(config.engine, method, device)
    messages = _messages(config, method)
    Participation(**tables["cohort"]).count(1 if method.pools else len(federation))
    return Assembled(full, federation, method, device, messages)


def site_config(config: Config, data: str | Path) -> Config:
    """The configuration with the data set read from a site's own file."""
    return replace(config, data={**config.data, "path": str(data)})


def _messages(config: Config, method: FedAvg) -> Messages:
    """What happens to the method's messages, refused where it would not hold for this method."""
    server = method.init(fold(root(config.seed), "init"))
    privacy: Privacy | None = None
    secure: Secure | None = None
    try:
        if config.privacy:
            privacy = Privacy(**conf.arguments(Privacy, config.privacy, where="privacy"))
            privacy.spent(1)
            privacy.check(method, method.down(server, 0))
        if config.secure:
            if config.compression != "none":
                raise ConfigError('secure sums whole numbers of its own: use compression = "none"')
            secure = Secure(**conf.arguments(Secure, config.secure, where="secure"))
            secure.check(method, server)
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from None
    return Messages(method, Compression(method.program, config.compression), privacy, secure)


def flower(config: Config) -> Patience:
    """Clients as Flower nodes that get and send messages, in this process; needs the extra `flower`."""
    return Patience(**config.flower)


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
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'device = "{name}": {str(error).splitlines()[0]}') from None


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
    loader = conf.resolve(config.data["name"], DATASETS, "data")
    ours = {n for n in inspect.signature(federate).parameters if n not in ("dataset", "key")}
    table = {k: v for k, v in config.data.items() if k != "name"}
    both = [*(n for n in inspect.signature(loader).parameters if n not in ("root", "progress")), *ours]
    for key in table:
        if key not in both:
            raise ConfigError(f"unknown key data.{key}{conf.nearest(key, both)}")
    mine = conf.arguments(loader, {k: v for k, v in table.items() if k not in ours}, where="data")
    given = {"root": data_root, "progress": lambda done, total, what: observer.progress(what, done, total)}
    given = {k: v for k, v in given.items() if k in inspect.signature(loader).parameters}
    stream = fold(root(config.seed), "data")
    split = {k: v for k, v in table.items() if k in ours}
    rest = conf.arguments(federate, split, where="data", given={"dataset": None, "key": stream})
    try:
        dataset = loader(**{**mine, **given})
        if place is not None:
            dataset = place(dataset)
        federation = federate(**{**rest, "dataset": dataset})
    except (ValueError, FileNotFoundError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise ConfigError(f"data: {text}") from error
    full = {
        **conf.defaults(loader, mine, given),
        **conf.defaults(federate, rest, {"dataset": None, "key": stream}),
    }
    return (
        dataset,
        federation,
        {"name": config.data["name"], **{k: v for k, v in full.items() if v is not None}},
    )


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
        raise ConfigError(f"model ({config.model['name']}): {error}") from error


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

    def cast(data: Any) -> Any:
        y = data.y.to(dtype) if data.y.is_floating_point() else data.y
        return data._replace(x=data.x.to(dtype), y=y)

    clients = tuple(replace(c, train=cast(c.train), test=cast(c.test)) for c in federation.clients)
    return replace(federation, clients=clients, common=None if federation.common is None else cast(federation.common))
