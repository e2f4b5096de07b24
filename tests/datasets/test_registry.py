"""What all loaders have in common."""

import inspect

import pytest

from pyrofl.datasets import DATASETS, data_root
from pyrofl.federation import federate


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_loaders_take_typed_keywords_that_federate_does_not_take(name):
    """Both read the same table of a configuration."""
    parameters = inspect.signature(DATASETS[name]).parameters
    assert all(p.kind is p.KEYWORD_ONLY and p.annotation is not p.empty for p in parameters.values())
    assert not set(parameters) & set(inspect.signature(federate).parameters)


def test_the_data_root_is_the_argument_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYROFL_DATA", raising=False)
    assert data_root() == tmp_path / ".cache" / "pyrofl" / "data"
    monkeypatch.setenv("PYROFL_DATA", "~/elsewhere")
    assert data_root() == tmp_path / "elsewhere"
    assert data_root(tmp_path / "here") == tmp_path / "here"
