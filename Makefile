# Every target makes what it needs, from a machine with python3 (with venv and pip) and make.

PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet install -c constraints.txt
# Tests phone nobody.
TEST_ENV := RAY_USAGE_STATS_ENABLED=0 WANDB_MODE=offline HF_HUB_OFFLINE=1
PYTEST := $(TEST_ENV) $(PY) -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help demo demo-train test test-all lint bench campaign docs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: .venv/.demo ## caption the pictures in examples/ with the model that comes with meshcap
	@.venv/bin/meshcap caption examples --show --confidence

demo-train: .venv/.demo ## train a small captioner on drawn scenes, caption unseen ones, write demo.png
	@$(PY) recipes/drawn_scenes.py

test: lint ## lint, types and the fast tests
	@$(PYTEST) -m "not slow"

test-all: lint ## lint, types and every test
	@$(PYTEST) -m ""

lint: .venv/.dev ## ruff and mypy
	@$(PY) -m ruff check
	@$(PY) -m mypy

bench: .venv/.dev ## print the performance tables
	@$(PY) benchmarks/decode.py
	@$(PY) benchmarks/train.py --work step
	@$(PY) benchmarks/score.py

campaign: .venv/.dev ## attack and kill everything for an hour or more, print what came of it
	@$(TEST_ENV) $(PY) benchmarks/campaign.py

docs: .venv/.docs ## build the documentation site into site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "site/ is built; to read it: $(PY) -m http.server --bind 127.0.0.1 --directory site"

# Stamps: installed when the stamp is newer than what says what to install.
$(PY):
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; } # half an environment would count as made

.venv/.demo: pyproject.toml constraints.txt | $(PY)
	@echo "installing meshcap into .venv"
	@$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | $(PY)
	@echo "installing meshcap[dev] into .venv"
	@$(PIP) -e ".[dev]"
	@touch $@ .venv/.demo

.venv/.docs: pyproject.toml constraints.txt | $(PY)
	@echo "installing meshcap[docs] into .venv"
	@$(PIP) -e ".[docs]"
	@touch $@ .venv/.demo
