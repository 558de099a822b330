# Two commands: `make drill` and `make test`. Both do all the set-up, and write nothing outside this folder.
PYTHON ?= python3
DRILL ?= scenarios/burst-survives-vram-pcie-nvlink.yaml
BIN := .venv/bin

export TMPDIR := $(CURDIR)/.tmp
export PIP_NO_CACHE_DIR := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: drill test campaign lint clean help

help: ## what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

drill: .venv/ready-local ## set up, then run the drill: burst load, three faults, a verdict and a report
	@$(BIN)/brownout run $(DRILL)

test: .venv/ready-dev ## set up, then run the tests
	$(BIN)/python -m pytest

campaign: .venv/ready-dev ## whole drills in a row: with and without countermeasures (about 15 minutes)
	$(BIN)/python -m pytest -m campaign -s

lint: .venv/ready-dev ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## remove the environment and what was built; runs are kept
	rm -rf .venv .tmp .brownout .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build

.venv/ready-%: pyproject.toml constraints.txt | .tmp
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "brownout needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "setting up .venv (about a minute; torch is the big one)" >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

.tmp:
	@mkdir -p .tmp
