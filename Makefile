# make quickstart   set up, and run the main job on the embedded corpus
# make test         set up, check the code, run the tests, on two workers (WORKERS=4: on four)
# make test-fast    set up, ruff, and the unit tests but the slow ones: for everyday work
# make coverage     the tests, and which lines they run (not those of processes that they start)
# make check        ruff, mypy, import-linter
# make format       ruff format and fixes
# make bench        benchmarks (docs/benchmarks.md)

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST_ARGS ?=
WORKERS ?= 2

export HF_HUB_OFFLINE ?= 1
export MLFLOW_DISABLE_TELEMETRY ?= true

.PHONY: install quickstart test test-fast coverage check format bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v g++ >/dev/null || { echo "g++ is missing: install a C++ compiler (Debian: apt-get install g++)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 12) else \
	  "Python %d.%d is not supported: make PYTHON=python3.12 (or 3.11)" % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e .
	@touch $@

quickstart: $(INSTALLED)
	@BIN=$(BIN) launch/quickstart.sh

test: $(INSTALLED) check
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-fast: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" tests/unit $(PYTEST_ARGS)

coverage: $(INSTALLED)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv quickstart .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* build dist
