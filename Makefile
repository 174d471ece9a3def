# `make demo` and `make test` need only Python >= 3.11, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS ?=
PYTEST_FLAGS ?=

.PHONY: demo test quick check fmt lint types arch install clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: install          ## the whole path on bundled data: encode, train, sample, score
	$(BIN)/python -m tools.demo

# One thread per test process: two processes of two threads each would slow each other tenfold.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto $(PYTEST_FLAGS)

quick: install         ## the tests without those of more than half a minute
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto -m 'not slow' $(PYTEST_FLAGS)

fmt: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

arch: install
	$(BIN)/lint-imports

check: lint types arch test

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info
