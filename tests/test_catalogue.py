"""The methods in words: the page in docs/ is what the command prints, and what a method declares is what it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from support import build
from support.cases import NEEDS, Case
from support.documents import ROOT
from typer.testing import CliRunner

from pyrofl.catalogue import describe, markdown
from pyrofl.cli import app
from pyrofl.methods import METHODS, VANEB, FedAvg, FedMAP
from pyrofl.random import root

GUIDES: dict[str, str | Callable[..., Any]] = {
    "delta": "delta",
    "normal": "normal",
    "other": AutoLowRankMultivariateNormal,
}


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["list", "methods", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_the_page_is_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    assert printed("--markdown") == markdown(METHODS) == page, "pyrofl list methods --markdown > docs/methods.md"


def test_only_the_methods_have_a_page() -> None:
    with pytest.raises(ValueError, match="list priors --markdown: only the methods have a page"):
        CliRunner().invoke(app, ["list", "priors", "--markdown"], catch_exceptions=False)


def test_every_method_is_described() -> None:
    for name, method in METHODS.items():
        entry = describe(name, method)
        assert entry.summary.endswith(".") and entry.travels and entry.stays, name
        assert entry.reference or name in ("alone", "pooled"), name
        assert len(entry.travels) < 100 and len(entry.stays) < 100, name


def test_an_entry_is_the_docstring_taken_apart() -> None:
    entry = describe("fedmap", FedMAP)
    assert entry.summary == "Personal models under a common Gaussian prior that the server re-estimates from them."
    assert entry.text[0].startswith("Client: theta_k = argmin") and len(entry.text) == 3
    assert entry.reference == 'Zhang, Kreuter, Chen, Dittmer et al., 2024, "FedMAP".'
    assert entry.guides == ("delta", "normal") and entry.prior == "gaussian"
    assert entry.keys["floor"] == 0.01 and entry.keys["fixed_variance"] is None
    assert not {"program", "pooling"} & entry.keys.keys()
    assert describe("vaneb", VANEB).keys.keys() == {"ridge", "newton", "tolerance", "move"}


def test_defaults_are_written_as_in_a_configuration() -> None:
    page = markdown({"fedavg": FedAvg, "meta_bayfl": METHODS["meta_bayfl"]})
    assert '`optimizer = "sgd:0.1"`' in page and "`finetune = false`" in page
    assert '`optimizers = ["adam:0.01", "adam:0.001", "adam:0.0001"]`' in page


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_the_guides_that_it_names_and_no_others(name: str, guide: str) -> None:
    method = METHODS[name]
    prior = method.prior if guide == method.guide else "gaussian"  # a flat one has no KL
    program = build.program(guide=GUIDES[guide], prior=prior, **NEEDS.get(name, {}))
    assert program.family == guide
    if guide in method.guides:
        rows = build.rows(12)
        server = {"unlabelled": rows.x, "labelled": rows}
        given = {k: v for k, v in server.items() if k in {f.name for f in dataclasses.fields(method)}}
        assert method(program, **given).program is program
    else:
        known = " or ".join(repr(g) for g in method.guides)
        with pytest.raises(ValueError, match=f"{method.__name__} {method.guides_because}: use guide = {known}"):
            method(program)
    assert len(method.guides) == 3 or method.guides_because, "a reason for what is refused"


@pytest.mark.parametrize("name", METHODS)
def test_nothing_stays_where_a_method_says_so(name: str) -> None:
    method = Case(name).build()
    own = method.join(method.down(method.init(root(1)), 0))
    assert bool(own) == (not method.stays.startswith("nothing"))


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.travels.startswith("all but")])
def test_what_is_said_to_stay_does_not_travel(name: str) -> None:
    method = Case(name).build()
    down = method.down(method.init(root(1)), 0)
    kept = method.join(down).keys()
    assert kept and not kept & (down.keys() | method.message(down).keys())
    assert kept | down.keys() == method.program.theta0.keys()
