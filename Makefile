# gossamer. `make` alone lists the commands.
#
# Everything lives in .venv, which every command makes or brings up to date by itself. To change what is used:
#   make setup PYTHON=/path/to/python3.12         another Python (3.11 or newer)
#   make setup TORCH='torch==2.13.0 --index-url …' another build of torch
#   make test  WORKERS=8 PYTEST='-k csr'           more test processes; only some tests
#   make setup CONSTRAINTS=                        the newest versions of all tools, not those of tools/constraints.txt

SHELL        := /bin/bash
.SHELLFLAGS  := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS    += --no-print-directory

OLD     := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON  ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
             $$p -c '$(OLD)' 2>/dev/null && command -v $$p && break; done)
TORCH   ?= torch==2.13.0
CONSTRAINTS ?= tools/constraints.txt
WORKERS ?= 2
PYTEST  ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP   := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq
say    = @echo '▸ $(1)'

.NOTPARALLEL:
.PHONY: help setup test lint english types house browser unit docs wheel demo bench pins format clean

help:  ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv with everything in it
	@echo '▸ $(VENV) is ready: $(BIN)/python, or source $(BIN)/activate'

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@if [ -n "$${VIRTUAL_ENV:-}" ] && [ "$$VIRTUAL_ENV" != "$(abspath $(VENV))" ]; then \
	  echo "note: the environment $$VIRTUAL_ENV is active. gossamer works in its own, $(VENV), and leaves yours as it is."; fi
	@if [ ! -x $(BIN)/python ]; then \
	  python="$(PYTHON)"; \
	  if [ -z "$$python" ] || ! "$$python" -c '$(OLD)' 2>/dev/null; then \
	    echo "gossamer needs Python 3.11 or newer; found $$($${python:-python3} --version 2>/dev/null || echo none)." >&2; \
	    echo "Install it (Debian: apt-get install python3.11-venv), or name one: make setup PYTHON=/path/to/python3.11" >&2; \
	    exit 1; fi; \
	  echo "▸ set-up: a fresh $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$$python cannot make virtual environments (Debian: apt-get install python3-venv)." >&2; exit 1; }; fi
	$(call say,set-up: $(TORCH))
	@$(PIP) $(TORCH)   # first and exact: left to the next line, pip would take the newest build, gigabytes of CUDA
	$(call say,set-up: gossamer and its tools)
	@$(PIP) $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[test,docs,demo]'
	$(call say,set-up: the CPU kernels)
	@$(BIN)/python -c 'import gossamer.native as n; n.load() or print("none: " + n.why_not())'
	@touch $@

test: lint types house docs unit  ## set up, then lint, type-check, build the docs and test

lint: $(STAMP) english  ## style (ruff), spelling (codespell) and English (tools/words.toml)
	$(call say,style)
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check || { echo 'make format fixes this'; exit 1; }

english: $(STAMP)
	$(call say,English)
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples src
	@$(BIN)/python tools/plain_english.py

types: $(STAMP)  ## types (mypy)
	$(call say,types)
	@$(BIN)/mypy

house: $(STAMP)  ## imports go down only (import-linter)
	$(call say,the house rule)
	@said=$$($(BIN)/lint-imports --no-cache --no-logo 2>&1) || { echo "$$said"; exit 1; }; tail -1 <<< "$$said"

browser:  # optional: the tests open the report in chromium, and say that they skip it where there is none
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && echo '▸ chromium, for the tests of the report' \
	    && timeout 120 apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1; } || \
	  echo 'no chromium: the tests of the report in a browser are skipped (Debian: apt-get install chromium)'

unit: $(STAMP) browser  ## tests (pytest)
	$(call say,tests)
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST)

docs: $(STAMP)  ## build the documentation into site/
	$(call say,documentation)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	@$(BIN)/python tools/links.py site
	@echo 'site/index.html'

RELEASE := build/release
wheel:  ## build and check what goes to PyPI: dist/ gets the sources and a manylinux wheel
	$(call say,tools of the release (without torch))
	@"$(PYTHON)" -m venv $(RELEASE)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(RELEASE)/bin/pip install -qq $$($(RELEASE)/bin/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])')
	$(call say,sources; then the wheel from them)
	@rm -rf dist && PATH="$(abspath $(RELEASE))/bin:$$PATH" $(RELEASE)/bin/python -m build --outdir dist . > build/release.log 2>&1 \
	  || { tail -40 build/release.log; exit 1; }
	$(call say,the wheel for every Linux that torch supports)
	@PATH="$(abspath $(RELEASE))/bin:$$PATH" $(RELEASE)/bin/auditwheel repair --plat manylinux_2_28_$$(uname -m) --exclude libtorch_cpu.so \
	  --wheel-dir dist/repaired dist/*-linux_*.whl
	@rm dist/*-linux_*.whl && mv dist/repaired/*.whl dist/ && rmdir dist/repaired
	@$(RELEASE)/bin/auditwheel show dist/*.whl
	@echo '(The tag is the last one named above. It says linux first, because libtorch_cpu.so is in no wheel but in torch.)'
	$(call say,checks)
	@$(RELEASE)/bin/twine check --strict dist/*
	@SKBUILD_WHEEL_CMAKE=false $(RELEASE)/bin/pyroma --min=10 dist/*.tar.gz  # metadata only: nothing is compiled again
	@ls -l dist

demo: $(STAMP)  ## a pretrained model made sparse and measured, in under two minutes
	@$(BIN)/gossamer demo

bench: $(STAMP)  ## tables against what you would use instead, in a few minutes; benchmarks/*.py write the published ones
	@for suite in cpu compiler training pruning; do $(BIN)/gossamer bench $$suite; done

pins: $(STAMP)  # writes the versions that are installed into tools/constraints.txt
	@{ grep '^#' tools/constraints.txt; $(BIN)/pip freeze --exclude-editable | grep -vE '^(torch|gossamer)=='; } > build-pins.tmp && mv build-pins.tmp tools/constraints.txt

format: $(STAMP)  ## let ruff fix the style
	@$(BIN)/ruff check -q --fix
	@$(BIN)/ruff format -q

clean:  ## remove everything that make has built
	rm -rf $(VENV) site out dist build gossamer-report.html .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
