# Each target is what a reader could type.  PYTHON picks the interpreter (3.10 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Without compiled files each of the daemons and workers of the tests would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Workers of the whole suite: much of it waits for deadlines, so one more than there are cores.
JOBS ?= $(shell expr $$(nproc) + 1)

.PHONY: demo stack preview pictures check test static lint generate lock sbom bench bench-peers bench-all fuzz soak soak-week containers dist release clean

demo: $(VENV)/.run
	$(BIN)/shardwatch demo

# Without Docker; ARGS='--scenario heat --fault-at 60', ARGS=--help for the rest.
stack: $(VENV)/.run
	$(BIN)/python -m compose.native $(ARGS)

# Pictures of the dashboards, drawn without Grafana; ARGS='--scenario hang --store DIR', ARGS=--help.
preview: $(VENV)/.run
	$(BIN)/python -m dashboards.preview $(ARGS)

# The pictures of the documentation, from faults recorded on a virtual clock.
FAULTS := hang pcie oom skew drift
RECORDED := .cache/preview/faults
DRAW = $(BIN)/python -m dashboards.preview --store $(RECORDED) --output dashboards/pictures
pictures: $(VENV)/.test
	rm -rf $(RECORDED)
	$(BIN)/python -m tests.support.recorded_scenarios $(RECORDED) $(FAULTS) heat
	$(DRAW) --dashboard shardwatch-now $(addprefix --only ,$(FAULTS))
	$(DRAW) --dashboard shardwatch-node --only hang --only heat --lines 22
	$(DRAW) --dashboard shardwatch-fleet --only fleet --lines 24

# What a developer runs before each commit: everything but the tests that start processes.
check: static
	$(BIN)/pytest -n auto tests/unit

# Everything.  ARGS picks: ARGS='tests/component -k nvml'.
test: static
	$(BIN)/pytest -p tests.support.cpu_time -n $(JOBS) --no-loadscope-reorder $(ARGS)

static: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy
	$(BIN)/lint-imports

generate: $(VENV)/.test
	$(BIN)/python -m exporter.catalog > exporter/METRICS.md
	$(BIN)/python -m exporter.catalog --names > exporter/catalog/metrics.py
	$(BIN)/python -m exporter.cli.generate
	$(BIN)/shardwatch config --schema > exporter/config/schema.json
	$(BIN)/python -m exporter.render.api_schema > exporter/render/api.schema.json
	$(BIN)/shardwatch config --reference > docs/configuration.md
	$(BIN)/python -m exporter.engines > docs/engines.md
	$(BIN)/python -m exporter.gateways > docs/gateways.md
	$(BIN)/python -m exporter.gateways --outcomes > docs/outcomes.md
	$(BIN)/python -m exporter.stores > docs/stores.md
	$(BIN)/python -m exporter.gpu_pages > docs/gpu-exporters.md
	$(BIN)/python -m alerts
	$(BIN)/python -m dashboards

# The image's packages with their hashes, the newest that fit; auth: users of the endpoint need bcrypt; push, otlp: pushing.
# No index is written down: everybody has their own.
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
  --no-emit-trusted-host --strip-extras --allow-unsafe --output-file=-
lock: $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check pip-tools==7.6.2
	{ echo '# What the daemon needs, pinned with hashes.  Made by: make lock'; \
	  $(LOCK) --extra auth --extra push --extra otlp pyproject.toml; } > $(VENV)/requirements.lock
	{ echo '# What its wheel is built with, pinned with hashes.  Made by: make lock'; \
	  $(LOCK) --only-build-deps --build-deps-for=wheel pyproject.toml; } > $(VENV)/build-requirements.lock
	mv $(VENV)/requirements.lock $(VENV)/build-requirements.lock compose/

# What the image holds, as a CycloneDX bill of materials.
sbom: $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json \
	  compose/requirements.lock

# Beside other exporters, a quarter of an hour; writes the table of docs/performance.md.  Only ratios of one run compare.
# They must be installed: victoria-metrics, prometheus and prometheus-node-exporter of Debian.
bench-peers: $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check nvitop-exporter
	$(BIN)/python -m tests.bench.peers --write $(ARGS)

# The same without the table, as far as they are installed; ARGS='--case W8 --case TLS'.
bench: $(VENV)/.test
	$(BIN)/python -m tests.bench.peers $(ARGS)

# Every budget, a quarter of an hour.
bench-all: $(VENV)/.test
	$(BIN)/python -m tests.bench

# A reader of bytes from outside against invented ones; ARGS='--keep 20' adds some to the corpus that tests replay.
# TARGET: page, other_page, request, response, config, web_config, kernel_log, proc, frames.
SECONDS ?= 60
fuzz: $(VENV)/.test
	$(BIN)/pip install --quiet --disable-pip-version-check 'atheris>=3.0'
	$(BIN)/python -m tests.fuzz $(TARGET) --seconds $(SECONDS) $(ARGS)

# Eight hours of a node on a virtual clock, ten minutes; WALL=1: then an hour of the daemon itself while its sources
# fail and heal.  ARGS='--hours 24', ARGS=--help.
soak: $(VENV)/.test
	$(BIN)/python -m tests.bench.soak $(ARGS)
	$(if $(WALL),$(BIN)/python -m tests.bench.soak_wall --hours $(WALL))

# A week of normal operation on a virtual clock: nothing fires but the watchdog.  An hour of two cores.
soak-week: $(VENV)/.test
	$(BIN)/python -m tests.bench.soak_week $(ARGS)

# Image, stack and unit in real containers; without an engine it says why it skips.
containers: export SHARDWATCH_CONTAINERS := 1
containers: $(VENV)/.test
	$(BIN)/pytest -n 0 --timeout 1800 tests/containers $(ARGS)

# The same tree gives the same bytes: times in the archives are those of the newest commit.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)
dist: $(VENV)/.dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

# What a release publishes, in dist/, from what is committed; ARGS='--tag v0.1.0', ARGS=--help.
release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)
release: dist $(VENV)/.test
	$(MAKE) sbom
	$(BIN)/python -m compose.release $(ARGS)

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@ $(VENV)/.run

# Helm and kubectl for the tests and releases, 128 MB.
$(BIN)/helm: $(VENV)/.test
	$(BIN)/python -m tests.support.helm_program $(BIN)

# Only what builds: neither the tests' packages nor the daemon's.
$(VENV)/.dist: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'build>=1.2' 'hatchling>=1.25'
	touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache
