"""One training step: BayFL against plain PyTorch and against Pyro's own SVI, same network, batches of 64.

python -m experiments.benchmarks.step [--json] [--networks mlp convnet resnet20]
"""

from __future__ import annotations

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from models.convnet import ConvNet
from models.mlp import MLP
from models.resnet import ResNet20
from pyrofl import Bayesian, Data, Program
from pyrofl.fit import fit
from pyrofl.guides import Normal
from pyrofl.optim import Adam
from pyrofl.priors import PRIORS
from pyrofl.random import root

from .common import Contestant, Figures, finish, interleave, options, ratio

BATCH, RATE = 64, 1e-3
# name: (network, shape of a row, steps a turn, torch threads or None for those asked for)
NETWORKS = {
    "mlp": (lambda: MLP(shape=(64,), outputs=10, hidden=100), (64,), 40, 1),
    "convnet": (lambda: ConvNet(shape=(3, 32, 32), outputs=10, hidden=120), (3, 32, 32), 8, None),
    "resnet20": (lambda: ResNet20(shape=(3, 32, 32), outputs=10), (3, 32, 32), 4, None),
}
BARS = {
    "convnet.over_plain": 1.15,
    "resnet20.over_plain": 1.12,
    "mlp.over_pyro_svi": 0.25,
    "convnet.over_pyro_svi": 0.7,
}


def plain(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Contestant:
    """Adam on the cross-entropy, as one would write it."""
    optimizer, loss = torch.optim.Adam(net.parameters(), RATE), nn.CrossEntropyLoss()

    def run() -> int:
        for t in range(steps):
            rows = slice(t * BATCH, (t + 1) * BATCH)
            optimizer.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
        return steps

    return run


def bayfl(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Contestant:
    """The library's loop on a mean-field posterior."""
    program = Program(Bayesian(net, PRIORS["gaussian"]()), x[:2], y[:2], guide=Normal)
    theta, data = program.init(root(0).to(x.device)), Data(x, y, torch.tensor(len(x), device=x.device))

    def run() -> int:
        key = root(1).to(x.device)
        fit(program.parts, theta, data, key, optimizer=Adam(RATE), epochs=1, size=BATCH, names=program.trainable)
        return steps

    return run


def svi(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Contestant:
    """Pyro's SVI with its AutoNormal guide and Adam on the same Pyro model."""
    pyro.clear_param_store()
    model = Bayesian(net, PRIORS["gaussian"]())
    guide = AutoNormal(pyro.poutine.block(model, hide=["y"]), init_scale=0.05)
    engine = SVI(model, guide, pyro.optim.Adam({"lr": RATE}), Trace_ELBO())

    def run() -> int:
        with pyro.validation_enabled(False):
            for t in range(steps):
                rows = slice(t * BATCH, (t + 1) * BATCH)
                engine.step(x[rows], y[rows])
        return steps

    return run


def main() -> None:
    parser = options(__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    figures = Figures()
    for name in asked.networks:
        build, shape, steps, threads = NETWORKS[name]
        torch.set_num_threads(threads or asked.threads)  # one thread where two only wait for each other
        x = torch.randn(BATCH * steps, *shape, device=asked.device)
        y = torch.randint(0, 10, (len(x),), device=asked.device)
        makers = {"plain": plain, "bayfl": bayfl, "svi": svi}
        contestants = {k: make(build().to(asked.device), x, y, steps) for k, make in makers.items()}
        seconds = interleave(contestants, turns=asked.turns, what=name, quiet=asked.json)
        for figure, other in (("over_plain", "plain"), ("over_pyro_svi", "svi")):
            label = f"{name}.{figure}"
            figures.add(label, ratio(seconds, "bayfl", other), bar=BARS.get(label))
        for k, v in seconds.items():
            figures.add(f"{name}.{k}_ms", [1e3 * s for s in v])
    finish(figures, "one step", as_json=asked.json)


if __name__ == "__main__":
    main()
