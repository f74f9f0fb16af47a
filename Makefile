# One command each. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
WORKERS ?= 2
BY_FILE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-sim test test-long browser check format coverage golden bench bench-kube kube-test soak chaos mutants docs clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("stead needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(DOCS_INSTALLED): pyproject.toml | $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

setup: $(INSTALLED) ## create .venv and install stead with its tools

demo: $(INSTALLED) ## five real Ray nodes on this machine, work with every kind of rule, and why some of it is pending
	$(BIN)/stead demo

demo-sim: $(INSTALLED) ## the same in virtual time: place the work of scenarios/demo.yaml on six simulated nodes
	$(BIN)/stead sim scenarios/demo.yaml

test: $(INSTALLED) browser ## run the tests
	$(BIN)/python -m pytest -q $(BY_FILE)

test-long: $(INSTALLED) browser ## the tests that take long: failures, queues and restarts on real Ray nodes
	$(BIN)/python -m pytest -q $(BY_FILE) -m long tests

kube-test: $(INSTALLED) ## the tests against a real kube-apiserver; the first run builds it, which takes 4 to 9 minutes
	@if timeout 25m $(BIN)/python -m tests.kubernetes.servers.real obtain; then \
		$(BIN)/python -m pytest -q $(BY_FILE) -m kube tests; \
	else echo "there is no kube-apiserver here, so the tests that need one are skipped"; fi

browser: ## install chromium for the tests of the pages, where apt can
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
		|| echo "there is no chromium here, so the tests of the pages are skipped; install it to run them"

check: $(INSTALLED) ## formatting, lint, types, layers, tidiness
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

format: $(INSTALLED) ## format the code and apply the safe fixes of the linter
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(INSTALLED) ## the engine and the language: over 95 % by branch
	$(BIN)/python -m pytest -q -n $(WORKERS) --cov=stead --cov-branch --cov-report=
	$(BIN)/coverage report --include='src/stead/engine/*,src/stead/language/*,src/stead/errors.py' --fail-under=95

golden: $(INSTALLED) ## write the golden files again; read the difference before you commit it
	STEAD_GOLDEN=write $(BIN)/python -m pytest -q tests/cli tests/sim tests/behaviour tests/service tests/test_docs.py

bench: $(INSTALLED) ## measure speed against the oracle and write benchmarks/results.json
	$(BIN)/python -m benchmarks

bench-kube: $(INSTALLED) ## measure the Kubernetes scheduler on a real kube-apiserver and write benchmarks/kube_results.json
	@timeout 25m $(BIN)/python -m tests.kubernetes.servers.real obtain
	$(BIN)/python -m benchmarks.kube

soak: $(INSTALLED) ## the property tests with many more examples
	STEAD_SOAK=1 $(BIN)/python -m pytest -q -n $(WORKERS) tests/engine tests/flow tests/language tests/operate tests/service tests/cli/test_any_arguments.py tests/on_ray/test_slots.py

SEED ?= 1
KILLS ?= 200

chaos: $(INSTALLED) ## real Ray nodes under load while workers, nodes and the controller are killed: KILLS=200 SEED=1
	$(BIN)/python -m tests.on_ray.chaos --seed $(SEED) --kills $(KILLS)

mutants: $(INSTALLED) ## mutation testing of language/labels.py and engine/rules.py; then: .venv/bin/mutmut results
	$(BIN)/mutmut run

docs: $(DOCS_INSTALLED) ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove everything that can be made again, .venv included
	rm -rf $(VENV) site mutants build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
