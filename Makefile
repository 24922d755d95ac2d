# Each target is what a reader could type.  PYTHON picks the interpreter (3.10 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint generate bench clean

demo: $(VENV)/.run
	$(BIN)/shardwatch demo

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

lint: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy
	$(BIN)/lint-imports

generate: $(VENV)/.test
	$(BIN)/python -m exporter.catalog > exporter/METRICS.md
	$(BIN)/python -m exporter.catalog --names > exporter/catalog/metrics.py

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache
