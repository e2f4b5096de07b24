# The verbs of this repository: `make help` lists them. Needs Python 3.11 or newer (PYTHON=...), pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FORM := experiments/meta_bayfl
# One thread: matrices this small gain nothing from more, and lose much where other programs run too.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
DEMO := digits digits_bayfl digits_fedavg digits_fedprox digits_alone

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-flower lint format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/installed ## make .venv and install pyrofl with what it depends on

demo: $(VENV)/installed ## five methods on ten clients' digits, then one table and the figures, in runs/demo
	@mkdir -p runs/demo
	@$(ONE_THREAD) $(BIN)/pyrofl partition $(FORM)/digits.toml --plot runs/demo/partition.png
	@for name in $(DEMO); do \
		$(ONE_THREAD) $(BIN)/pyrofl run $(FORM)/$$name.toml --out runs/demo/$$name --overwrite || exit 1; \
	done
	@$(ONE_THREAD) $(BIN)/pyrofl compare $(DEMO:%=runs/demo/%) --out runs/demo

test: lint ## lint, types and all tests but the slow ones
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m "not slow"

test-all: lint ## lint, types and all tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2

test-flower: $(VENV)/installed-flower ## Flower in earnest: a simulation, a deployment and its faults; 9 minutes on two busy cores
	PATH="$(abspath $(BIN)):$$PATH" $(ONE_THREAD) $(BIN)/python -m pytest tests/flower

lint: $(VENV)/installed-test ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/installed-test ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove .venv, caches and the demo's results
	rm -rf $(VENV) runs/demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamp files: an install happens once, and again when pyproject.toml changes.

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pyrofl needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable .
	@touch $@

$(VENV)/installed-flower: $(VENV)/installed-test
	$(BIN)/python -m pip install --editable '.[flower,privacy]'
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --editable '.[test]'
	@touch $@
