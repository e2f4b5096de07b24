"""SCAFFOLD: two quadratics with a known joint optimum, and one test for each way it is commonly wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same
from torch import Tensor, nn
from torch.func import grad

from pyrofl.bayesian import Bayesian
from pyrofl.config import Evaluation
from pyrofl.data import Batch, Client, Data, Federation
from pyrofl.engines import Sequential
from pyrofl.guides import GUIDES
from pyrofl.likelihoods import Gaussian
from pyrofl.method import Cohort
from pyrofl.methods import SCAFFOLD, FedAvg
from pyrofl.optim import SGD, Adam
from pyrofl.priors import PRIORS
from pyrofl.program import Program
from pyrofl.random import root
from pyrofl.run import Participation, Run
from pyrofl.tree import Tree, add, only, pack, part, scale, stack, zeros

CURVATURES, CENTRES = (1.0, 3.0), (-1.0, 2.0)
OPTIMUM = (1.0 * -1.0 + 3.0 * 2.0) / (1.0 + 3.0)  # of the mean of the two, 1.25


class Slope(nn.Module):
    """w x, with nothing but w."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def quadratic() -> Program:
    """y ~ N(w x, 1): a row (x, y) has the loss (y - w x)^2 / 2 + constant."""
    with torch.random.fork_rng(devices=[]):
        net = Slope().double()
    x = torch.ones(2, 1, dtype=torch.float64)
    return Program(Bayesian(net, PRIORS["flat"](), Gaussian(1.0)), x, x[:, 0], guide=GUIDES["delta"])


def quadratics(*, rows: tuple[int, int] = (1, 1)) -> Federation:
    """Clients with the mean losses a (w - m)^2 / 2, from `rows` copies of the row (sqrt(a), sqrt(a) m)."""

    def client(a: float, m: float, n: int) -> Client:
        x = torch.full((n, 1), math.sqrt(a), dtype=torch.float64)
        return Client(f"site{m:g}", Data.of(x, x[:, 0] * m), Data.of(x[:0], x[:0, 0]))

    return Federation(tuple(map(client, CURVATURES, CENTRES, rows)), "gaussian")


def run_of(method: FedAvg, *, rounds: int, federation: Federation | None = None, **more: Any) -> Run:
    quick = Evaluation(every=1000, draws=1, final_draws=1)
    federation = federation or quadratics()
    return Run(method, federation, engine=Sequential(), rounds=rounds, seed=1, evaluation=quick, **more)


def scaffold(**more: Any) -> SCAFFOLD:
    return SCAFFOLD(quadratic(), SGD(0.05), **{"epochs": 5, "size": 1, "clients": 2, **more})


def slope(method: FedAvg, tree: Tree) -> float:
    return float(tree[method.program.loc_name("net.head.weight")])


@pytest.mark.parametrize("option", ["I", "II"])
def test_two_quadratics_reach_the_joint_optimum_which_fedavg_misses(option: Any) -> None:
    run = run_of(scaffold(option=option), rounds=60)
    list(run)
    assert slope(run.method, run.server) == pytest.approx(OPTIMUM, abs=1e-9)
    plain = run_of(FedAvg(quadratic(), SGD(0.05), epochs=5, size=1), rounds=60)
    list(plain)
    # y_k = m_k + (1 - 0.05 a_k)^5 (x - m_k), and x their mean
    left = [(1 - 0.05 * a) ** 5 for a in CURVATURES]
    biased = sum((1 - r) * m for r, m in zip(left, CENTRES)) / sum(1 - r for r in left)
    assert slope(plain.method, plain.server) == pytest.approx(biased, abs=1e-9)
    assert biased == pytest.approx(1.1327, abs=5e-5)


@pytest.mark.parametrize("option", ["I", "II"])
def test_clients_of_different_size_reach_it_as_well(option: Any) -> None:
    """20 local steps against 5: in each option what counts is the number of steps, not of epochs."""
    run = run_of(scaffold(option=option), rounds=60, federation=quadratics(rows=(4, 1)))
    list(run)
    assert slope(run.method, run.server) == pytest.approx(OPTIMUM, abs=1e-6)


def test_one_round_by_hand() -> None:
    """From x = 0 with c = 0.4 and c_1 = -0.2: S = 2 steps of rate 0.1 on (w + 1)^2 / 2."""
    method = SCAFFOLD(quadratic(), SGD(0.1), epochs=2, size=1, clients=2)
    name = method.program.loc_name("net.head.weight")
    one = lambda v: torch.full((1, 1), v, dtype=torch.float64)
    data = quadratics().clients[0].train
    down, own = {name: one(0.0), f"c/{name}": one(0.4)}, {f"c/{name}": one(-0.2)}
    reply = method.local(down, own, data, root(1))
    first = 0.0 - 0.1 * ((0.0 + 1) + 0.2 + 0.4)
    second = first - 0.1 * ((first + 1) + 0.2 + 0.4)
    assert slope(method, reply.up) == pytest.approx(second, abs=1e-12)
    new = -0.2 - 0.4 + (0.0 - second) / (2 * 0.1)
    assert float(reply.own[f"c/{name}"]) == pytest.approx(new, abs=1e-12)
    assert new == pytest.approx(((0.0 + 1) + (first + 1)) / 2), "the mean gradient that it met"
    assert float(reply.up[f"c/{name}"]) == pytest.approx(new + 0.2, abs=1e-12), "the change is sent"


def test_the_server_adds_changes_over_all_clients() -> None:
    """Two of five clients answer: c moves by the sum of the changes over 5, x by the mean over 2, times the rate."""
    program = build.program(guide="delta", prior="flat")
    method = SCAFFOLD(program, clients=5, server_rate=0.5)
    server = {**method.init(root(1)), **pack(c=only(program.init(root(2)), program.trainable))}
    ups = []
    for s in (3, 4):
        ups.append({**program.init(root(s)), **pack(c=only(program.init(root(s + 10)), program.trainable))})
    new = method.aggregate(server, stack(ups), Cohort(torch.tensor([1, 3]), torch.tensor([30, 10]), root(0), 1))
    for name in program.trainable:
        x, y = server[name], (ups[0][name] + ups[1][name]) / 2
        torch.testing.assert_close(new[name], x + 0.5 * (y - x))
        k = f"c/{name}"
        torch.testing.assert_close(new[k], server[k] + (ups[0][k] + ups[1][k]) / 5)


def states(run: Run) -> list[Tree]:
    down = run.method.down(run.server, 0)
    return [part(run.own(i, down), "c") for i in range(len(run.train))]


@pytest.mark.parametrize("cohort", [None, Participation(clients=2)], ids=["all", "two of four"])
@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_the_servers_control_variate_is_the_mean_of_the_clients(guide: str, cohort: Participation | None) -> None:
    method = SCAFFOLD(build.program(guide=guide), SGD(0.1), size=4, clients=4)
    run = run_of(method, rounds=5, federation=build.federation((9, 1, 4, 6), test=0), cohort=cohort)
    assert all(not bool(v.any()) for c in [part(run.server, "c"), *states(run)] for v in c.values()), "all start at 0"
    for _ in run:
        mean = scale(_sum(states(run)), 1 / 4)
        close(part(run.server, "c"), mean, tolerance=1e-10)
    assert any(bool(v.any()) for v in part(run.server, "c").values())


def _sum(trees: list[Tree]) -> Tree:
    total = zeros(trees[0])
    for t in trees:
        total = add(total, t)
    return total


def test_one_client_is_gradient_descent_as_in_fedavg() -> None:
    """c = c_1 throughout: the correction vanishes."""
    program, federation = build.program(guide="delta"), build.federation((9,), test=0)
    method = SCAFFOLD(program, SGD(0.1), size=4, clients=1)
    runs = [run_of(m, rounds=3, federation=federation) for m in (method, FedAvg(program, SGD(0.1), size=4))]
    for run in runs:
        list(run)
    close(only(runs[0].server, program.theta0), runs[1].server, tolerance=1e-10)


def test_option_one_is_the_gradient_of_all_rows_at_the_servers_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrofl.methods.scaffold._CHUNK", 4)
    program, rows = build.program(guide="delta"), build.rows(10)
    method = SCAFFOLD(program, SGD(0.1, decay=0.3), option="I", size=4)
    down = method.init(root(1))
    padded = Data(*(torch.cat([v, v.new_zeros(3, *v.shape[1:])]) for v in rows[:2]), rows.n)
    got = part(method.local(down, method.join(down), padded, root(2)).own, "c")
    x = only(down, program.trainable)
    expected = grad(lambda t: program.loss(t, Batch.of(rows.x, rows.y), root(0)))(x)
    close(got, add(expected, scale(x, 0.3)), tolerance=1e-12)


def test_running_statistics_are_averaged_and_have_no_control_variate() -> None:
    program = build.program(guide="delta", batch_norm=True)
    method = SCAFFOLD(program, size=4, clients=2, server_rate=3.0)
    server = method.init(root(1))
    assert set(part(server, "c")) == program.trainable
    replies = [method.local(server, method.join(server), build.rows(n), root(n)) for n in (6, 9)]
    cohort = Cohort(torch.arange(2), torch.tensor([6, 9]), root(0), 1)
    new = method.aggregate(server, stack([r.up for r in replies]), cohort)
    for name in program.buffers:
        torch.testing.assert_close(new[name], (replies[0].up[name] + replies[1].up[name]) / 2)


@pytest.mark.parametrize("option", ["I", "II"])
def test_a_client_without_rows_changes_nothing(option: Any) -> None:
    method = SCAFFOLD(build.program(guide="delta", prior="flat"), option=option, size=4)
    down = method.init(root(1))
    down = {**down, **pack(c=only(method.program.init(root(2)), method.program.trainable))}
    own = method.join(down)
    reply = method.local(down, own, build.rows(1)._replace(n=torch.tensor(0)), root(3))
    assert all(bool((v == 0).all()) for v in part(reply.up, "c").values())
    same(only(reply.up, method.program.theta0), only(down, method.program.theta0))
    same(reply.own, own)


def test_only_plain_steps_are_taken() -> None:
    for optimizer in (Adam(0.01), SGD(0.1, momentum=0.9)):
        with pytest.raises(ValueError, match="momentum and adaptive rates change: use optimizer = 'sgd:RATE'"):
            SCAFFOLD(build.program(), optimizer)
    with pytest.raises(ValueError, match=r"method\.server_rate must be positive, got 0"):
        SCAFFOLD(build.program(), server_rate=0.0)


def test_the_control_variates_are_no_part_of_a_model() -> None:
    run = Case("scaffold", {"finetune": True}).run(rounds=1)
    run.step()
    names = run.method.program.theta0.keys()
    assert run.personal(0).keys() == (run.method.common(run.server) or {}).keys() == names
    plain = FedAvg(run.method.program, epochs=2.0, size=4, finetune=True)
    job = run._personal_job(0)
    same(run.personal(0), plain.personal(only(job.down, names), {}, job.data, job.key))


def test_the_message_is_twice_the_model() -> None:
    run = Case("scaffold").run(rounds=1)
    down = run.method.down(run.server, 0)
    floats = sum(v.numel() for v in run.method.program.theta0.values())
    assert sum(v.numel() for v in down.values()) == 2 * floats
    up = run.method.local(down, run.method.join(down), build.rows(5), root(1)).up
    assert sum(v.numel() for v in up.values()) == 2 * floats
