VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: help quickstart test slow check clean

help:  ## what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.installed

quickstart: $(VENV)/.installed  ## set up, then train, attack and compare two small ViTs
	$(BIN)/robustvit quickstart

test: $(VENV)/.installed-dev  ## set up, then run the tests
	$(BIN)/python -m pytest

slow: $(VENV)/.installed-dev  ## the proofs that take minutes
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.installed-dev  ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

clean:  ## remove the venv and caches (never a run folder)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
