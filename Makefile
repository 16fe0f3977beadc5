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
# Modules are compiled to bytecode when they are first imported, and that must be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install quickstart test test-fast coverage check format bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt launch/install.sh
	@PYTHON=$(PYTHON) launch/install.sh
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
