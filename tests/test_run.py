"""Runs: who takes part, what goes wrong, and that nothing outside a run decides its numbers."""

from __future__ import annotations

import gc
import os
import random as python_random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import build
from support.cases import Case
from support.compare import close, same
from support.process import process_state

from pyrofl.config import ConfigError, Evaluation
from pyrofl.engines import Failure, Job, Sequential, Vectorised
from pyrofl.gate import Outliers
from pyrofl.method import Cohort, Reply
from pyrofl.methods import FedAvg
from pyrofl.optim import SGD
from pyrofl.random import fold, root
from pyrofl.run import Observer, Participation, Run, RunStopped
from pyrofl.store import RunDirectory, read_metrics
from pyrofl.tree import Tree, stack


class Meddling(Sequential):
    """A sequential engine that hands back something else for some clients."""

    def __init__(self, change: dict[int, Callable[[Reply], Any]]):
        self.change = change

    def map(self, hook: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        for i, reply in super().map(hook, jobs):
            yield i, self.change[i](reply) if i in self.change and isinstance(reply, Reply) else reply


class Said(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def run_of(train: Sequence[int] = (9, 6, 4, 7), **options: Any) -> Run:
    method = options.pop("method", None) or FedAvg(build.program(), SGD(0.1), size=4)
    given = {"engine": Sequential(), "rounds": 2, "seed": 1, "evaluation": Evaluation(every=5, draws=2, final_draws=2)}
    return Run(method, options.pop("federation", None) or build.federation(train), **{**given, **options})


def failing(reply: Reply) -> Failure:
    try:
        raise RuntimeError("out of cheese")
    except RuntimeError as error:
        return Failure.of(2, error)


def with_up(**changes: Any) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        name = next(iter(reply.up))
        return reply._replace(up={**reply.up, name: changes["value"](reply.up[name])})

    return change


# ------------------------------------------------------------------ who takes part


@pytest.mark.parametrize(
    ("cohort", "total", "count"),
    [
        (Participation(), 5, 5),
        (Participation(fraction=1.0), 5, 5),
        (Participation(clients=1), 5, 1),
        (Participation(clients=5), 5, 5),
        (Participation(fraction=0.6), 5, 3),
        (Participation(fraction=0.01), 5, 1),
    ],
)
def test_a_cohort_is_a_fraction_or_a_number(cohort: Participation, total: int, count: int) -> None:
    for k in range(10):
        drawn = cohort.draw(total, fold(root(1), k))
        assert len(drawn) == count and drawn == sorted(set(drawn)) and set(drawn) <= set(range(total))


def test_every_client_is_drawn_equally_often() -> None:
    seen = Counter(i for k in range(2000) for i in Participation(clients=2).draw(5, fold(root(1), k)))
    assert all(abs(seen[i] - 800) < 5 * (2000 * 0.4 * 0.6) ** 0.5 for i in range(5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0.5, "clients": 2}, "give fraction or clients, not both"),
        ({"fraction": 0.0}, r"cohort.fraction must be in \(0, 1\], got 0.0; a number of clients is cohort.clients"),
        ({"fraction": 5.0}, r"cohort.fraction must be in \(0, 1\], got 5.0"),
        ({"clients": 0}, "cohort.clients must be at least 1, got 0"),
    ],
)
def test_cohorts_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Participation(**arguments)


def test_more_clients_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"cohort.clients = 6 is more than there are: 5"):
        Participation(clients=6).count(5)


def test_the_cohort_is_what_the_round_reports() -> None:
    run = run_of(cohort=Participation(clients=2))
    for now in run:
        assert len(now.clients) == 2 == len(now.info)
        assert now.bytes_down == now.bytes_up == 2 * sum(v.numel() * v.element_size() for v in run.server.values())


def test_weights_are_of_the_clients_that_took_part() -> None:
    run = run_of(train=(9, 6, 4, 7), engine=Meddling({1: failing}))
    start, key = run.server, fold(run.key, "round", 1)
    run.step()
    ids = [0, 2, 3]
    ups = [run.method.local(start, {}, run.train[i], fold(key, "client", i)).up for i in ids]
    cohort = Cohort(torch.tensor(ids), torch.tensor([9, 4, 7]), key, 1)
    close(run.server, run.method.aggregate(start, stack(ups), cohort), tolerance=1e-12)


# ------------------------------------------------------------------ what goes wrong


def test_clients_without_rows_are_named_and_left_out() -> None:
    run = run_of((9, 0, 4))
    now = run.step()
    assert now.clients == ["site0", "site2"]
    assert now.left_out == {"site1": "it has no training rows"}


def test_a_round_without_any_rows_is_skipped_and_the_state_is_kept(tmp_path: Path) -> None:
    said, directory = Said(), RunDirectory(tmp_path)
    directory.create("")
    run = run_of((0, 0), observer=said, directory=directory)
    start = dict(run.server)
    rounds = list(run)
    assert [now.clients for now in rounds] == [[], []]
    assert said.notes == [f"round {k} was skipped: no client's reply could be used" for k in (1, 2)]
    same(run.server, start)
    assert all(torch.isfinite(v).all() for v in run.server.values())
    assert directory.open()[0] == 2, "a skipped round is committed all the same"


def test_what_a_method_reports_at_its_start_is_not_written_as_a_finding(tmp_path: Path) -> None:
    class Reporting(FedAvg):
        def init(self, key: torch.Tensor) -> Tree:
            return {**super().init(key), "report/score": torch.zeros(())}

        def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
            return {**super().aggregate(server, ups, cohort), "report/score": torch.ones(())}

    method = Reporting(build.program(), SGD(0.1), size=4)
    directory = RunDirectory(tmp_path)
    directory.create("")
    for _ in range(2):  # also where it is gone on with
        run = run_of(method=method, engine=Meddling({0: failing}), train=(4,), directory=directory, rounds=3)
        now = run.step()
        assert (now.skipped, now.report, run.trained) == (True, {}, 0)
    run = run_of(method=method, train=(4,), directory=directory, rounds=3)
    now = run.step()
    assert (now.skipped, now.report, run.trained) == (False, {"score": 1.0}, 3)


def test_a_report_that_is_no_scalar_is_refused_by_name() -> None:
    class Reporting(FedAvg):
        def init(self, key: torch.Tensor) -> Tree:
            return {**super().init(key), "report/score": torch.zeros(2)}

    with pytest.raises(ValueError, match=r"Reporting.init: 'report/score' has shape \(2,\) .* expected a real scalar"):
        run_of(method=Reporting(build.program(), SGD(0.1), size=4))


def nan(v: torch.Tensor) -> torch.Tensor:
    return torch.full_like(v, torch.nan)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_up(value=nan), "holds NaN"),
        (with_up(value=lambda v: v.to(torch.float32)), "has dtype torch.float32, expected torch.float64"),
        (with_up(value=lambda v: v.flatten()[:1]), "has shape (1,), expected"),
        (lambda reply: reply._replace(up={}), "is missing"),
        (lambda reply: reply._replace(up={**reply.up, "x": torch.ones(1)}), "tensor 'x' is not expected"),
        (lambda reply: reply._replace(up=None), "the reply is a NoneType, not named tensors"),
        (lambda reply: reply._replace(own={"mine": torch.tensor(torch.inf)}), "its own state 'mine' is not finite"),
        (lambda reply: reply._replace(own=None), "its own state is a NoneType, not named tensors"),
        (lambda reply: reply._replace(own={"mine": 1.0}), "its own state 'mine' is a float, not a tensor"),
        (
            lambda reply: reply._replace(info={**reply.info, "parts": torch.ones(3)}),
            "FedAvg.local: Reply.info['parts'] has shape (3,) and dtype torch.float32, expected a real scalar",
        ),
        (lambda reply: reply._replace(info={"none": torch.ones(0)}), "Reply.info['none'] has shape (0,)"),
        (lambda reply: reply._replace(info={"what": "fine"}), "FedAvg.local: Reply.info['what'] is a str, expected"),
        (lambda reply: reply._replace(info=None), "FedAvg.local: Reply.info is a NoneType, not named scalars"),
        (failing, "RuntimeError: out of cheese"),
    ],
)
def test_a_bad_reply_is_left_out_with_its_reason_and_the_others_go_on(change: Any, reason: str) -> None:
    good, bad = run_of(engine=Meddling({2: failing})), run_of(engine=Meddling({2: change}))
    for without, now in zip(good, bad, strict=True):
        assert list(now.left_out) == ["site2"] and reason in now.left_out["site2"]
        assert now.clients == ["site0", "site1", "site3"] == list(now.info)
        assert now.bytes_up == without.bytes_up
    same(bad.server, good.server)


