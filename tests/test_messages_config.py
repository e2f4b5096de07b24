"""The tables `compression`, `privacy`, `secure` and `flower` of a configuration: what they do, and what is refused."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.tables import small

from pyrofl import assemble
from pyrofl.config import ConfigError, config_of

UNIFORM = {"name": "fedavg", "epochs": 1.0, "size": 8, "optimizer": "sgd:0.1", "weighting": "uniform"}


def made(**changes: Any) -> Any:
    return assemble(config_of(small(**changes)))


def test_nothing_happens_to_messages_by_default() -> None:
    messages = made().messages
    assert (messages.compression.kind, messages.privacy, messages.secure) == ("none", None, None)


def test_compression_makes_messages_smaller_on_every_engine() -> None:
    sizes = {}
    for engine in ("sequential", "vectorised"):
        for kind in ("none", "float16", "int8"):
            (now,) = made(rounds=1, engine=engine, compression=kind).run()
            sizes[engine, kind] = now.bytes_up
            assert now.left_out == {}
    weights = sizes["sequential", "none"] // 4
    tensors = (sizes["sequential", "int8"] - weights) // 4
    assert sizes["sequential", "float16"] == 2 * weights + 4 * tensors
    assert all(sizes["vectorised", kind] == sizes["sequential", kind] for kind in ("none", "float16", "int8"))


def test_epsilon_is_reported_each_round() -> None:
    pytest.importorskip("dp_accounting")
    run = made(method=UNIFORM, privacy={"clip": 1.0, "noise": 4.0}).run()
    spent = [now.report["epsilon"] for now in run]
    assert spent == [run.messages.privacy.spent(r) for r in (1, 2, 3)] and spent == sorted(set(spent))


def test_under_secure_sums_epsilon_is_also_that_of_the_sums() -> None:
    """Three sites at least: two whose noise a reader does not know, each with its own share."""
    pytest.importorskip("dp_accounting")
    run = made(method=UNIFORM, privacy={"clip": 1.0, "noise": 4.0}, secure={"range": 50.0}).run()
    for now in run:
        assert now.report["epsilon"] == run.messages.privacy.spent(now.number)
        assert now.report["epsilon_of_sums"] == run.messages.privacy.spent_on_average(now.number, 2)
        assert now.report["epsilon_of_sums"] < now.report["epsilon"] and now.left_out == {}


FULL_EM = {"name": "fedmap", "epochs": 1.0, "size": 8, "optimizer": "sgd:0.1"}
BAYES = {**UNIFORM, "name": "bayfl"}
PRIVATE = {"privacy": {"clip": 1.0, "noise": 8.0}, "method": UNIFORM}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({**PRIVATE, "secure": {"range": 81.0}, "method": BAYES}, "use method.pooling = 'unconstrained'"),
        ({**PRIVATE, "secure": {"range": 80.0}}, "a site that refuses to send tells of its update: take .* = 81"),
        ({"secure": {"least": 4}, "method": UNIFORM}, r"a sum needs 4 sites \(secure.least\), and 3 take part"),
        ({"secure": {"range": 1.0}, "method": UNIFORM, "cohort": {"clients": 2}}, "a sum needs 3 .*, and 2 take part"),
    ],
)
def test_sums_that_would_tell_too_much_are_refused(changes: dict[str, Any], reason: str) -> None:
    if "privacy" in changes:
        pytest.importorskip("dp_accounting")
    with pytest.raises(ConfigError, match=reason):
        made(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compression": "int4"}, "compression = 'int4'"),
        ({"privacy": {"clip": 1.0}}, "privacy.noise is missing"),
        ({"privacy": {"clip": 1.0, "nois": 1.0}}, 'unknown key privacy.nois; did you mean "noise"'),
        ({"secure": {"rang": 1.0}}, 'unknown key secure.rang; did you mean "range"'),
        ({"secure": {}}, "secure = {} would change nothing: give at least one key"),
        ({"privacy": {}}, "privacy = {} would change nothing: give at least one key"),
        ({"secure": {"range": 1.0}, "flower": {"timeou": 1.0}}, 'unknown key flower.timeou; did you mean "timeout"'),
        ({"secure": {"range": 1.0}, "method": FULL_EM}, "secure: FedMAP's server needs more than a sum"),
        ({"secure": {"range": 1.0}, "compression": "int8", "method": UNIFORM}, "secure sums whole numbers of its own"),
    ],
)
def test_what_has_no_meaning_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(**changes)


def test_privacy_of_methods_that_weigh_by_rows_is_refused() -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(ConfigError, match=r"use method\.weighting = 'uniform'"):
        made(privacy={"clip": 1.0, "noise": 1.0})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("pyrofl.assembly.find_spec", lambda name: None if name == "flwr" else find(name))
    with pytest.raises(ConfigError, match=r"engine = 'flower' needs Flower: pip install 'pyrofl\[flower\]'"):
        made(engine="flower")
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"privacy needs dp-accounting: pip install 'pyrofl\[privacy\]'"):
        made(method=UNIFORM, privacy={"clip": 1.0, "noise": 1.0})


def test_a_method_that_needs_all_rows_cannot_run_over_messages() -> None:
    pytest.importorskip("flwr")
    with pytest.raises(ConfigError, match="trains on all rows in one place"):
        made(engine="flower", method={"name": "pooled", "epochs": 1.0})
