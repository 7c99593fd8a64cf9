# `make demo` and `make test` each work alone on a machine with Python 3.11 or newer, git and make.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# The constraints hold in the build environment too.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test lint bench

setup: $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "megalith needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing Megalith and the versions of constraints.txt into $(VENV) (about a minute, 1.5 GB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -e '.[plot,dev]'
	@touch $@

demo: setup
	$(BIN)/megalith demo --output runs/demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint
	$(BIN)/python -m pytest

bench: setup
	$(PIP_INSTALL) -e '.[peers]'
	$(BIN)/python benchmarks/train_vs_peers.py
