"""What the line of a round says."""

from __future__ import annotations

import pytest
from support import build

from pyrofl.console import round_line
from pyrofl.engines import Sequential, Vectorised
from pyrofl.methods import FedAvg
from pyrofl.metrics import SCORES
from pyrofl.optim import SGD
from pyrofl.run import Run, rows_of


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(ragged=100.0)], ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("guide", "prior", "part", "said"),
    [
        ("normal", "gaussian", "kl", "(nll {nll:.3f} + kl {part:.3f})"),
        ("delta", "gaussian", "neg_log_prior", "(nll {nll:.3f}, -log prior {part:.3f})"),
        ("delta", "flat", "neg_log_prior", ""),
    ],
)
def test_a_point_has_no_kl_but_a_log_prior(guide: str, prior: str, part: str, said: str, engine: object) -> None:
    """-log of a density above 1 is negative, and no KL is."""
    method = FedAvg(build.program(guide=guide, prior=prior, beta=0.5), SGD(0.1), epochs=2, size=4)
    (now,) = Run(method, build.federation((9, 5)), engine=engine, rounds=1, seed=1)  # type: ignore[arg-type]
    names = {r.metric for r in rows_of(now) if r.split == "train"}
    assert part in names and part in SCORES
    assert len(names & {"kl", "neg_log_prior"}) == 1
    loss, nll, value = (now.mean(k) for k in ("loss", "nll", part))
    assert loss is not None and nll is not None and value is not None
    assert loss == pytest.approx(nll + value, rel=1e-12)
    line = round_line(now, 1)
    assert line.startswith(f"round 1/1 | loss {loss:.3f} {said.format(nll=nll, part=value)}".rstrip() + " | ")
