"""Foreign rows: what they are made of, and that entropy knows them where it should."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.documents import ROOT

from pyrofl import Run, assemble, load

SMALL = ("rounds=2", "data.clients=2", "data.limit=20", "evaluate.draws=2", "evaluate.final_draws=2")


@pytest.fixture
def ood(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments.calibration import ood

    return ood


def run_of(name: str, *overrides: str) -> Run:
    run = assemble(load(ROOT / "experiments" / "calibration" / f"{name}.toml", [*SMALL, *overrides])).run()
    for _ in run:
        pass
    return run


def test_foreign_rows_keep_shape_and_range(ood: Any) -> None:
    run = run_of("digits", "rounds=1", "method.epochs=1")
    test = run.federation.clients[0].test
    noise, permuted, other = (ood.foreign(name, test, run) for name in ("noise", "permuted", "digits"))
    assert noise.x.shape == permuted.x.shape == test.x.shape and other.x.shape == (1000, 64)
    assert noise.x.min() >= test.x.min() and noise.x.max() <= test.x.max()
    assert torch.equal(permuted.x.sort(1).values, test.x.sort(1).values) and not torch.equal(permuted.x, test.x)
    with pytest.raises(ValueError, match=r"synthetic has inputs \(3,\), this run \(64,\)"):
        ood.foreign("synthetic", test, run)


def test_entropy_knows_noise_and_a_point_estimate_has_no_epistemic_part(ood: Any) -> None:
    found = ood.areas(run_of("digits", "method.epochs=20"), "noise", draws=20)
    assert found.keys() == {"total", "aleatoric", "epistemic"}
    assert all(v > 0.8 for v in found["epistemic"].values()) and found["total"].keys() == {"client0", "client1"}
    point = ood.areas(run_of("digits_fedavg", "rounds=1"), "permuted", draws=1)
    assert point.keys() == {"total"}


def test_rows_of_its_own_kind_are_not_foreign(ood: Any) -> None:
    """Digits against digits: no better than chance, to within what 1000 rows against a few can tell."""
    found = ood.areas(run_of("digits", "data.split={ kind = 'iid' }", "method.epochs=20"), "digits", draws=10)
    assert all(abs(v - 0.5) < 0.2 for v in found["total"].values())
