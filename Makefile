# Everything runs in .venv, installed from the locks in envs/ with hashes. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
SCRIPTS := scripts tests

.DEFAULT_GOAL := help
.PHONY: demo test lint format profiles lock clean help

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

demo: $(VENV)/.installed ## make a small campaign, run it, compare its products with the truth
	$(BIN)/python tests/demo/make_scenes.py demo
	$(BIN)/snakemake --profile profiles/local --directory demo --configfile demo/config.yaml
	$(BIN)/python tests/demo/check_demo.py demo

test: $(VENV)/.installed-dev ## run the tests, about 10 minutes; with CI=true the slow ones too
	$(BIN)/python -m pytest -q tests $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## check code, formatting and workflow, change nothing
	$(BIN)/ruff check $(SCRIPTS)
	$(BIN)/ruff format --check $(SCRIPTS)
	$(BIN)/snakefmt --check --compact-diff workflow
	$(BIN)/snakemake --lint

format: $(VENV)/.installed-dev ## format code and workflow
	$(BIN)/ruff check --fix $(SCRIPTS)
	$(BIN)/ruff format $(SCRIPTS)
	$(BIN)/snakefmt workflow

profiles: ## link profiles/* into your Snakemake folder, for `snakemake --profile slurm-gpu`
	$(PYTHON) scripts/install_profiles.py

lock: ## solve the locks anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra build --universal --python-version 3.11 --generate-hashes --no-annotate -q \
		--custom-compile-command "make lock" -o envs/requirements.lock
	uv pip compile pyproject.toml --extra build --extra dev --universal --python-version 3.11 --generate-hashes --no-annotate -q \
		--custom-compile-command "make lock" --constraint envs/requirements.lock -o envs/requirements-dev.lock

clean: ## remove the demo and caches; results/ and .venv stay
	rm -rf demo build dist .pytest_cache .ruff_cache .hypothesis scripts/*.egg-info
	find scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "cogmill needs Python 3.11 to 3.13; name one: make demo PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The dev lock holds every package of the other, so installing it serves both.
$(VENV)/.installed: envs/requirements.lock pyproject.toml | $(BIN)/python
	$(call install,envs/requirements.lock)
	touch $@

$(VENV)/.installed-dev: envs/requirements-dev.lock pyproject.toml | $(BIN)/python
	$(call install,envs/requirements-dev.lock)
	touch $@ $(VENV)/.installed

# --no-compile: byte-compiling all of it takes longer than the demo's own imports
define install
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r $(1)
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endef