def test_the_first_failure_keeps_its_traceback_and_all_are_named() -> None:
    now = run_of(engine=Meddling({1: failing, 2: failing})).step()
    assert list(now.left_out) == ["site1", "site2"]
    assert now.details.startswith("Traceback") and 'raise RuntimeError("out of cheese")' in now.details


class Fragile(FedAvg):
    """FedAvg that cannot bear clients of four rows."""

    def local(self, down: Tree, own: Tree, data: Any, key: Any) -> Reply:
        if data.x.shape[0] == 4:
            raise ZeroDivisionError("four")
        return super().local(down, own, data, key)


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(ragged=1.0)], ids=lambda e: e.name)
def test_a_client_that_raises_does_not_stop_the_others(engine: Any) -> None:
    run = run_of(method=Fragile(build.program(), SGD(0.1), size=4), engine=engine)
    now = run.step()
    assert now.left_out == {"site2": "ZeroDivisionError: four"}
    assert 'raise ZeroDivisionError("four")' in now.details
    assert now.clients == ["site0", "site1", "site3"]


def test_on_error_stop_raises_with_client_round_and_traceback(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    run = run_of(method=Fragile(build.program(), SGD(0.1), size=4), on_error="stop", directory=directory)
    with pytest.raises(RunStopped) as error:
        run.step()
    text = str(error.value)
    assert text.startswith("round 1, client site2: ZeroDivisionError: four\nTraceback")
    assert directory.open()[0] == 0, "the last committed round stands"


def test_a_server_state_that_is_not_finite_never_replaces_a_good_one() -> None:
    class Broken(FedAvg):
        def aggregate(self, server: Tree, ups: Tree, cohort: Cohort) -> Tree:
            return {k: v / 0 for k, v in super().aggregate(server, ups, cohort).items()}

    said = Said()
    run = run_of(method=Broken(build.program(), SGD(0.1), size=4), observer=said)
    start = dict(run.server)
    run.step()
    same(run.server, start)
    assert said.notes[0].startswith("round 1 was skipped: the new server state is unusable: tensor ")


def huge(v: torch.Tensor) -> torch.Tensor:
    return torch.full_like(v, 1e30)


def test_absurd_replies_are_flagged_and_kept_or_rejected() -> None:
    engine = Meddling({2: with_up(value=huge)})
    flagged = run_of(engine=engine).step()
    assert list(flagged.flagged) == ["site2"] and "times the cohort's median" in flagged.flagged["site2"]
    assert flagged.left_out == {} and "site2" in flagged.clients
    rejecting, without = run_of(engine=engine, outliers=Outliers("reject")), run_of(engine=Meddling({2: failing}))
    rejected = rejecting.step()
    without.step()
    assert list(rejected.left_out) == ["site2"] and rejected.flagged == {} and "site2" not in rejected.clients
    same(rejecting.server, without.server)
    ignored = run_of(engine=engine, outliers=Outliers("ignore")).step()
    assert ignored.flagged == {} == ignored.left_out


def test_a_diverging_client_is_named_with_step_and_tensor() -> None:
    federation = build.federation((9, 6))
    wild = federation.clients[1].train._replace(x=federation.clients[1].train.x * 1e300)
    federation = replace(federation, clients=(federation.clients[0], replace(federation.clients[1], train=wild)))
    for engine in (Sequential(), Vectorised()):
        run = run_of(federation=federation, engine=engine, method=FedAvg(build.program(), SGD(1e300), size=2, epochs=3))
        now = run.step()
        assert "site1" in now.left_out and now.left_out["site1"].startswith("step "), now.left_out
        assert "the gradient of 'guide." in now.left_out["site1"]


# ------------------------------------------------------------------ resuming


def test_a_finished_run_does_nothing(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    list(run_of(directory=directory))
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()}
    again = run_of(directory=directory)
    assert again.done and list(again) == []
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file()} == before


