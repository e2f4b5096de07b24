"""Evaluation options: shared rows balanced or matched, temperatures, and what is kept of rows and posteriors."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from support import build
from support.cases import Case

from pyrofl import evaluate, metrics
from pyrofl.config import ConfigError, Evaluation
from pyrofl.data import Client, Data, Federation, Scaling
from pyrofl.datasets.synthetic import synthetic
from pyrofl.engines import Sequential
from pyrofl.federation import federate
from pyrofl.guides import GUIDES
from pyrofl.methods import METHODS, FedAvg
from pyrofl.optim import SGD
from pyrofl.posteriors import Posteriors
from pyrofl.random import fold, root
from pyrofl.run import Run
from pyrofl.scoring import evaluated
from pyrofl.shared_rows import SharedRows, shared_rows
from pyrofl.store import RunDirectory

ALL = Evaluation(every=1, draws=3, final_draws=3, balanced=True, matched=True)


def run_of(federation: Federation, *, method: FedAvg | None = None, **options: Any) -> Run:
    method = method or FedAvg(build.program(guide="delta", prior="flat"), SGD(0.1), size=4)
    return Run(method, federation, engine=Sequential(), rounds=options.pop("rounds", 1), seed=1, **options)


def skewed() -> Federation:
    """Two clients: one with classes 0 and 1 only, one with all three."""
    every = build.rows(60, seed=3)
    few = every.y < 2
    clients = (
        Client("few", Data.of(every.x[few], every.y[few]), build.rows(5, seed=4)),
        Client("all", every, build.rows(9, seed=5)),
    )
    return Federation(clients, "categorical", tuple("abc"))


# ------------------------------------------------------------------ balanced and matched


def test_balanced_and_matched_scores_are_those_of_the_reweighted_rows():
    run = run_of(skewed(), evaluation=ALL)
    now = run.step()
    test = shared_rows(run.federation)
    assert len(test.x) == 14
    y = test.y.numpy()
    for i, name in enumerate(("few", "all")):
        out = run.method.predict(run.personal(i), test.x, root(0))
        right = (out.argmax(-1) == test.y).double().numpy()
        recall = np.mean([right[y == k].mean() for k in np.unique(y)])
        assert now.scores["balanced"][name]["accuracy"] == pytest.approx(recall)
        own = np.bincount(run.federation.clients[i].train.y, minlength=3)
        here = np.bincount(y, minlength=3)
        expected = sum(own[k] / own.sum() * right[y == k].mean() for k in range(3) if own[k])
        assert (here > 0).all()
        assert now.scores["matched"][name]["accuracy"] == pytest.approx(expected)


def test_matched_rows_of_a_class_that_the_client_lacks_do_not_count():
    """The client without class c is scored on rows of the other classes alone."""
    run = run_of(skewed(), evaluation=ALL)
    now = run.step()
    rows = shared_rows(run.federation)
    of_two = rows.y < 2
    y = rows.y[of_two].numpy()
    arrays = evaluate.predict(run.method, run.personal(0), Data.of(rows.x[of_two], rows.y[of_two]), root(0), draws=3)
    weights = metrics.matched_weights(y, np.bincount(run.federation.clients[0].train.y, minlength=3)[:3])
    for score in ("nll", "brier", "accuracy"):
        expected = metrics.scores("categorical", weights=weights, **arrays)[score]
        assert now.scores["matched"]["few"][score] == pytest.approx(expected)


def test_a_class_without_shared_rows_leaves_the_matched_scores_undefined():
    made = skewed()
    clients = tuple(replace(c, test=Data.of(c.test.x[c.test.y < 2], c.test.y[c.test.y < 2])) for c in made.clients)
    now = run_of(replace(made, clients=clients), evaluation=ALL).step()
    assert now.scores["matched"]["few"]["accuracy"] is not None
    assert now.scores["matched"]["all"]["accuracy"] is None
    assert now.scores["balanced"]["all"]["accuracy"] is not None


def test_the_data_sets_own_test_rows_come_first():
    common = build.rows(7, seed=9)
    assert shared_rows(replace(skewed(), common=common)) is common


def test_each_client_sees_the_shared_rows_through_its_own_scaling():
    made = federate(synthetic(sites=3, rows=20, shift=3.0), key=root(2), standardise="client")
    plain = federate(synthetic(sites=3, rows=20, shift=3.0), key=root(2))
    together = shared_rows(made)
    torch.testing.assert_close(together.x, torch.cat([c.test.x for c in plain.clients]))

    seen: list[torch.Tensor] = []

    class Looking(FedAvg):
        def predict(self, theta, x, key):
            seen.append(x)
            return super().predict(theta, x, key)

    method = Looking(build.program(guide="delta", prior="flat", dtype=torch.float32), SGD(0.1), size=4)
    wide = replace(made, likelihood="categorical", classes=tuple("abc"))
    visitor = SharedRows(method, wide, ("balanced",), key=root(0), draws=1, together=False)
    for i, client in enumerate(made.clients):
        visitor.see(i, method.init(root(1)))
        assert client.transform is not None
        torch.testing.assert_close(seen[-1], client.transform.apply(together).x)
        own = slice(4 * i, 4 * i + 4)
        torch.testing.assert_close(seen[-1][own], client.test.x, atol=1e-5, rtol=1e-5)


def test_scaling_goes_there_and_back():
    data = build.rows(6)
    scaling = Scaling(torch.tensor([1.0, -2.0, 3.0]).double(), torch.tensor([0.5, 2.0, 1.0]).double())
    torch.testing.assert_close(scaling.undo(scaling.apply(data)).x, data.x)
    torch.testing.assert_close(scaling.apply(data).x[:, 0], (data.x[:, 0] - 1) / 0.5)


@pytest.mark.parametrize("method", ["alone", "pooled", "meta_bayfl", "fedmap", "mc_dropout"])
def test_every_kind_of_method_has_shared_scores(method):
    run = Case(method).run(rounds=1)
    run.evaluation = ALL
    now = run.step()
    assert now.scores["balanced"].keys() == now.scores["matched"].keys() == set(run.names)
    assert now.scores["matched"]["site4"]["accuracy"] is None  # it has no training rows, hence no label mix
    assert all(0 <= s["accuracy"] <= 1 for s in now.scores["balanced"].values())


def test_asking_for_the_options_changes_no_other_score():
    with_, without = (run_of(skewed(), evaluation=e).step().scores for e in (ALL, Evaluation(1, 3, 3)))
    assert {m: with_[m] for m in without} == without


def test_options_that_do_not_fit_are_refused_at_once():
    counts = federate(synthetic(likelihood="poisson", sites=2, rows=9), key=root(1))
    with pytest.raises(ConfigError, match=r"evaluate\.matched is for classes, and these data are poisson"):
        run_of(counts, evaluation=Evaluation(matched=True))
    with pytest.raises(ConfigError, match=r"evaluate\.temperature needs validation rows: .* data\.validation = 0\.2"):
        run_of(skewed(), evaluation=Evaluation(temperature=True))


def test_few_personal_models_are_there_at_once():
    """However many clients there are, at most 64 are asked for together, and each is passed on as it comes."""
    asked: list[int] = []

    class Counting(Sequential):
        def map(self, hook, jobs):
            asked.append(len(jobs))
            return super().map(hook, jobs)

    run = run_of(build.federation([3] * 130, test=2), evaluation=ALL)
    run.engine = Counting()
    models = run.personal_models()
    assert next(models)[0] == 0 and asked == [64]
    assert [i for i, _ in models] == list(range(1, 130)) and asked == [64, 64, 2]


# ------------------------------------------------------------------ validation rows and temperature


def test_validation_rows_are_training_rows_of_which_no_model_learns():
    whole = federate(synthetic(sites=3, rows=20), key=root(5))
    made = federate(synthetic(sites=3, rows=20), key=root(5), validation=0.25)
    for a, b in zip(whole.clients, made.clients):
        assert b.valid is not None and (b.train.rows, b.valid.rows) == (12, 4)
        torch.testing.assert_close(torch.cat([b.train.x, b.valid.x]), a.train.x)
        torch.testing.assert_close(b.test.x, a.test.x)
        assert a.valid is None
    assert any("validation rows: 25%" in note for note in made.notes)
    with pytest.raises(ValueError, match=r"validation is .* got 1"):
        federate(synthetic(sites=3, rows=20), key=root(5), validation=1.0)


def test_a_client_of_one_row_keeps_it_for_training():
    made = federate(synthetic(sites=2, rows=1), key=root(5), validation=0.5, test=0)
    assert [(c.train.rows, c.valid.rows) for c in made.clients if c.valid] == [(1, 0), (1, 0)]


def test_validation_rows_are_scaled_with_the_rest():
    made = federate(synthetic(sites=2, rows=40), key=root(5), validation=0.5, standardise="client")
    plain = federate(synthetic(sites=2, rows=40), key=root(5), validation=0.5)
    for a, b in zip(made.clients, plain.clients):
        assert a.valid is not None and b.valid is not None and a.transform is not None
        torch.testing.assert_close(a.valid.x, a.transform.apply(b.valid).x)
        torch.testing.assert_close(a.train.x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)


def test_temperature_is_fitted_on_validation_rows_alone_and_mends_an_overconfident_model():
    """Weights ten times too large: the temperature is about ten on validation rows, whatever the test rows say."""
    train = build.rows(400, seed=1)
    clients = (Client("a", train, build.rows(300, seed=2), build.rows(300, seed=3)),)
    federation = Federation(clients, "categorical", tuple("abc"))
    method = FedAvg(build.program(guide="delta", prior="flat"), SGD(0.5), epochs=20, size=32)
    run = run_of(federation, method=method, evaluation=Evaluation(1, 2, 2, temperature=True))
    run.step()
    run.server = {k: v * (10 if ".head." in k else 1) for k, v in run.server.items()}

    def found(test: Data) -> dict[str, Any]:
        run.federation = replace(federation, clients=(replace(clients[0], test=test),))
        return evaluated(run).scores

    scores = found(clients[0].test)
    raw, mended = scores["personal"]["a"], scores["tempered"]["a"]
    assert 5 < mended["temperature"] < 20
    assert mended["nll"] < raw["nll"] and mended["ece"] < 0.5 * raw["ece"]
    assert mended["accuracy"] == raw["accuracy"]
    other = found(build.rows(50, seed=8))
    assert other["tempered"]["a"]["temperature"] == mended["temperature"]


def test_tempered_scores_of_two_classes_and_of_a_pooled_method(tmp_path: Path):
    made = federate(synthetic(sites=2, rows=30), key=root(5), validation=0.3)
    method = METHODS["pooled"](build.program(guide="delta", prior="flat", dtype=torch.float32), size=8)
    wide = replace(made, likelihood="categorical", classes=tuple("abc"))
    now = run_of(wide, method=method, evaluation=Evaluation(1, 2, 2, temperature=True)).step()
    assert now.scores["tempered"].keys() == {"client0", "client1", "(pooled)"}


# ------------------------------------------------------------------ posteriors


def test_distance_is_the_wasserstein_distance_of_mean_field_posteriors():
    program = build.program()
    one = program.posterior(program.init(root(1)))
    far = {s: (loc + 0.1, scale * 2) for s, (loc, scale) in one.items()}
    seen = Posteriors(program, 2)
    for i, q in enumerate((one, far)):
        seen.see(i, program.guide_of(q))
    kept = {k: torch.as_tensor(v) for k, v in seen.record().values.items()}
    expected = math.sqrt(sum(float((0.1**2 + scale**2).sum()) for _, scale in one.values()))
    torch.testing.assert_close(
        kept["distance"], torch.tensor([[0.0, expected], [expected, 0.0]]).double(), atol=1e-5, rtol=1e-5
    )
    site = program.sites[0]
    loc, scale = far[site]
    torch.testing.assert_close(kept["width"][1, 0].double(), scale.median(), rtol=1e-5, atol=0)
    torch.testing.assert_close(kept["snr"][1, 0].double(), (loc.abs() / scale).median(), rtol=1e-5, atol=0)


def test_hashed_distances_are_right_to_a_few_percent():
    rng = np.random.default_rng(0)
    seen = Posteriors(build.program(), 3)
    v = torch.tensor(rng.normal(size=(3, 40_000)))
    short = torch.stack([seen._short(row) for row in v])
    assert short.shape == (3, 4096)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert float((short[i] - short[j]).norm() / (v[i] - v[j]).norm()) == pytest.approx(1, abs=0.05)


def test_points_have_distances_and_no_width_and_other_guides_have_neither(monkeypatch: pytest.MonkeyPatch):
    program = build.program(guide="delta", prior="flat")
    seen = Posteriors(program, 1)
    seen.see(0, program.init(root(1)))
    kept = seen.record().values
    assert np.isnan(np.asarray(kept["width"])).all() and kept["distance"].shape == (1, 1)
    monkeypatch.setitem(GUIDES, "full", AutoMultivariateNormal)
    program = build.program(guide="full")
    seen = Posteriors(program, 1)
    seen.see(0, program.init(root(1)))
    assert seen.record().values == {}


def test_at_most_200_clients_are_compared():
    assert len(Posteriors(build.program(), 1000).compared) == 200
    assert Posteriors(build.program(), 200).compared == list(range(200))


# ------------------------------------------------------------------ on disk


def test_an_evaluation_leaves_rows_posteriors_and_the_partition(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    directory.create("")
    run = run_of(build.federation((5, 8)), directory=directory, evaluation=Evaluation(2, 3, 3), rounds=3)
    run.step()
    assert directory.load_record("rows-personal") is None  # no evaluation yet
    now = run.step()
    found = directory.load_record("rows-personal")
    assert found is not None
    number, rows = found[0], found[1].values
    assert number == 2 and rows["client"].tolist() == [0] * 4 + [1] * 4
    for i, name in enumerate(run.names):
        mine = rows["client"] == i
        assert rows["right"][mine].mean() == pytest.approx(now.scores["personal"][name]["accuracy"])
        assert rows["nll"][mine].mean() == pytest.approx(now.scores["personal"][name]["nll"], rel=1e-5)
    assert directory.load_record("posteriors") is not None
    lines = directory.partition.read_text().splitlines()
    assert lines[0] == "client,train,test,a,b,c" and lines[1].startswith("site0,5,4,")
    assert sum(map(int, lines[1].split(",")[3:])) == 5
    directory.clear()
    assert [p.name for p in tmp_path.iterdir()] == ["clients"]


def test_rows_of_numbers_are_kept_too():
    draws = np.arange(6.0).reshape(3, 2)
    arrays = {"y": np.array([1.0, 2.0]), "draws": draws, "log_likelihood": -draws}
    rows = evaluate.by_row("gaussian", {"a": arrays, "empty": {}, "b": arrays}, fold(root(0), "rows"))
    assert rows["client"].tolist() == [0, 0, 2, 2]
    assert rows["pit"].shape == (4,)


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_a_model_that_diverged_is_named_with_the_remedy(diverged):
    class Wild(FedAvg):
        def personal(self, down, own, data, key):
            theta = super().personal(down, own, data, key)
            return {k: v + diverged if data.rows == 3 else v for k, v in theta.items()}

    method = Wild(build.program(guide="delta", prior="flat"), SGD(0.1), size=4)
    for shared in (False, True):
        evaluation = Evaluation(every=1, draws=2, final_draws=2, balanced=shared)
        run = run_of(build.federation((4, 3)), method=method, evaluation=evaluation)
        with pytest.raises(ValueError, match=r"client site1: .* diverged: lower method\.optimizer's rate"):
            run.step()
