# Each target does its own set-up. `make help` lists them.
SHELL := /bin/bash
PYTHON := .venv/bin/python
WORKERS ?= 2
PYTEST_ARGS ?=
SLOW_ARGS ?=
SOAK_ARGS ?=
BENCH_ARGS ?=

# A test run or a demo inside somebody's activated environment must not see it.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# pytest rewrites the asserts of a thousand files: once, not at each run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick coverage check docs format bench soak prove clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## virtual environment, Python packages, system packages where allowed
	@tools/setup.sh

demo: ## train on real digits through the queue: live lines, metrics, stored files
	@tools/setup.sh --without-horovod
	@$(PYTHON) examples/demo.py

test: check ## everything CI runs: checks and all tests
	@$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" --durations=15 $(PYTEST_ARGS)

quick: setup ## in 90 s: the checks, and the unit and contract tests that are not long: for the loop
	@tools/quick.sh -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

coverage: setup ## branch coverage of the quick tests: a table, and pages in build/coverage
	@$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup tests/unit tests/contract \
		-m "not slow and not ray and not storage and not conformance" \
		--cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

check: setup ## format, lint, types, layers, texts, links, the site
	@tools/check.sh
	@$(MAKE) --no-print-directory docs

docs: setup ## the documents and the API as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet
	@echo "site: build/site/index.html"

format: setup ## put the code in order
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

bench: setup ## measure, with the peer beside it
	@$(PYTHON) -m benchmarks $(BENCH_ARGS)

soak: setup ## the slow tests, then half an hour of real Ray under a nemesis (SOAK_ARGS="--minutes 3")
	@$(PYTHON) -m pytest -m slow --durations=15 $(SLOW_ARGS)
	@$(PYTHON) -m tests.soak $(SOAK_ARGS)

prove: setup ## switch each fault's handler off once: its tests must turn red
	@$(PYTHON) tools/prove_faults.py

clean: ## remove what set-up, tests, demo and bench made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		build dist demo-output bench-output soak-output
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
