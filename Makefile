# Every target makes the environment first: .venv, rebuilt when pyproject.toml or constraints.txt change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
# Whole experiments, browsers and compilers take minutes: they run where CI is set.
CHOICE := $(if $(CI),,-m "not slow")

.PHONY: demo test lint bench env

demo: env
	$(BIN)/kvsim run quickstart
	@echo
	@echo "Next: $(BIN)/kvsim dashboard (pages in a browser), or $(BIN)/kvsim fit llama-3.1-8b --gpu h100"

test: lint
	$(BIN)/python -m pytest -q -n auto $(CHOICE)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: env
	@set -e; for script in benchmarks/bench_*.py; do $(BIN)/python $$script; done

env: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
