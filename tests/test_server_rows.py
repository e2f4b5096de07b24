"""Rows of the server's own: where they come from, who else never sees them, and how a configuration asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.tables import small

from pyrofl import assembly
from pyrofl.assembly import assemble
from pyrofl.config import ConfigError, config_of
from pyrofl.data import Dataset
from pyrofl.federation import counts, federate
from pyrofl.random import root
from pyrofl.server_rows import borrow

DIGITS = {"name": "digits", "clients": 3, "limit": 20}


def numbered(n: int = 100, **more: Any) -> Dataset:
    """A data set whose x is the row number, so that rows can be followed."""
    return Dataset(torch.arange(n).float().unsqueeze(1), torch.arange(n) % 4, "categorical", tuple("abcd"), **more)


def images(n: int, size: int, channels: int = 1) -> Dataset:
    x = torch.arange(n).float().reshape(n, 1, 1, 1).expand(n, channels, size, size)
    return Dataset(x, torch.zeros(n).long(), "categorical", ("a", "b"), test=(-1 - x, torch.zeros(n).long()))


@pytest.mark.parametrize("unlabelled, labelled", [(30, 0), (0, 12), (30, 12)])
def test_no_client_holds_a_row_of_the_server(unlabelled: int, labelled: int) -> None:
    made = federate(numbered(), key=root(1), clients=4, unlabelled=unlabelled, labelled=labelled, test=0.3)
    at_clients = [int(v) for c in made.clients for d in (c.train, c.test) for v in d.x[:, 0]]
    at_server = [] if made.unlabelled is None else made.unlabelled[:, 0].long().tolist()
    if made.labelled is not None:
        at_server += made.labelled.x[:, 0].long().tolist()
        assert made.labelled.y.tolist() == [int(v) % 4 for v in made.labelled.x[:, 0]]
    assert len(at_server) == unlabelled + labelled
    assert sorted(at_clients + at_server) == list(range(100))
    assert int(counts(made, split="all").sum()) == 100 - unlabelled - labelled
    assert f"{unlabelled} rows without labels and {labelled} with are the server's own" in made.notes


def test_without_rows_of_the_server_nothing_changes() -> None:
    made = federate(numbered(), key=root(1), clients=4)
    assert made.unlabelled is None and made.labelled is None
    assert not any("server" in note for note in made.notes)


def test_shared_test_rows_never_reach_the_server() -> None:
    set_ = numbered(test=(-torch.ones(50, 1), torch.zeros(50).long()))
    made = federate(set_, key=root(1), clients=2, unlabelled=60, labelled=20, test=0.0)
    assert made.unlabelled is not None and made.labelled is not None
    assert float(made.unlabelled.min()) >= 0 and float(made.labelled.x.min()) >= 0
    assert float(borrow(images(5, 2), (1, 2, 2), key=root(0)).min()) >= 0


def test_natural_clients_lose_rows_and_keep_their_order() -> None:
    site = torch.arange(3).repeat_interleave(torch.tensor([30, 30, 40]))
    made = federate(numbered(site=site, sites=("a", "b", "c")), key=root(2), unlabelled=20, test=0.0)
    for k, c in enumerate(made.clients):
        assert all(site[int(v)] == k for v in c.train.x[:, 0])
    assert sum(c.train.rows for c in made.clients) == 80


def test_the_servers_rows_are_standardised_by_their_own_numbers() -> None:
    made = federate(numbered(), key=root(1), clients=2, unlabelled=30, labelled=10, standardise="client")
    assert made.unlabelled is not None and made.labelled is not None
    own = torch.cat([made.unlabelled, made.labelled.x]).double()
    np.testing.assert_allclose([own.mean(), own.std(correction=0)], [0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unlabelled": -1}, "unlabelled is a number of the server's rows, 0 or more, got -1"),
        ({"labelled": -2}, "labelled is a number of the server's rows, 0 or more, got -2"),
        ({"unlabelled": 60, "labelled": 40}, "unlabelled \\+ labelled = 100 rows are for the server, and the set has"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federate(numbered(), key=root(1), clients=2, **arguments)


def test_images_of_another_set_are_resized_and_drawn_at_random() -> None:
    x = borrow(images(20, 8, channels=3), (3, 4, 4), key=root(3), rows=6)
    assert x.shape == (6, 3, 4, 4)
    numbers = x[:, 0, 0, 0].tolist()
    assert len(set(numbers)) == 6 and numbers != sorted(numbers)
    with pytest.raises(ValueError, match=r"its rows have shape \(3, 8, 8\), the clients' have \(1, 8, 8\)"):
        borrow(images(20, 8, channels=3), (1, 8, 8), key=root(3))
    with pytest.raises(ValueError, match="rows must be from 1 to 20, as many as the set has"):
        borrow(images(20, 8), (1, 8, 8), key=root(3), rows=21)


# ------------------------------------------------------------------ the configuration


def made(**data: Any) -> assembly.Assembled:
    return assemble(config_of(small(data={**DIGITS, **data})))


def test_a_number_of_rows() -> None:
    both = made(unlabelled=30, labelled=20)
    assert both.federation.unlabelled is not None and both.federation.labelled is not None
    assert len(both.federation.unlabelled) == 30 and both.federation.labelled.rows == 20
    assert both.config.data["unlabelled"] == 30
    again = assemble(config_of(small(data=both.config.data)))
    assert torch.equal(again.federation.unlabelled, both.federation.unlabelled)


def test_precision_reaches_the_servers_rows() -> None:
    double = assemble(config_of(small(data={**DIGITS, "unlabelled": 30, "labelled": 20}, precision="float64")))
    assert double.federation.unlabelled is not None and double.federation.labelled is not None
    assert double.federation.unlabelled.dtype == double.federation.labelled.x.dtype == torch.float64


def test_another_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(assembly.DATASETS, "other", lambda *, limit=9: images(limit, 16))
    there = made(images=True, unlabelled={"name": "other", "rows": 5})
    assert there.federation.unlabelled is not None and there.federation.unlabelled.shape == (5, 1, 8, 8)
    assert sum(c.train.rows + c.test.rows for c in there.federation.clients) == 200, "the clients lose nothing"
    assert there.config.data["unlabelled"] == {"name": "other", "limit": 9, "rows": 5}
    assert "5 rows of other without labels are the server's own" in there.federation.notes
    again = assemble(config_of(small(data=there.config.data)))
    assert torch.equal(again.federation.unlabelled, there.federation.unlabelled)


@pytest.mark.parametrize(
    ("unlabelled", "message"),
    [
        ({"rows": 5}, "data.unlabelled.name is missing"),
        ({"name": "digits", "rows": 5}, "data.unlabelled names the clients' own set"),
        ({"name": "synthetic", "row": 5}, 'unknown key data.unlabelled.row; did you mean "rows"?'),
        ({"name": "synthetic", "features": 64}, "data.unlabelled: its rows have shape"),
        ("some", "data.unlabelled = 'some'"),
    ],
)
def test_mistakes_are_named(unlabelled: Any, message: str) -> None:
    shape = {"images": True} if isinstance(unlabelled, dict) and "features" in unlabelled else {}
    with pytest.raises(ConfigError) as error:
        made(unlabelled=unlabelled, **shape)
    assert message in str(error.value)


def test_less_rows_at_the_server_do_not_move_the_run_of_a_method_without_need_of_them() -> None:
    plain, same = made(), made(unlabelled=0, labelled=0)
    assert replace(plain.federation, clients=()) == replace(same.federation, clients=())
    for a, b in zip(plain.federation.clients, same.federation.clients, strict=True):
        assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.x, b.test.x)
