# make install      create the virtual environment .venv; all targets below do this first
# make quickstart   prepare, train and evaluate on the embedded toy corpus
# make test         check the code and prove every promise once, on four workers (WORKERS=6: on six)
# make test-all     make test, then the tests marked extended: every combination, long fuzzing, campaigns
# make test-fast    run ruff and the fast unit tests, for everyday work
# make test-lowest  run the fast unit tests with the oldest versions that pyproject.toml allows, in .venv-lowest
# make dist         build the wheel and the sdist into dist/ and check what an index would show of them
# make coverage     run the tests of both tiers and report line coverage, without subprocesses
# make check        run ruff, mypy and import-linter, and check the site's links
# make site         build the site of the documents in build/site
# make format       format the code and apply ruff's fixes
# make bench        run the benchmarks (docs/benchmarks.md)

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST_ARGS ?=
# More than the cores of a small machine, because tests wait for the processes that they start.
WORKERS ?= 4

export HF_HUB_OFFLINE ?= 1
export MLFLOW_DISABLE_TELEMETRY ?= true
# Keep the bytecode that Python writes at the first import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install quickstart test test-all test-fast test-lowest dist coverage check site format bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt launch/install.sh
	@PYTHON=$(PYTHON) launch/install.sh
	@touch $@

quickstart: $(INSTALLED)
	@BIN=$(BIN) launch/quickstart.sh

test: $(INSTALLED) check
	$(BIN)/python -m pytest -n $(WORKERS) -m "not extended" $(PYTEST_ARGS)

test-all: test
	$(BIN)/python -m pytest -n $(WORKERS) -m extended $(PYTEST_ARGS)

test-fast: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not extended" tests/unit $(PYTEST_ARGS)

# On Python 3.11: versions so old have no wheels for newer ones.
test-lowest:
	@PYTHON=$(PYTHON) VENV=.venv-lowest launch/install.sh --resolution lowest-direct
	.venv-lowest/bin/python -m pytest -n $(WORKERS) -m "not slow and not extended" tests/unit $(PYTEST_ARGS)

dist:
	rm -rf dist
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --disable-pip-version-check -q --upgrade 'pip>=25.1'
	.venv-release/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt --group release
	.venv-release/bin/python -m build
	.venv-release/bin/twine check --strict dist/*
	.venv-release/bin/check-wheel-contents dist/*.whl
	.venv-release/bin/pyroma --min 9 dist/*.tar.gz
	.venv-release/bin/zizmor --offline --no-progress --quiet .github

coverage: $(INSTALLED)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

check: $(INSTALLED) site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

site: $(INSTALLED)
	$(BIN)/python docs/site/build.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks --all

clean:
	rm -rf .venv .venv-* quickstart .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* build dist
