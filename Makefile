# Everything by one word; `make` alone lists the words. Needs make and a Python of 3.11 or later, nothing else.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.synced
DEMO_HOME := .demo/home

# Where byte code may not be written, every process of Ray compiles all of Ray anew.
unexport PYTHONDONTWRITEBYTECODE
# uv works on this folder's environment, whichever one is active.
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.venv

.PHONY: help setup demo pets test test-all test-versions check bench docs docs-site clean

help: ## list these words
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(STAMP) ## make .venv with all that the lock file names

# Redone when what is to be installed changes; instant otherwise.
$(STAMP): pyproject.toml uv.lock
	@if ! test -x $(BIN)/python; then \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "lockstep: error: no Python that can be used; received $(PYTHON) ($$($(PYTHON) -V 2>&1 | tail -1 | sed -E 's,^[^:]+: line [0-9]+: ,,'));" \
	      "allowed: 3.11 or later; name another: make setup PYTHON=python3.12" >&2; exit 1; }; \
	  echo "making .venv with $$($(PYTHON) -V)"; \
	  $(PYTHON) -m venv .venv || { rm -rf .venv; \
	    echo "lockstep: error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; }; \
	fi
	@if ! test -x $(BIN)/uv && ! command -v uv >/dev/null; then echo "installing uv into .venv"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check uv; fi
	@echo "installing what uv.lock names"
	@uv=$(BIN)/uv; test -x $$uv || uv=uv; $$uv sync --frozen --extra dev --extra language --compile-bytecode
	@touch $@

demo: $(STAMP) ## run the whole way once: data, service, job, model, predictions
	@$(BIN)/python examples/demo.py

pets: $(STAMP) ## run the reference job once, with drawn pictures: archive, service, job, model, predictions
	@$(BIN)/python examples/cats_and_dogs/run.py

# With libtpu installed JAX would look for a TPU at every start.
test test-all bench: export JAX_PLATFORMS := cpu

# Many of these tests wait for processes: four at a time keep two cores busy. A file's tests stay together, in their
# order. A process that crashes is not made anew: with files kept together, the new one waits for ever.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 10

# Much of the time goes into compiling small programs, many of them alike: each is compiled once. `make test` has XLA
# compile them with less effort, in a third of the time; `make test-all` has them as users have them.
test: export LOCKSTEP_TEST_COMPILE := quick
PROGRAMS := $(CURDIR)/.pytest_cache/xla
test test-all: export JAX_COMPILATION_CACHE_DIR := $(PROGRAMS)
test test-all: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0

# What the REST interface and the deployments do with their database is tried on PostgreSQL, too. A connection that a
# test leaves to the garbage collector is reported at the beginning of another test.
ON_POSTGRESQL := -W ignore::pytest.PytestUnraisableExceptionWarning -m "not heavy and not product" \
  tests/service/api tests/service/prediction

# `make check` runs what is ignored here.
test: $(STAMP) ## run the tests
	@rm -rf $(PROGRAMS)
	@$(PYTEST) -m "not heavy and not product" --ignore tests/test_architecture.py

test-all: $(STAMP) ## run the tests, the heavy ones too, and every combination of what has to be exact
	@rm -rf $(PROGRAMS)
	@$(PYTEST) -m "not product"
	@$(BIN)/pytest --numprocesses 2 --dist worksteal --durations 5 -m product
	@LOCKSTEP_TEST_DATABASE=postgresql $(PYTEST) $(ON_POSTGRESQL)

test-versions: $(STAMP) ## run the core of the tests with other versions of Python, Keras and JAX
	@$(BIN)/python .ci/versions.py $(ARGS)

check: $(STAMP) ## check format, style, types, the import rule, circles of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest --quiet tests/test_architecture.py

# A quick set, within fifteen minutes on two cores. benchmarks/README.md has the commands of all figures.
bench: $(STAMP) ## measure this machine: training beside plain Keras, the scheduler, the service
	@$(BIN)/python benchmarks/start.py --small
	@$(BIN)/python benchmarks/fit.py --small
	@$(BIN)/python benchmarks/scheduler.py --small
	@$(BIN)/python benchmarks/service.py --cases first-line,listing,console,followers --small

docs: $(STAMP) ## write the reference of the command line and the table of symbols anew
	$(BIN)/python -m lockstep.cli.reference
	$(BIN)/python -m lockstep.migration
	$(BIN)/python -m lockstep.upstream

docs-site: $(STAMP) ## build the site of the documentation, without a dead link
	@$(BIN)/python docs/site/build.py

# Once .demo is gone, nothing knows of what still runs in it: so this comes first, and has to succeed. These two files
# are there for as long as a service or its engine may be.
clean: ## remove .venv, caches and the demo's folder
	@if test -e $(DEMO_HOME)/service.json -o -e $(DEMO_HOME)/engine/head.json; then \
	  { test -x $(BIN)/lockstep && LOCKSTEP_HOME="$(CURDIR)/$(DEMO_HOME)" $(BIN)/lockstep down --cancel; } || { \
	    echo "lockstep: error: the service of $(DEMO_HOME) could not be taken down;" \
	      "run make setup and try again, or end it and remove .demo by hand" >&2; exit 1; }; \
	fi
	rm -rf .venv .demo .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
