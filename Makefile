# Everything runs in a local .venv that the first target makes; a second run finds it ready.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CHART  := moeplan-demo.html
DEV    := $(VENV)/.installed-dev
export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help: ## say what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/'

demo: $(STAMP) ## the main job: the best deployment of DeepSeek-V3 on H800 and H20, why, and how to start it
	@$(BIN)/moeplan plan deepseek-v3 --gpu h800,h20 --nic cx7 --gpus 16..320 --context 5k --min-tps 20 --chart $(CHART)
	@echo; echo "chart: $(CHART), opens in any browser"

test: $(DEV) ## every test that needs neither root nor network nor a GPU
	@$(BIN)/python -m pytest -n logical --dist worksteal --ignore=tests/budget
	@$(BIN)/python -m pytest tests/budget

lint: $(DEV) ## style, types, and the direction of imports
	@$(BIN)/ruff check src tests
	@$(BIN)/ruff format --check src tests
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(DEV) ## CPU time of the search, beside one-at-a-time evaluation
	@$(BIN)/python tests/budget/bench_search.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(CHART) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "moeplan needs Python 3.11 or newer: install python3 (Debian: apt install python3), or set PYTHON=…"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "the venv module is missing: install it (Debian: apt install python3-venv)"; exit 1; }
	@echo "making $(VENV)"; $(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml
	@echo "installing moeplan"; $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): $(STAMP)
	@echo "installing development tools"; $(BIN)/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python .ci/dev_requirements.py)
	@touch $@
