"""Strict configuration: every mistake is named with what was meant, and the resolved file says everything."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tables import SERVER_ROWS, small, small_of, written

from pyrofl.assembly import Assembled, assemble
from pyrofl.config import Config, ConfigError, config_of, load, override
from pyrofl.methods import METHODS
from pyrofl.optim import SGD, Adam


def made(table: dict[str, Any]) -> Assembled:
    return assemble(config_of(table))


def refused(table: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        made(table)
    return str(error.value)


# ------------------------------------------------------------------ keys


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sede", 1, 'unknown key sede; did you mean "seed"?'),
        ("round", 3, 'unknown key round; did you mean "rounds"?'),
        ("data.site", 3, 'unknown key data.site; did you mean "sites"?'),
        ("data.clinets", 3, 'unknown key data.clinets; did you mean "clients"?'),
        ("data", {"name": "digits", "clients": 3, "split": {"kind": "iid", "alpa": 1}}, "unknown key split.alpa"),
        ("data.split", {"kind": "dirichlett"}, "unknown split kind 'dirichlett'; did you mean \"dirichlet\"?"),
        ("data.noise", {"kind": "pixel_std", "epsilonn": 1}, "epsilonn"),
        ("model.hiden", 8, 'unknown key model.hiden; did you mean "hidden"?'),
        ("prior", {"name": "gaussian", "sacle": 1.0}, 'unknown key prior.sacle; did you mean "scale"?'),
        ("prior", {"name": "gaussian", "pints": []}, "unknown key prior.pints"),
        ("prior", {"name": "flat", "scale": 1.0}, "unknown key prior.scale"),
        ("guide", {"name": "normal", "init_scal": 0.1}, 'unknown key guide.init_scal; did you mean "init_scale"?'),
        ("guide", {"name": "delta", "init_scale": 0.1}, "unknown key guide.init_scale"),
        ("likelihood", {"name": "bernoulli", "scale": 0.1}, "unknown key likelihood.scale"),
        ("inference.particle", 3, 'unknown key inference.particle; did you mean "particles"?'),
        ("cohort.fractoin", 0.5, 'unknown key cohort.fractoin; did you mean "fraction"?'),
        ("evaluate.evry", 2, 'unknown key evaluate.evry; did you mean "every"?'),
        ("outliers.polcy", "flag", 'unknown key outliers.polcy; did you mean "policy"?'),
        ("method.epoch", 2, 'unknown key method.epoch; did you mean "epochs"?'),
        ("method.mu", 2.0, "unknown key method.mu"),
    ],
)
def test_a_misspelt_key_is_an_error_with_the_nearest(path: str, value: Any, message: str) -> None:
    table = small()
    *tables, last = path.split(".")
    at = table
    for name in tables:
        at = at.setdefault(name, {})
    at[last] = value
    assert message in refused(table)


@pytest.mark.parametrize(
    "key",
    [
        "method.program",
        "method.rounds",
        "inference.x",
        "inference.guide",
        "guide.model",
        "guide.init_loc_fn",
        "data.key",
        "data.dataset",
        "data.root",
        "data.progress",
        "model.shape",
        "model.outputs",
    ],
)
def test_what_the_run_itself_knows_is_no_key(key: str) -> None:
    table = small(guide={"name": "normal"}, inference={})
    part, name = key.split(".")
    table[part][name] = 3
    assert f"unknown key {key}" in refused(table)


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("meta_bayfl", "optimizer"),
        ("meta_bayfl", "schedule"),
        ("alone", "pooling"),
        ("alone", "weighting"),
        ("alone", "seed"),
        ("pooled", "finetune"),
        ("ditto", "finetune_epochs"),
        ("pvi", "finetune_part"),
        ("fedavg", "schedule"),
    ],
)
def test_arguments_without_effect_do_not_exist(method: str, key: str) -> None:
    assert f"unknown key method.{key}" in refused(small_of(method, **{key: "x"}))


def test_every_argument_of_every_method_is_a_key() -> None:
    for name, kind in METHODS.items():
        given = {"program", "rounds", "clients", "participation", "seed", *SERVER_ROWS}
        known = {f.name for f in dataclasses.fields(kind) if f.init} - given
        resolved = made(small_of(name)).config.method
        assert resolved.keys() == known | {"name"}, name


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", "one"),
        ("seed", 1.5),
        ("seed", True),
        ("rounds", "3"),
        ("rounds", 3.0),
        ("precision", "float16"),
        ("on_error", "ignore"),
        ("data", {"name": "synthetic", "sites": "3"}),
        ("data", {"name": "synthetic", "likelihood": "normal"}),
        ("model", {"name": "support.nets:Dense", "hidden": 4.5}),
        ("method", {"name": "bayfl", "epochs": "two"}),
        ("method", {"name": "bayfl", "size": 1.5}),
        ("method", {"name": "bayfl", "finetune": "yes"}),
        ("method", {"name": "bayfl", "pooling": "mean"}),
        ("method", {"name": "bayfl", "optimizer": 0.1}),
        ("method", {"name": "bayfl", "optimizer": ["adam:1e-2"]}),
        ("method", {"name": "meta_bayfl", "optimizers": "adam:1e-2"}),
        ("method", {"name": "meta_bayfl", "optimizers": ["adam:1e-2", 3]}),
        ("evaluate", {"every": "2"}),
        ("cohort", {"fraction": "half"}),
        ("outliers", {"policy": "shout"}),
        ("prior", {"name": "gaussian", "scale": [1.0]}),
        ("inference", {"particles": 2.5}),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_key_and_the_value(path: str, value: Any) -> None:
    text = refused(small(**{path: value}))
    last = value if not isinstance(value, dict) else list(value.values())[-1]
    key = path if not isinstance(value, dict) else f"{path}.{list(value)[-1]}"
    assert key in text
    assert repr(last if key != "method.optimizers" or isinstance(last, str) else last[-1]) in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"engine": "vectorized"}, "unknown engine 'vectorized'; did you mean \"vectorised\"?"),
        ({"device": "gpu"}, 'device = "gpu"'),
        ({"model": None}, "model is missing"),
        ({"model": {"hidden": 3}}, "model.name is missing: write model = { name = ... }"),
        ({"method": {"name": "fedavgg"}}, 'method.name = "fedavgg" is not registered; did you mean "fedavg"?'),
        ({"data": {"name": "sythetic"}}, 'data.name = "sythetic" is not registered; did you mean "synthetic"?'),
        ({"prior": {"name": "gausian"}}, 'prior.name = "gausian" is not registered; did you mean "gaussian"?'),
        ({"guide": {"name": "norml"}}, 'guide.name = "norml" is not registered; did you mean "normal"?'),
        ({"model": {"name": "MLP"}}, 'your own is named by its import path, as in "my_pkg.my_module:Thing"'),
        ({"model": {"name": "support.nets:Dens"}}, "support.nets has no 'Dens'; did you mean \"Dense\"?"),
        ({"model": {"name": "support.netz:Dense"}}, "No module named 'support.netz'; import paths are relative to"),
        ({"model": {"name": "support.nets:"}}, 'model.name = "support.nets:" is no import path'),
        ({"model": {"name": ":Dense"}}, 'model.name = ":Dense" is no import path'),
        ({"model": {"name": "../support/nets:Dense"}}, "is no import path"),
        ({"model": {"name": ".nets:Dense"}}, "is no import path"),
        ({"model": {"name": "support.nets:not_a_network"}}, "is a str, not a torch or Pyro module"),
        ({"prior": {"name": "support.nets:Dense"}}, "prior.shape is missing"),
        ({"method": {"name": "bayfl", "epochs": 0}}, "method.epochs must be positive, got 0"),
        ({"method": {"name": "bayfl", "optimizer": "adm:1"}}, "method.optimizer: optimizer 'adm:1': unknown name"),
        ({"method": {"name": "mc_dropout"}}, "mc_dropout needs a network with Dropout layers"),
        ({"cohort": {"fraction": 5.0}}, "a number of clients is cohort.clients"),
        ({"cohort": {"clients": 4}}, "cohort.clients = 4 is more than there are: 3"),
        ({"evaluate": {"draws": 0}}, "evaluate.draws must be at least 1, got 0"),
        ({"outliers": {"factor": 0.5}}, "outliers.factor must be above 1, got 0.5"),
        ({"likelihood": {"name": "poisson"}}, "likelihood 'poisson' does not fit data of kind 'bernoulli'"),
        ({"prior": {"name": "flat"}}, "has no KL"),
        ({"inference": {"beta": -1.0}}, "inference.beta must be 0 or positive, and finite, got -1.0"),
        ({"data": {"name": "synthetic", "rows": 0}}, "data: sites, rows and features must be at least 1"),
        ({"method": {"name": "bayfl", "schedule": "b"}}, "input should be 'a', 'a/sqrt(K)', 'a/k' or 'a/sqrt(k)'"),
        (
            {"method": {"name": "fedbe"}, "guide": {"name": "normal"}},
            "bayfl with distillation): use guide = 'delta'",
        ),
        (
            {"data": {"name": "synthetic", "likelihood": "gaussian"}, "method": {"name": "pfnm"}},
            "pfnm matches networks of classifiers, and this model's likelihood is gaussian",
        ),
        (
            {"prior": {"name": "gaussian", "scale": "foo"}},
            "prior.scale = 'foo': input should be a valid number or 'fan_in'",
        ),
        ({"inference": {"beta": float("inf")}}, "inference.beta must be 0 or positive, and finite, got inf"),
        ({"guide": {"name": "normal", "init_scale": float("inf")}}, "guide.init_scale must be positive and finite"),
        ({"data": {"name": "synthetic", "spread": float("inf")}}, "data.spread must be 0 or positive, and finite"),
        ({"data": {"name": "synthetic", "shift": float("nan")}}, "data.shift must be 0 or positive, and finite"),
        ({"method": {"name": "fedpa", "warmup": -1}}, "method.warmup must be at least 0 rounds, got -1"),
        ({"device": f"cuda:{torch.cuda.device_count()}"}, 'here; use "cpu" or "auto"'),
        ({"method": {"name": "npeb", "tolerance": -1.0}}, "method.tolerance must be positive, got -1.0"),
        ({"method": {"name": "vaneb", "tolerance": float("nan")}}, "tolerance must be positive and finite, got nan"),
        ({"method": {"name": "fedadam", "tau": 1e30}}, "method.tau must be at most 1e+15, got 1e+30"),
        ({"method": {"name": "bayfl", "epochs": 1e30}}, "method.epochs must be at most 1e+06, got 1e+30"),
        ({"method": {"name": "ditto", "own_epochs": 1e30}}, "method.own_epochs must be at most 1e+06, got 1e+30"),
        ({"method": {"name": "ditto", "own_epochs": float("inf")}}, "own_epochs must be positive and finite, got inf"),
        ({"method": {"name": "bayfl", "distillation": 3}}, "= 3: write a table, such as { epochs = 20.0 }"),
        ({"method": {"name": "bayfl", "distillation": []}}, "= []: write a table, such as { epochs = 20.0 }"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_to_write(changes: dict[str, Any], message: str) -> None:
    assert message in refused(small(**changes))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "bad.toml").write_text("seed = ")
    with pytest.raises(ConfigError, match=r"bad\.toml: not valid TOML: Invalid value"):
        load(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml: not valid TOML"):
        load(tmp_path / "binary.toml")
    unknown = written(tmp_path / "a.toml", small(sede=2))
    with pytest.raises(ConfigError, match=r'a\.toml: unknown key sede; did you mean "seed"\?'):
        load(unknown)


def test_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", small())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path).seed == 1


# ------------------------------------------------------------------ overrides


def test_overrides_change_one_value(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", small())
    config = load(
        path, ["seed=7", "method.epochs=2.5", "method.optimizer=adam:1e-2", "cohort.fraction=0.5", "data.sites = 4"]
    )
    assert (config.seed, config.method["epochs"], config.cohort) == (7, 2.5, {"fraction": 0.5})
    assert config.method["optimizer"] == "adam:1e-2" and config.data["sites"] == 4
    assert load(path).seed == 1


def test_an_override_of_a_component_replaces_its_table(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", small())
    assert load(path, ["method=fedavg"]).method == {"name": "fedavg"}
    assert load(path, ["method=fedavg", "method.epochs=2"]).method == {"name": "fedavg", "epochs": 2}
    assert load(path, ['method={name = "fedprox", mu = 0.5}']).method == {"name": "fedprox", "mu": 0.5}


def test_a_component_may_be_a_plain_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.toml", small(data="digits"))
    assert load(path).data == {"name": "digits"}
    assert load(path, ["data.clients=4"]).data == {"name": "digits", "clients": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "override 'seed': write key=value, for example method.epochs=1"),
        ("=3", "write key=value"),
        ("method..epochs=1", "write key=value"),
        ("seed.x=3", "'seed' is a value, not a table"),
        ("sede=3", 'unknown key sede; did you mean "seed"?'),
        ("seed=three", "seed = 'three'"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path / "a.toml", small()), [text])
    assert message in str(error.value)


def test_override_makes_tables_on_the_way() -> None:
    table: dict[str, Any] = {}
    override(table, "data.split.alpha=0.1")
    assert table == {"data": {"split": {"alpha": 0.1}}}


# ------------------------------------------------------------------ the resolved file


EXTRAS: dict[str, dict[str, Any]] = {
    "meta_bayfl": {"optimizers": ["adam:1e-2", "sgd:0.123456789,momentum=0.987654321"]},
    "bayfl": {"optimizer": "adam:0.1,decay=0.0123456789", "schedule": "a/k"},
}


@pytest.mark.parametrize("method", METHODS)
def test_the_resolved_file_makes_the_same_run(method: str, tmp_path: Path) -> None:
    table = small_of(method, **EXTRAS.get(method, {})) | {"cohort": {"fraction": 0.5}, "inference": {"particles": 2}}
    if METHODS[method].prior != "flat":
        table["prior"] = {"name": "gaussian", "scale": "fan_in"}
    if "normal" in METHODS[method].guides and "prior" in table:
        table["guide"] = {"name": "normal", "init_scale": 0.02}
    first = made(table)
    path = tmp_path / "config.toml"
    path.write_text(first.config.toml())
    again = assemble(load(path))
    assert again.config.toml() == first.config.toml()
    assert again.config.identity() == first.config.identity()
    for f in dataclasses.fields(first.method):
        if f.name not in ("program", *SERVER_ROWS):
            assert getattr(again.method, f.name) == getattr(first.method, f.name), f.name
    resolved = tomllib.loads(first.config.toml())["method"]
    assert resolved.get("epochs", 1.0) == table["method"].get("epochs", 1.0)  # not every method trains by epochs


def test_the_resolved_file_says_every_default() -> None:
    config = made({k: v for k, v in small().items() if k not in ("evaluate", "seed", "engine", "rounds")}).config
    table = tomllib.loads(config.toml())
    assert table["seed"] == 0 and table["rounds"] == 10 and table["precision"] == "float32"
    off = {"balanced": False, "matched": False, "temperature": False}
    assert table["evaluate"] == {"every": 5, "draws": 20, "final_draws": 100, "bins": 15, **off}
    assert table["prior"] == {"name": "gaussian", "scale": 1.0, "gain": 1.0, "points": ["norm"]}
    assert table["guide"] == {"name": "normal", "init_scale": 0.05}
    assert table["likelihood"] == {"name": "bernoulli"}
    assert table["method"]["pooling"] == "scale" and table["method"]["optimizer"] == "sgd:0.1"
    assert table["data"]["test"] == 0.2 and table["data"]["sites"] == 3
    assert table["outliers"] == {"policy": "flag", "factor": 100.0}
    assert table["inference"] == {"kl": "closed", "beta": 1.0, "particles": 1}


def test_only_what_may_change_on_resuming_leaves_the_identity_alone() -> None:
    base = config_of(small())
    changes: dict[str, Any] = {
        "rounds": 9,
        "engine": "vectorised",
        "device": "cpu",
        "evaluate": {"every": 1},
        "flower": {"timeout": 5.0},
        "on_error": "stop",
        "seed": 2,
        "schema": {"shape": [3]},
        "privacy": {"clip": 1.0},
        "secure": {"bits": 30},
        "compression": "int8",
        "precision": "float64",
        "start": "runs/other",
        "data": {"name": "synthetic"},
        "model": {"name": "support.nets:Dense", "hidden": 5},
        "method": {"name": "bayfl", "epochs": 2.0},
        "prior": {"name": "laplace"},
        "guide": {"name": "delta"},
        "likelihood": {"name": "bernoulli"},
        "inference": {"particles": 2},
        "cohort": {"clients": 2},
        "outliers": {"policy": "reject"},
    }
    assert changes.keys() == {f.name for f in dataclasses.fields(Config)}, "a new key must be put on one side"
    for name, value in changes.items():
        same = dataclasses.replace(base, **{name: value}).identity() == base.identity()
        assert same == (name in Config.RESUMABLE), name
    assert set(Config.RESUMABLE) == {"rounds", "engine", "device", "evaluate", "flower", "on_error"}


@pytest.mark.parametrize("method", METHODS)
def test_the_rounds_are_fixed_for_the_methods_whose_updates_depend_on_them(method: str) -> None:
    table, depends = small_of(method, **EXTRAS.get(method, {})), method == "fedphp"
    two, four = (made({**table, "rounds": n}) for n in (2, 4))
    assert two.fixed == (("rounds",) if depends else ())
    assert (two.identity() != four.identity()) == depends


@pytest.mark.parametrize(
    ("method", "depends"),
    [
        ({"name": "bayfl", "schedule": "a/sqrt(K)"}, True),
        ({"name": "bayfl", "schedule": "a/sqrt(k)"}, False),
        ({"name": "support.totals:Slow"}, True),
        ({"name": "support.totals:slow"}, True),
        ({"name": "support.totals:Own"}, True),
        ({"name": "support.totals:Steady"}, False),
    ],
    ids=str,
)
def test_a_method_that_is_given_the_rounds_has_them_fixed_unless_they_have_no_effect(
    method: dict[str, Any], depends: bool
) -> None:
    two, four = (made(small(method=method, rounds=n)) for n in (2, 4))
    assert (two.identity() != four.identity()) == depends


def test_optimizers_are_text() -> None:
    assert made(small_of("bayfl", optimizer="adam:1e-2,b1=0.5")).method.optimizer == Adam(1e-2, b1=0.5)
    candidates = made(small_of("meta_bayfl", optimizers=["sgd:0.1", "adam:1e-3"])).method.optimizers  # type: ignore[attr-defined]
    assert candidates == (SGD(0.1), Adam(1e-3))


def test_integers_serve_as_floats_and_not_the_other_way_round() -> None:
    method = made(small_of("fedprox", epochs=2, mu=1)).method
    assert isinstance(method.epochs, float) and method.epochs == 2


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_precision_is_that_of_data_and_network(precision: str) -> None:
    assembled = made(small(precision=precision))
    dtype = getattr(torch, precision)
    assert assembled.federation.clients[0].train.x.dtype == dtype
    assert {v.dtype for v in assembled.method.program.theta0.values()} == {dtype}
    run = assembled.run()
    run.step()
    assert {v.dtype for v in run.server.values()} == {dtype}


def test_networks_start_alike_whatever_the_process_drew_before() -> None:
    thetas = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        thetas.append(made(small()).method.program.theta0)
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(thetas[0][k], thetas[1][k]) for k in thetas[0])


def test_a_run_may_start_from_another(tmp_path: Path) -> None:
    from pyrofl.store import save_tree

    first = made(small()).run()
    first.step()
    save_tree(tmp_path / "server.safetensors", first.server)
    second = made(small(start=str(tmp_path))).run()
    assert all(torch.equal(second.server[k], first.server[k]) for k in first.server)
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such file"):
        made(small(start=str(tmp_path / "nowhere"))).run()
