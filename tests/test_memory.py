"""Predictions stream: memory grows with draws times rows, by what is kept, and never with draws times weights."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.documents import ROOT

PROBE = """
import json, resource, sys
import torch
from torch import nn
torch.set_num_threads(1)
from models.resnet import ResNet20
from pyrofl import evaluate, random
from pyrofl.bayesian import Bayesian
from pyrofl.data import Data
from pyrofl.methods import BayFL
from pyrofl.priors import Gaussian
from pyrofl.program import Program

kind, draws, rows, chunk, side = sys.argv[1], *map(int, sys.argv[2:])
x, y = torch.randn(rows, 3, side, side), torch.arange(rows) % 10
dense = nn.Sequential(nn.Flatten(), nn.Linear(3 * side**2, 300), nn.ReLU(), nn.Linear(300, 10))
net = dense if kind == "dense" else ResNet20((3, side, side), 10)
program = Program(Bayesian(net, Gaussian(1.0)), x[:2], y[:2])
method, together = BayFL(program), kind == "dense"
predict = lambda d, draws: evaluate.predict(
    method, program.theta0, d, random.root(0), draws=draws, together=together, rows=chunk
)
predict(Data.of(x[:2], y[:2]), 2)
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
out = predict(Data.of(x, y), draws)
kept = sum(v.nbytes for v in out.values())
weights = sum(v.numel() for v in program.theta0.values())
print(json.dumps({"grown": peak() - before, "kept": kept, "weights": weights, "peak": peak()}))
"""


def measure(kind: str, *, draws: int, rows: int, chunk: int, side: int) -> dict[str, int]:
    """Bytes in a fresh process: resident memory at its peak, what predicting added to it, and what was kept."""
    words = [sys.executable, "-c", PROBE, kind, *map(str, (draws, rows, chunk, side))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet", "dense"])
def test_memory_does_not_grow_with_the_weights_of_all_draws(kind: str) -> None:
    few, many = (measure(kind, draws=d, rows=20, chunk=20, side=16) for d in (40, 240))
    slack = 32 << 20  # of the allocator
    assert many["grown"] - few["grown"] < many["kept"] - few["kept"] + slack
    assert (
        4 * (240 - 40) * many["weights"] // 2 > 4 * slack
    )  # what holding every draw's weights would add: half are scales


@pytest.mark.slow
def test_a_thousand_draws_of_a_resnet_on_ten_thousand_images_would_fit_in_two_gibibytes() -> None:
    seen = measure("resnet", draws=2, rows=1000, chunk=1000, side=32)  # one whole chunk of rows
    kept = seen["kept"] * (1000 * 10_000) / (2 * 1000)
    assert seen["peak"] + kept < 2 << 30
