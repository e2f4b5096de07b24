"""FedBN: normalisation layers are found wherever they are, stay at their client, and everything else is shared."""

from __future__ import annotations

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same
from torch import Tensor, nn

from pyrofl.bayesian import Bayesian
from pyrofl.engines import Sequential
from pyrofl.guides import GUIDES
from pyrofl.method import Cohort
from pyrofl.methods import FedAvg, FedBN
from pyrofl.methods.partial import Partial
from pyrofl.optim import SGD
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.tree import only, stack, without


class Hidden(nn.Module):
    """Norms where a search for "bn" in the name misses them, and a linear layer that it would catch."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_free = nn.Linear(build.FEATURES, 4)
        self.downsample = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.act = nn.Sequential(nn.Sequential(nn.LayerNorm(4), nn.Tanh()))
        self.head = nn.Linear(4, build.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.downsample(self.bn_free(x))))


def hidden(*, points: tuple[str, ...] = ("norm",), guide: str = "delta") -> Program:
    x, y, _ = build.rows(2)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(0)
        net = Hidden().double()
    return Program(Bayesian(net, PRIORS["gaussian"](), points=points), x, y, guide=GUIDES[guide])


NORMS = {"net.downsample.1", "net.act.0.0"}


@pytest.mark.parametrize(("points", "guide"), [(("norm",), "delta"), ((), "delta"), ((), "normal")])
def test_norms_are_found_by_their_type_and_stay_at_the_client(points: tuple[str, ...], guide: str) -> None:
    program = hidden(points=points, guide=guide)
    method = FedBN(program, SGD(0.1), size=4, epochs=2)
    assert {program.path(k).rpartition(".")[0] for k in method.mine} == NORMS
    server = method.init(root(1))
    reply = method.local(server, method.join(server), build.rows(9), root(2))
    assert {program.path(k).rpartition(".")[0] for k in reply.own} == NORMS
    assert len(reply.own) == (4 if guide == "delta" else 8) + 2, "scale and shift of two layers, statistics of one"
    shared = {program.path(k).rpartition(".")[0] for k in reply.up}
    assert shared == {"net.bn_free", "net.downsample.0", "net.head"} and reply.up.keys() == server.keys()
    assert any(not torch.equal(reply.own[k], method.join(server)[k]) for k in reply.own if "weight" in k)


def test_after_a_round_shared_tensors_are_the_mean_and_private_ones_untouched() -> None:
    run = Case("fedbn", {"weighting": "uniform"}).run(rounds=1)
    start, method = run.server, run.method
    key = fold(run.key, "round", 1)
    ids = [i for i in range(5) if run.train[i].rows]
    replies = {i: method.local(start, method.join(start), run.train[i], fold(key, "client", i)) for i in ids}
    run.step()
    close(
        run.server, {k: torch.stack([r.up[k] for r in replies.values()]).mean(0) for k in run.server}, tolerance=1e-12
    )
    for i, reply in replies.items():
        same(run.states.get(i) or {}, reply.own)


def test_a_client_predicts_with_its_own_statistics_under_the_shared_layers() -> None:
    program, data = hidden(), build.rows(12)
    method = FedBN(program)
    down, own = method.init(root(1)), method.join({})
    theta = method.personal(down, own, data, root(2))
    z = data.x
    for layer in ("net.bn_free", "net.downsample.0"):
        weight, bias = (down[program.loc_name(f"{layer}.{name}")] for name in ("weight", "bias"))
        z = z @ weight.T + bias
    torch.testing.assert_close(theta["model.net.downsample.1.running_mean"], z.mean(0))
    torch.testing.assert_close(theta["model.net.downsample.1.running_var"], z.var(0, correction=0))
    statistics = {k for k in theta if "running" in k}
    same(without(theta, statistics), without({**down, **own}, statistics))
    nobody = method.personal(down, own, data._replace(n=torch.tensor(0)), root(2))
    same(nobody, {**down, **own})


def test_there_is_no_global_model() -> None:
    run = Case("fedbn").run()
    *_, last = list(run)
    assert set(last.scores) == {"personal"}


def test_partial_with_nothing_private_is_fedavg() -> None:
    program = build.program(guide="delta", batch_norm=True)
    servers = []
    for kind in (Partial, FedAvg):
        run = Run(kind(program, SGD(0.1), size=4), build.federation((9, 1, 6)), engine=Sequential(), rounds=2, seed=1)
        last = list(run)[-1]
        servers.append((run.server, last.scores))
    same(servers[0][0], servers[1][0])
    assert servers[0][1] == servers[1][1]


def test_posteriors_of_the_shared_part_are_pooled_as_in_fedavg() -> None:
    program = hidden(points=(), guide="normal")
    full = [program.init(root(s)) for s in (1, 2)]
    cohort = Cohort(torch.arange(2), torch.tensor([30, 10]), root(0), 1)
    method = FedBN(program, weighting="rows", pooling="mixture")
    got = method.aggregate(method.init(root(0)), stack([without(t, method.mine) for t in full]), cohort)
    expected = FedAvg(program, pooling="mixture").aggregate(full[0], stack(full), cohort)
    same(got, only(expected, got))


def test_a_network_without_norms_is_refused() -> None:
    with pytest.raises(ValueError, match="fedbn keeps normalisation layers at the clients, and this network has none"):
        FedBN(build.program(guide="delta"))
