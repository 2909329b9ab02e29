# make demo: words in context to vectors, with a result to read. make test: everything that must hold.
# make test-slow: further combinations of what make test checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint format clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -n 2 -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmokit needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,chinese,parquet,train,plot,tasks,zstd,hub]'
	@$(BIN)/python -c 'from torch import float32; from elmokit.ops import native; print(native.reason_against(float32, int8=False) or native.description())'
	@touch $@

clean:
	rm -rf $(VENV)
