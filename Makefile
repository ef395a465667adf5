VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# stamps are kept here, not in the venv, so that another clone that reuses the venv still installs itself
STAMP := .stamps/$(subst /,-,$(VENV))

.PHONY: help quickstart test slow interop mutants check bench docs notebooks gallery clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP)-user: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@mkdir -p .stamps && touch $@

$(STAMP)-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@# torchattacks pins outdated versions of packages that it hardly uses
	$(BIN)/python -m pip install --quiet --no-deps 'torchattacks>=3.5'
	@mkdir -p .stamps && touch $@ $(STAMP)-user

quickstart: $(STAMP)-user  ## set up, then train, attack and compare two small ViTs
	$(BIN)/robustvit quickstart

test: $(STAMP)-dev  ## set up, then run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist worksteal

slow: $(STAMP)-dev  ## slow tests and what each took; AREA=verdicts runs those of tests/test_verdicts.py
	$(BIN)/python -m pytest -m slow --durations=0 $(if $(AREA),$(or $(wildcard tests/test_$(AREA).py),-k $(AREA)))

interop: $(STAMP)-dev  ## install jax, onnxruntime, transformers and notebook tools, then run the tests that need them
	$(BIN)/python -m pip install --quiet --editable '.[interop]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -o addopts= -q tests/test_jax_weights.py tests/test_hub.py tests/test_onnx.py $(wildcard tests/test_notebooks.py)

mutants: $(STAMP)-dev  ## whether the tests notice changes of meaning (up to an hour on two cores; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants run

check: $(STAMP)-dev  ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py

bench: $(STAMP)-dev  ## benchmarks; writes docs/benchmarks*.md
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/fast.py
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/masking.py
	$(BIN)/python benchmarks/probes.py
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/corruptions.py

docs: $(STAMP)-dev  ## build the documentation in site/
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python docs/reference.py
	$(BIN)/zensical build --strict --config-file mkdocs.yml

notebooks: $(STAMP)-dev  ## execute the tutorials of docs/notebooks anew
	$(BIN)/python -m pip install --quiet --editable '.[notebook]'
	$(BIN)/python docs/notebooks/execute.py

gallery: $(STAMP)-dev  ## pictures of every page and analysis; writes docs/gallery*.md (minutes; resumes)
	$(BIN)/python docs/gallery_pages.py
	$(BIN)/python docs/gallery.py

clean:  ## remove the venv and caches (never a run folder)
	rm -rf $(VENV) .stamps site .mypy_cache .ruff_cache .pytest_cache
