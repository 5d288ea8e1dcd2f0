# Two jobs: `make sweep` sets up and runs the main job, `make test` sets up and passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: setup sweep test check

# torch first: this release has a CPU build that pins no triton; triton 3.9 is the first that knows sm_107.
$(BIN)/rubin-tune: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet "triton==3.9.0"
	$(BIN)/python -m pip install --quiet --editable ".[test,postgres]"
	touch $@

setup: $(BIN)/rubin-tune

sweep: setup
	$(BIN)/rubin-tune sweep megamoe

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2
