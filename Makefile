# Each target is what a reader could type.  PYTHON picks the interpreter (3.10 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo stack preview test lint generate lock bench dist clean

demo: $(VENV)/.run
	$(BIN)/shardwatch demo

# Without Docker; ARGS='--scenario heat --fault-at 60', ARGS=--help for the rest.
stack: $(VENV)/.run
	$(BIN)/python -m compose.native $(ARGS)

# Pictures of the boards, drawn by our own page and not by Grafana; ARGS='--scenario hang --store DIR', ARGS=--help.
preview: $(VENV)/.run
	$(BIN)/python -m dashboards.preview $(ARGS)

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
	$(BIN)/python -m exporter.cli > exporter/cli/shardwatch.1
	$(BIN)/python -m alerts
	$(BIN)/python -m dashboards

# The image's packages with their hashes, the newest that fit.  No index is written down: everybody has their own.
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
  --no-emit-trusted-host --strip-extras --allow-unsafe --output-file=-
lock: $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	{ echo '# What the daemon needs, pinned with hashes.  Made by: make lock'; \
	  $(LOCK) pyproject.toml; } > $(VENV)/requirements.lock
	{ echo '# What its wheel is built with, pinned with hashes.  Made by: make lock'; \
	  $(LOCK) --only-build-deps --build-deps-for=wheel pyproject.toml; } > $(VENV)/build-requirements.lock
	mv $(VENV)/requirements.lock $(VENV)/build-requirements.lock compose/

bench: $(VENV)/.test
	$(BIN)/python -m tests.bench

# The same tree gives the same bytes: times in the archives are those of the newest commit.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)
dist: $(VENV)/.test
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

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
