# Every target sets up what it needs from `python3` and the package index; nothing else is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# What the log is measured against stays out of the environment that it is developed in.
BENCH_VENV := .venv-bench
BENCH_READY := $(BENCH_VENV)/ready
# The consensus binding: a distribution of its own, built by cargo, into the same environment.
RAFT := native/raft
RAFT_READY := $(VENV)/raft
RAFT_SOURCES := $(wildcard $(RAFT)/src/*.rs) $(RAFT)/Cargo.toml $(RAFT)/Cargo.lock $(RAFT)/pyproject.toml $(RAFT)/headwater_raft.pyi
CARGO := cd $(RAFT) && cargo
# Object stores for the tests, on loopback; what they depend on is nothing for us.
SERVERS := $(VENV)/servers
SERVERS_READY := $(SERVERS)/ready
# Two workers: the suite must be quick on two cores and is written to run in parallel. Who gets which
# test is decided in tests/conftest.py: one of them has the session of Spark.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test lint lint-format lint-rules lint-types rust check bench soak format clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## everything at work on a temporary folder, in under three minutes
	mkdir -p build
	$(BIN)/headwater demo --plot build/retention-plan.png

test: $(READY) $(RAFT_READY) $(SERVERS_READY) ## the test suite
	$(PYTEST)

lint: lint-format lint-rules lint-types ## format, lint and types, without the tests

lint-format: $(READY)
	$(BIN)/ruff format --check

lint-rules: $(READY)
	$(BIN)/ruff check

lint-types: $(READY) $(RAFT_READY)
	$(BIN)/mypy

rust: ## format, lint and tests of the consensus binding by themselves
	$(CARGO) fmt --check
	$(CARGO) clippy --quiet --all-targets --features python -- --deny warnings
	$(CARGO) test --quiet

check: lint rust test ## everything CI runs: lint, tests, documentation blocks

bench: $(BENCH_READY) ## measure against other stores and print the ratio table
	$(BENCH_VENV)/bin/python -m headwater_bench --install-servers
	$(BENCH_VENV)/bin/python -m headwater_bench._events_run
	$(BENCH_VENV)/bin/python -m headwater_bench._retention
	$(BENCH_VENV)/bin/python -m headwater_bench._spark

soak: $(READY) $(RAFT_READY) $(SERVERS_READY) ## the suite with the long runs and many more generated cases
	HYPOTHESIS_PROFILE=soak $(PYTEST) -m "soak or not soak" -o timeout=7200 -o faulthandler_timeout=3600

format: $(READY) ## rewrite the sources in the one format and fix what lint can fix
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

clean: ## remove everything that the other targets made
	rm -rf $(VENV) $(BENCH_VENV) $(RAFT)/target build dist src/*.egg-info src/headwater/*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml src/headwater/_native.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# The version stays the same while the sources change, so pip is told to install it anyway.
$(RAFT_READY): $(RAFT_SOURCES) | $(READY)
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps ./$(RAFT)
	touch $@

$(BENCH_READY): pyproject.toml benchmarks/pyproject.toml src/headwater/_native.c
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --editable . --editable benchmarks
	touch $@

$(SERVERS_READY): tests/archive/servers.txt | $(READY)
	$(PYTHON) -m venv $(SERVERS)
	$(SERVERS)/bin/python -m pip install --quiet --requirement $<
	touch $@
