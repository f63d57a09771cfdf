# Two commands on a fresh machine: `make train` and `make test`. Needs Python >= 3.11 and make, nothing else.
#
#   ARGS=...     further arguments, e.g. make train ARGS="run.seed=2"; make test ARGS="tests/unit -k gae"
#   CONFIG=...   what `make train` trains, e.g. CONFIG=configs/pendulum-ppo.yaml
#   NAME=...     which benchmarks `make bench` runs
#   EXTRAS=...   extras for `make install`, e.g. EXTRAS=box2d
#   PYTHON=...   the Python that .venv is made with; default: the first one on the path that is new enough
#   PIP_ARGS=... further arguments for pip, e.g. another index

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= configs/cartpole-ppo.yaml
ARGS ?=
EXTRAS ?=
PIP_ARGS ?=
NAME ?= $(BENCHMARKS)
BENCHMARKS ?= transport replay parameters update rollout
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for candidate in python3 python3.11 python3.12 python3.13 python; do \
	"$$candidate" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$candidate" && break; done)

.DEFAULT_GOAL := help
.PHONY: help train test check style types imports contract generated install images wheels proto proto-baseline docs \
	dashboards bench format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

train: $(VENV)/.installed ## train the default experiment (CONFIG, ARGS) on this machine
	@$(BIN)/headrace train $(CONFIG) $(ARGS)

test: $(VENV)/.installed-dev ## run the whole test suite (ARGS for pytest)
	$(BIN)/python -m pytest $(ARGS)

check: style types imports contract generated ## everything but the tests (`make -k check` doesn't stop at the first)

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

contract: $(VENV)/.installed-dev
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.json

generated: $(VENV)/.installed-dev
	$(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/generate_dashboards.py --check
	$(BIN)/python scripts/generate_prometheus_rule.py --check
	$(BIN)/python scripts/check_presets.py

install: $(VENV)/.installed ## make .venv and install, so that .venv/bin/headrace is there (EXTRAS)
	@if [ -n "$(EXTRAS)" ]; then $(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[$(EXTRAS)]'; fi

images: ## build the container images (ARGS; see docs/images.md and ARGS=--help)
	@"$(PYTHON)" scripts/build_images.py $(ARGS)

wheels: ## fill docker/wheels, for building images without a package index (ARGS)
	@"$(PYTHON)" scripts/build_images.py --download $(ARGS)

proto: $(VENV)/.installed-dev ## generate headrace/v1 from proto/
	$(BIN)/python scripts/generate_proto.py

proto-baseline: $(VENV)/.installed-dev ## at a release: what `buf breaking` compares with from now on
	$(BIN)/buf build --exclude-source-info -o proto/baseline.json

docs: $(VENV)/.installed-dev ## generate docs/config.md and docs/metrics.md
	$(BIN)/python scripts/generate_docs.py

dashboards: $(VENV)/.installed-dev ## generate Grafana's dashboards and the operator's PrometheusRule
	$(BIN)/python scripts/generate_dashboards.py
	$(BIN)/python scripts/generate_prometheus_rule.py

bench: $(VENV)/.installed-dev ## measure: all of benchmarks/, or NAME="transport update" (ARGS)
	@set -e; for name in $(NAME); do echo "benchmarks.$$name"; $(BIN)/python -P -m benchmarks.$$name $(ARGS); done

format: $(VENV)/.installed-dev ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, caches and build output; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make pip run again only when pyproject.toml has changed.
$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Headrace needs Python 3.11 or newer; name one with make PYTHON=/path/to/python" >&2; exit 2; fi
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { \
		echo "$(PYTHON) is older than Python 3.11; name another with make PYTHON=/path/to/python" >&2; exit 2; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing Headrace into $(VENV) (once; PyTorch is large) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing Headrace and its tools into $(VENV) (once; PyTorch is large) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[dev]'
	@touch $@ $(VENV)/.installed