def test_rounds_are_the_total_also_after_more_of_them(tmp_path: Path) -> None:
    for name, parts in (("once", (5,)), ("twice", (2, 5))):
        directory = RunDirectory(tmp_path / name)
        directory.create("")
        for rounds in parts:
            list(run_of(directory=directory, rounds=rounds))
    same(*(RunDirectory(tmp_path / name).open()[1] for name in ("once", "twice")))
    rounds = Counter(r.round for r in read_metrics(tmp_path / "twice" / "metrics.csv") if r.split == "run")
    assert rounds == {k: 3 for k in range(1, 6)}


def test_fewer_rounds_than_are_done_are_read_and_not_gone_on_with(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    list(run_of(directory=directory, rounds=3))
    with pytest.raises(ConfigError, match=r"rounds = 2 is the total, and round 3 of .* is done: give rounds=3 or more"):
        run_of(directory=directory, rounds=2)
    assert run_of(directory=directory, rounds=2, read_only=True).round == 3
    assert run_of(directory=directory, rounds=3).done


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    run_of(directory=directory, identity="one").step()
    with pytest.raises(ValueError, match=r"was made with another configuration: compare its config\.toml"):
        run_of(directory=directory, identity="two")


def test_another_network_is_refused_by_its_first_tensor(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    run_of(directory=directory).step()
    with pytest.raises(ValueError, match=r"server.safetensors has tensor 'guide.locs.net.body.0.bias_unconstrained'"):
        run_of(directory=directory, method=FedAvg(build.program(guide="delta")))


def test_a_run_starts_from_another_runs_server() -> None:
    first = run_of()
    list(first)
    second = run_of(start=first.server)
    same(second.server, first.server)
    with pytest.raises(ValueError, match=r"start has tensor 'x', unlike this model"):
        run_of(start={**first.server, "x": torch.ones(1)})
    some = next(iter(first.method.program.theta0))
    with pytest.raises(ValueError, match=r"start lacks tensor .* unlike this model"):
        run_of(start={k: v for k, v in first.server.items() if k != some})


def test_an_interrupted_round_is_not_counted(tmp_path: Path) -> None:
    class Interrupting(Sequential):
        def map(self, hook: Any, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
            if hook.__name__ == "personal":
                raise KeyboardInterrupt
            return super().map(hook, jobs)

    directory = RunDirectory(tmp_path)
    directory.create("")
    run = run_of(directory=directory, engine=Interrupting(), evaluation=Evaluation(every=2, draws=2), rounds=3)
    run.step()
    with pytest.raises(KeyboardInterrupt):
        run.step()
    assert run.committed == 1 == directory.open()[0]


def contents(path: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_reading_a_run_that_still_trains_changes_nothing_and_takes_its_last_commit(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    run = run_of(directory=directory, method=Case("alone").build(), rounds=3)
    run.step()
    committed, own = dict(run.server), dict(run.own(0, {}))
    with open(directory.metrics, "a") as f:  # the next round, half written
        f.write("2,site0,tr")
    run.states.put(0, {k: v + 1 for k, v in own.items()}, 2)
    (tmp_path / ".server.safetensors.1.tmp").write_bytes(b"half")
    before = contents(tmp_path)
    reading = run_of(directory=directory, method=Case("alone").build(), rounds=3, read_only=True)
    assert reading.round == 1 and contents(tmp_path) == before
    same(reading.server, committed)
    same(reading.own(0, {}), own)
    with pytest.raises(ValueError, match="opened to be read"):
        reading.step()
    assert contents(tmp_path) == before


def test_reading_a_place_without_a_round_commits_none(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds no round yet"):
        run_of(directory=directory, read_only=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("read_only", [True, False])
def test_rounds_whose_commit_is_lost_are_not_begun_again(tmp_path: Path, read_only: bool) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    run_of(directory=directory).step()
    directory.server.unlink()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"server\.safetensors is missing, though .*metrics\.csv .*--overwrite"):
        run_of(directory=directory, read_only=read_only)
    assert contents(tmp_path) == before


# ------------------------------------------------------------------ what does not matter


def test_a_run_without_a_directory_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    list(Case("meta_bayfl").run())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("method", ["meta_bayfl", "mc_dropout"])
def test_seeds_of_the_process_have_no_effect_and_are_left_alone(method: str) -> None:
    servers = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), python_random.seed(seed)  # noqa: NPY002
        before = process_state()
        run = Case(method).run(engine=Vectorised())
        list(run)
        assert process_state() == before
        servers.append(run.server)
    same(*servers)


def test_another_seed_of_the_run_gives_other_numbers() -> None:
    one, two = run_of(seed=1), run_of(seed=2)
    assert all(
        not torch.equal(one.server[k], two.server[k])
        for k in one.server
        if k.endswith("weight_unconstrained") and "locs" in k
    )


def test_two_runs_in_one_process_share_nothing() -> None:
    program = build.program()
    methods = [FedAvg(program, SGD(0.1), size=4), FedAvg(program, SGD(0.3), size=4)]
    alone = []
    for method in methods:
        run = run_of(method=method)
        list(run)
        alone.append(run.server)
    first, second = (run_of(method=method) for method in methods)
    for _ in range(2):
        first.step(), second.step()
    same(first.server, alone[0])
    same(second.server, alone[1])


def test_the_default_dtype_of_the_process_does_not_matter() -> None:
    method = Case("meta_bayfl").build()
    plain = run_of(method=method)
    list(plain)
    torch.set_default_dtype(torch.float64)
    try:
        other = run_of(method=method)
        list(other)
    finally:
        torch.set_default_dtype(torch.float32)
    close(other.server, plain.server, tolerance=1e-12)


def test_200_tiny_rounds_keep_memory_flat(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create("")
    method = Case("alone").build()
    run = run_of(
        (3, 2), method=method, directory=directory, rounds=200, evaluation=Evaluation(every=50, draws=2, final_draws=2)
    )
    counts = {}
    for now in run:
        if now.number in (60, 199):
            gc.collect()
            tensors = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
            counts[now.number] = (len(gc.get_objects()), tensors)
    assert counts[199][1] <= counts[60][1] + 5, "tensors pile up"
    assert counts[199][0] <= counts[60][0] + 500, "objects pile up"
    assert len(os.listdir(tmp_path / "clients")) == 2


# ------------------------------------------------------------------ scores


def test_scores_come_every_so_many_rounds_and_at_the_end() -> None:
    run = run_of(rounds=5, evaluation=Evaluation(every=2, draws=2, final_draws=2))
    scored = [now.number for now in run if now.scores]
    assert scored == [2, 4, 5]
    assert set(run.bins) == {"personal", "global"}


def test_the_last_round_is_scored_with_the_final_draws() -> None:
    seen = []

    class Counting(FedAvg):
        def predict(self, theta: Tree, x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            seen.append(1)
            return super().predict(theta, x, key)

    run = run_of(
        (4, 4), method=Counting(build.program(), size=4), evaluation=Evaluation(every=1, draws=2, final_draws=7)
    )
    run.step()
    assert len(seen) == 2 * 2 * 2  # clients, models, draws
    seen.clear()
    run.step()
    assert len(seen) == 2 * 2 * 7


def test_rows_common_to_all_clients_are_scored_once() -> None:
    federation = replace(build.federation((4, 4)), common=build.rows(6, seed=9))
    now = list(run_of(federation=federation))[-1]
    assert "(common)" in now.scores["global"] and "(common)" not in now.scores["personal"]


@pytest.mark.parametrize("name", ["every", "draws", "final_draws", "bins"])
def test_evaluations_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"evaluate\.{name} must be at least 1, got 0"):
        Evaluation(**{name: 0})
