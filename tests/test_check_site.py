"""`pyrofl check-site`, and the schema that sites agree on."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from support.documents import ROOT
from support.stand_in import HOSPITALS, heart
from typer.testing import CliRunner

from pyrofl import assemble
from pyrofl.cli import app
from pyrofl.config import ConfigError, config_of
from pyrofl.schema import Schema

FOUR = ROOT / "experiments" / "deployment" / "four_sites.toml"
SCHEMA = Schema(("a", "b"), (3,), "categorical", ("x", "y"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    heart(tmp_path / "heart", np.random.default_rng(0))
    monkeypatch.chdir(ROOT)
    return tmp_path / "heart"


def checked(here: Path, site: str, *overrides: str, config: Path = FOUR) -> Any:
    file = here / f"processed.{site}.data"
    return CliRunner().invoke(
        app, ["check-site", str(file), "--config", str(config), "--site", site, "method.epochs=1", *overrides]
    )


def test_prints_names_shapes_and_bytes_of_what_leaves(here: Path) -> None:
    done = checked(here, "cleveland")
    assert done.exit_code == 0, done.output
    (weights,) = [line for line in done.output.splitlines() if "locs.net.head.weight" in line]
    assert "(1, 13)" in weights and "float32" in weights and " 52 " in weights
    assert "112 B up and 112 B down each round" in done.output  # 14 locations and 14 scales
    assert "the numbers of rows (15 for training, 8 for scores)" in done.output
    assert "one number each: kl, loss, nll" in done.output
    assert "fits the federation's schema" in done.output


def test_compression_and_privacy_are_shown(here: Path) -> None:
    done = checked(here, "va", "compression=int8")
    assert "28 B" not in done.output and "44 B up and 112 B down" in done.output  # 28 codes and four sizes
    pytest.importorskip("dp_accounting")
    done = checked(here, "va", "privacy={ clip = 1.0, noise = 8.0 }", "method.weighting=uniform")
    assert "clipped and noised: epsilon" in done.output and "nothing else is sent" in done.output


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [12]}, r"data: the data of site va do not fit: shape is \[13\] here and \[12\]"),
        ({"classes": ["no", "yes"]}, "classes is .*'healthy'.* here and .*'no'"),
        ({"sites": ["cleveland", "hungarian"]}, "site 'va' is none of the federation's: cleveland, hungarian"),
        ({"likelihood": "normal"}, "schema.likelihood must be one of categorical, bernoulli, gaussian, poisson"),
        ({"sites": ["va", "va"]}, "schema.sites must name each site once"),
        ({"colour": "red"}, "unknown key schema.colour"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_both_sides(here: Path, change: dict[str, Any], reason: str) -> None:
    table = tomllib.loads(FOUR.read_text())
    table["schema"] |= change
    file = here / "other.toml"
    file.write_text(tomli_w.dumps(table))
    done = checked(here, "va", config=file)
    with pytest.raises(ConfigError, match=reason):
        raise done.exception


def test_rows_of_other_sites_are_not_taken_for_the_sites_own(here: Path) -> None:
    """A neighbour's file, and the folder of all four."""
    options = ["--config", str(FOUR), "--site", "va"]
    for place, whose in (
        (here / "processed.cleveland.data", "cleveland"),
        (here, "cleveland, hungarian, switzerland, va"),
    ):
        done = CliRunner().invoke(app, ["check-site", str(place), *options])
        with pytest.raises(ConfigError, match=f"data: the rows are those of {whose}, and not of va"):
            raise done.exception
    (here / "processed.va.data").write_text("")
    with pytest.raises(ConfigError, match=r"processed\.va\.data is empty"):
        raise checked(here, "va").exception


def test_a_site_may_hold_a_table_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CSV file without a column of sites, as docs/deployment.md says; and what is told where it does not fit."""
    monkeypatch.chdir(ROOT)
    table = tomllib.loads(FOUR.read_text())
    table["data"] = {"name": "csv", "target": "out", "likelihood": "bernoulli", "features": ["age", "sex"]}
    table["data"] |= {"classes": ["no", "yes"], "test": 0.34}
    table["schema"] = {"sites": ["a", "b"], "shape": [2], "likelihood": "bernoulli", "classes": ["no", "yes"]}
    config, file = tmp_path / "tables.toml", tmp_path / "mine.csv"
    config.write_text(tomli_w.dumps(table))
    rows = [f"{30 + i},{'yes' if i % 3 else 'no'},{i % 2}" for i in range(12)]
    file.write_text("\n".join(["age,out,sex", *rows]))
    invoke = lambda: CliRunner().invoke(app, ["check-site", str(file), "--config", str(config), "--site", "b"])
    done = invoke()
    assert done.exit_code == 0, done.exception
    assert "the numbers of rows (8 for training, 4 for scores)" in done.output
    file.write_text("\n".join(["age,out", *(r.rpartition(",")[0] for r in rows)]))
    with pytest.raises(ConfigError, match=r"unknown column of mine\.csv 'sex'; known are age, out"):
        raise invoke().exception
    file.write_text("")
    with pytest.raises(ConfigError, match=r"mine\.csv"):
        raise invoke().exception


def test_a_site_loads_its_own_rows_and_no_others(here: Path) -> None:
    table = tomllib.loads(FOUR.read_text())
    alone = config_of({**table, "data": {**table["data"], "path": str(here / "processed.va.data")}})
    together = config_of({**table, "data": {**table["data"], "path": str(here)}})
    one, every = assemble(alone, at="va"), assemble(together)
    assert [c.train.rows for c in one.federation.clients] == [0, 0, 0, 15]
    for part in ("train", "test"):
        mine, same = getattr(one.federation.clients[3], part), getattr(every.federation.clients[3], part)
        assert torch.equal(mine.x, same.x) and torch.equal(mine.y, same.y)


def test_the_server_needs_no_rows_and_starts_from_the_same_model(here: Path) -> None:
    table = tomllib.loads(FOUR.read_text())
    server = assemble(config_of(table), at="server")
    whole = assemble(config_of({**table, "data": {**table["data"], "path": str(here)}}))
    assert [c.name for c in server.federation.clients] == list(HOSPITALS)
    assert all(c.train.rows == 0 for c in server.federation.clients)
    key = torch.tensor(5)
    for name, v in whole.method.init(key).items():
        assert torch.equal(v, server.method.init(key)[name])


def test_a_configuration_without_a_schema_has_no_sites(here: Path) -> None:
    table = {k: v for k, v in tomllib.loads(FOUR.read_text()).items() if k != "schema"}
    with pytest.raises(ConfigError, match="schema is missing"):
        assemble(config_of(table), at="server")


def test_a_schema_is_that_of_the_whole_data_set_too() -> None:
    rows = replace(SCHEMA.empty(), sites=("a", "c"))
    with pytest.raises(ValueError, match="the data are of a, c, the schema's are of a, b"):
        SCHEMA.whole(rows)
    with pytest.raises(ValueError, match="the data name no sites, the schema's are of a, b"):
        SCHEMA.whole(replace(rows, sites=()))
    assert SCHEMA.whole(SCHEMA.empty()).sites == ("a", "b")
    assert Schema(**{k: tuple(v) if isinstance(v, list) else v for k, v in SCHEMA.table().items()}) == SCHEMA
