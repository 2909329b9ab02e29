# make demo         words in context → vectors, with a result to read; installs only what that needs
# make test         lint, types and tests: what must pass before a commit
# make test-slow    further combinations of what make test checks
# make test-browser the sense explorer's page in Chromium, in an environment of its own
# make test-clients the server against clients that others have written, in an environment of its own
# make test-integrations  the adapters for spaCy, transformers and others, in an environment of its own
# make test-flair   the adapter for Flair, which needs older libraries than the others
# make test-triton  the GPU's kernels without a GPU, in an environment of its own
# make coverage     the tests of make test with coverage, which has a floor in pyproject.toml
# make docs         the documentation site in site/
# make wheel        a wheel in dist/, installed in a clean environment, with the demo run there
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready
DOCS := .venv-docs
CLIENTS := .venv-clients
WHEEL := .venv-wheel
BROWSER := .venv-browser
INTEGRATIONS := .venv-integrations
FLAIR := .venv-flair
TRITON := .venv-triton
EXTRAS := chinese,parquet,train,plot,tasks,zstd,hub,serve
ADAPTERS := spacy,transformers,sentence-transformers,langchain,llama-index,gensim,datasets,ray,onnx
# Every environment is installed with these versions, which are known to work together.
INSTALL := -m pip install --quiet --constraint constraints.txt
WHEEL_LIMIT_MB := 95

.PHONY: demo test test-slow test-browser test-clients test-integrations test-flair test-triton coverage lint format docs wheel clean

demo: $(BASE)
	$(BIN)/python examples/demo.py

test: lint
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -n 2 -m slow

test-browser: $(BROWSER)/.ready
	ELMOKIT_AXE=$(wildcard $(BROWSER)/axe/package/axe.min.js) ELMOKIT_ORT=$(wildcard $(BROWSER)/ort/package/dist) $(BROWSER)/bin/pytest tests/browser

test-clients: $(CLIENTS)/.ready
	ELMOKIT_CLIENTS=1 $(CLIENTS)/bin/pytest tests/clients -o filterwarnings=default

test-integrations: $(INTEGRATIONS)/.ready
	ELMOKIT_INTEGRATIONS=all $(INTEGRATIONS)/bin/pytest tests/integrations -o filterwarnings=default

test-flair: $(FLAIR)/.ready
	ELMOKIT_INTEGRATIONS=flair $(FLAIR)/bin/pytest tests/integrations -o filterwarnings=default

test-triton: $(TRITON)/.ready
	$(TRITON)/bin/pytest tests/ops -k interpreter

coverage: $(READY)
	$(BIN)/pytest -n 2 -m "not slow" --cov --cov-report=term

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html, or run python3 -m http.server --directory site to have the search too"

wheel:
	rm -rf $(WHEEL) dist
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(WHEEL)/bin/python $(INSTALL) dist/elmokit-*.whl
	@$(WHEEL)/bin/python -c 'import pathlib, sys; [file] = pathlib.Path("dist").glob("*.whl"); size = file.stat().st_size / 1e6; print(f"{file}: {size:.1f} MB"); sys.exit(size > $(WHEEL_LIMIT_MB) and "the wheel is larger than $(WHEEL_LIMIT_MB) MB")'
	unset PYTHONPATH; cd examples && ../$(WHEEL)/bin/elmo models && ../$(WHEEL)/bin/python demo.py

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmokit needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --editable .
	@touch $@

$(READY): $(BASE)
	$(BIN)/python $(INSTALL) --upgrade 'pip>=25.1' # the first that knows dependency groups
	$(BIN)/python $(INSTALL) --editable '.[$(EXTRAS)]' --group dev
	@$(BIN)/python -c 'from torch import float32; from elmokit.ops import native; print(native.reason_against(float32, int8=False) or native.description())'
	@touch $@

$(DOCS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(DOCS)/bin/python $(INSTALL) --editable . --group docs
	@touch $@

$(BROWSER)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BROWSER)
	$(BROWSER)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(BROWSER)/bin/python $(INSTALL) --editable '.[serve,onnx]' --group test --group browser
	-mkdir -p $(BROWSER)/axe && cd $(BROWSER)/axe && npm pack --silent axe-core@4.14.0 && tar xzf axe-core-*.tgz
	-mkdir -p $(BROWSER)/ort && cd $(BROWSER)/ort && npm pack --silent onnxruntime-web@1.30.0 && tar xzf onnxruntime-web-*.tgz
	@touch $@

$(CLIENTS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(CLIENTS)/bin/python $(INSTALL) --editable '.[serve,hub]' --group clients --group test
	@touch $@

$(INTEGRATIONS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(INTEGRATIONS)/bin/python $(INSTALL) --editable '.[tasks,parquet,$(ADAPTERS)]' --group test --group integrations
	@touch $@

# Flair needs older versions of two libraries than constraints.txt has; torch and what it computes with stay the same.
$(FLAIR)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FLAIR)
	$(FLAIR)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	grep -E '^(torch|numpy|pytest|scipy|scikit-learn|safetensors|h5py)' constraints.txt > $(FLAIR)/constraints.txt
	printf '%s\n' flair==0.15.1 transformers==4.57.6 huggingface_hub==0.36.2 >> $(FLAIR)/constraints.txt
	$(FLAIR)/bin/python -m pip install --quiet --constraint $(FLAIR)/constraints.txt --editable '.[flair]' --group test
	@touch $@

# Triton's interpreter needs no GPU. That of 3.9.0 refuses some masks.
$(TRITON)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(TRITON)/bin/python $(INSTALL) --editable . --group test
	$(TRITON)/bin/python $(INSTALL) triton==3.7.1
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS) $(CLIENTS) $(BROWSER) $(INTEGRATIONS) $(FLAIR) $(TRITON) $(WHEEL) dist site
