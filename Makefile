# The two commands of a newcomer are `make demo` and `make test`; each sets up everything it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and exactly pinned, so that the resolver never asks for a larger build of it
INSTALL := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test install install-dev lint format types layers bench docs dist clean

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(INSTALL) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(INSTALL) -e '.[all,dev,docs]'
	@touch $@

install: $(VENV)/.base
install-dev: $(VENV)/.dev

demo: $(VENV)/.base
	$(BIN)/calibrant demo

test: $(VENV)/.dev lint types layers
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist site out
