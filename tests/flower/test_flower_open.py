"""Which site a node stands for, by its configuration."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.documents import ROOT
from support.stand_in import heart

pytest.importorskip("flwr", reason="needs pip install 'pyrofl[flower]'")

from flwr.app import Context, RecordDict

from pyrofl.config import ConfigError
from pyrofl.flower.open import open_site
from pyrofl.flower.states import InContext, InFolder

CONFIG = (ROOT / "experiments" / "deployment" / "four_sites.toml").read_text()


def node(node_config: dict[str, Any], **run_config: Any) -> Context:
    return Context(0, 0, node_config, RecordDict(), dict(run_config))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    heart(tmp_path / "heart", np.random.default_rng(0))
    return tmp_path / "heart"


def test_a_supernode_names_its_site_its_file_and_its_folder(data: Path, tmp_path: Path) -> None:
    file, state = data / "processed.va.data", tmp_path / "state"
    site = open_site(CONFIG, node({"site": "va", "data": str(file), "state": str(state)}))
    assert (site.client, site.name, site.counts()) == (3, "va", (15, 8))
    assert isinstance(site.states, InFolder) and site.states.folder == state
    assert site.secretive
    assert isinstance(open_site(CONFIG, node({"site": "va", "data": str(file)})).states, InContext)


def test_a_node_of_a_simulation_is_a_partition(data: Path, tmp_path: Path) -> None:
    config = CONFIG.replace('name = "heart"', f'name = "heart", path = "{data}"')
    site = open_site(config, node({"partition-id": 2}, out=str(tmp_path / "run")))
    assert (site.client, site.name, site.secretive) == (2, "switzerland", False)
    assert isinstance(site.states, InFolder) and site.states.folder == tmp_path / "run" / "sites" / "2"
    with pytest.raises(ConfigError, match="node 4 has no client: there are 4; start as many nodes"):
        open_site(config, node({"partition-id": 4}))


def test_what_a_site_cannot_open_is_told_to_the_site_alone(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = data / "processed.va.data"
    file.write_text(file.read_text().replace(",", ",secret,", 1))
    with caplog.at_level(logging.ERROR), pytest.raises(ConfigError) as caught:
        open_site(CONFIG, node({"site": "va", "data": str(file)}))
    assert str(caught.value) == ("site va could not open its data: its own log says why, and so does pyrofl check-site")
    assert caught.value.__suppress_context__ and "processed.va.data" in caplog.text


@pytest.mark.parametrize(
    ("config", "reason"),
    [({}, "give this SuperNode --node-config 'site="), ({"site": "va"}, "--node-config with data")],
)
def test_a_node_without_its_configuration_says_what_to_give(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_site(CONFIG, node(config))
