"""Client-level differential privacy: clipping, noise, the account, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from support import build
from support.cases import Case
from support.compare import same

from pyrofl.compression import Compression
from pyrofl.engines import Sequential, Vectorised
from pyrofl.messages import Messages
from pyrofl.method import Reply
from pyrofl.privacy import Privacy, keyed_noise, secret_noise
from pyrofl.random import root
from pyrofl.run import Run
from pyrofl.tree import Tree

DOWN: Tree = {"a": torch.tensor([1.0, 2.0], dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
UP: Tree = {"a": torch.tensor([4.0, 2.0], dtype=torch.float64), "b": torch.tensor([4.0], dtype=torch.float64)}
NONE: Tree = {k: torch.zeros_like(v) for k, v in UP.items()}
ONES: Tree = {k: torch.ones_like(v) for k, v in UP.items()}


def test_the_update_is_clipped_by_its_norm_over_all_tensors() -> None:
    """The way (3, 0, 4) has norm 5: clip 2.5 halves it, clip 10 leaves it."""
    half = Privacy(clip=2.5, noise=1.0).protect(UP, DOWN, NONE)
    assert half["a"].tolist() == [2.5, 2.0] and half["b"].tolist() == [2.0]
    same(Privacy(clip=10.0, noise=1.0).protect(UP, DOWN, NONE), UP)
    same(Privacy(clip=1.0, noise=1.0).protect(DOWN, DOWN, NONE), DOWN)


def test_noise_has_the_standard_deviation_clip_times_noise_whatever_the_update() -> None:
    for up in (UP, DOWN):
        quiet, loud = (Privacy(clip=2.5, noise=3.0).protect(up, DOWN, n) for n in (NONE, ONES))
        for k in up:
            assert (loud[k] - quiet[k]).tolist() == pytest.approx([7.5] * len(up[k]))


def test_a_tensor_that_was_not_received_is_clipped_as_a_whole() -> None:
    out = Privacy(clip=1.0, noise=1.0).protect({"z": torch.tensor([3.0, 4.0])}, DOWN, {"z": torch.zeros(2)})
    assert out["z"].tolist() == pytest.approx([0.6, 0.8])


def test_nothing_but_the_message_leaves() -> None:
    reply = Privacy(clip=1.0, noise=1.0).reply(Reply(UP, {"mine": ONES["a"]}, {"loss": ONES["b"]}), DOWN, NONE)
    assert reply.info == {} and reply.own.keys() == {"mine"}


def test_secret_noise_is_standard_normal_repeatable_and_bound_to_its_message() -> None:
    like = {"a": torch.zeros(200, 100), "b": torch.zeros(3)}
    one = secret_noise(like, b"secret", b"down", b"key")
    same(one, secret_noise(like, b"secret", b"down", b"key"))
    values = one["a"].flatten().double().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
    for other in ((b"other", b"down", b"key"), (b"secret", b"dow", b"nkey"), (b"secret", b"down", b"kez")):
        again = secret_noise(like, *other)["a"].flatten().double().numpy()
        assert abs(np.corrcoef(values, again)[0, 1]) < 0.05


def test_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    """Known bounds: exact epsilon of one Gaussian release (Balle, Wang, 2018), which an accountant cannot undercut."""
    pytest.importorskip("dp_accounting")
    privacy = Privacy(clip=5.0, noise=4.0, delta=1e-5)  # multiplier 2

    def delta(eps: float, s: float) -> float:
        return stats.norm.cdf(0.5 / s - eps * s) - math.exp(eps) * stats.norm.cdf(-0.5 / s - eps * s)

    for releases in (1, 10, 30):
        s = 2.0 / math.sqrt(releases)  # so many releases are one of this multiplier
        eps = privacy.spent(releases)
        assert delta(eps, s) <= 1e-5 < delta(0.75 * eps, s), "at most a third above the exact value"
    assert privacy.spent(0) == 0
    assert privacy.spent_on_average(10, 1) == privacy.spent(10)
    assert privacy.reach() == 5.0 + 10 * 20.0
    assert privacy.spent_on_average(10, 16) == pytest.approx(Privacy(clip=1.0, noise=16.0).spent(10))


@pytest.mark.parametrize(
    ("method", "arguments", "reason"),
    [
        ("bayfl", {}, "weighs clients by their rows.*use method.weighting = 'uniform'"),
        ("npeb", {}, "NPEB does not have: use another method"),
        ("alone", {}, "Alone does not have"),
    ],
)
def test_what_would_not_hold_is_refused(method: str, arguments: dict[str, str], reason: str) -> None:
    built = Case(method, arguments).build()
    with pytest.raises(ValueError, match=reason):
        Privacy(clip=1.0, noise=1.0).check(built, built.down(built.init(root(1)), 0))


@pytest.mark.parametrize(("field", "value"), [("clip", 0.0), ("clip", math.inf), ("noise", 0.0), ("delta", 1.0)])
def test_senseless_numbers_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"privacy.{field} must be"):
        Privacy(**{"clip": 1.0, "noise": 1.0, field: value})


def private(case: Case, *, clip: float, noise: float, engine: object) -> Run:
    method = case.build()
    privacy = Privacy(clip=clip, noise=noise)
    privacy.check(method, method.down(method.init(root(1)), 0))
    messages = Messages(method, Compression(method.program), privacy)
    return Run(method, build.federation(), engine=engine, rounds=2, seed=1, messages=messages)  # type: ignore[arg-type]


UNIFORM = Case("bayfl", {"weighting": "uniform"})


def test_without_clipping_and_almost_without_noise_it_is_the_run_without() -> None:
    pytest.importorskip("dp_accounting")
    one, other = private(UNIFORM, clip=1e6, noise=1e-18, engine=Sequential()), UNIFORM.run()
    for a, b in zip(one, other, strict=True):
        assert a.info == {name: {} for name in a.clients} and b.info["site0"]
        assert a.report["epsilon"] > 1e30
    for name, v in other.server.items():
        torch.testing.assert_close(one.server[name], v, atol=1e-9, rtol=0)


def test_engines_agree_on_clip_and_noise() -> None:
    pytest.importorskip("dp_accounting")
    runs = [private(UNIFORM, clip=0.5, noise=0.3, engine=e) for e in (Sequential(), Vectorised(ragged=100.0))]
    for run in runs:
        list(run)
    assert runs[1].engine.fallback is None  # type: ignore[attr-defined]
    for name, v in runs[0].server.items():
        torch.testing.assert_close(runs[1].server[name], v, atol=1e-6, rtol=0)


def test_keyed_noise_differs_between_clients_and_tensors() -> None:
    a, b = (keyed_noise({"x": torch.zeros(5), "y": torch.zeros(5)}, root(k)) for k in (1, 2))
    assert not torch.equal(a["x"], b["x"]) and not torch.equal(a["x"], a["y"])
