# Everything runs in .venv, made on first use. `make demo` and `make test` are all that a fresh clone needs.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
NEW_SEED := $(shell date +%s)
JOBS ?= 4
# Where an image sets it, each of some hundred fresh interpreters compiles all of our files again: a second of a processor.
unexport PYTHONDONTWRITEBYTECODE
# The lowest versions that pyproject.toml promises, and what of torch's private interfaces is held to them.
OLDEST_PYTHON ?= python3.10
OLDEST := build/oldest
NEWEST := build/newest
DEPLOY_TOOLS := build/deploy-tools
INTERFACES = $$(grep -o 'tests/processes/[a-z_*]*\.py' docs/internals/private-interfaces.md | sort -u)
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(STAMP)  ## make .venv and install everything, pinned by constraints.txt

$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## lose workers on purpose, lose all, resume smaller, and compare the weights
	@$(BIN)/python -m elastic demo

check: $(STAMP)  ## lint, types, and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

docs: $(STAMP)  ## the pages, in build/site: a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pure: $(STAMP)  ## the pure tests, which start no process and wait for nothing
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/pure

quick: $(STAMP)  ## lint, types and the pure tests, at the same time
	$(MAKE) --jobs=2 --output-sync=target check pure

test: $(STAMP)  ## what CI runs: lint, types, pages, and of the longest tests a sample, different ones each day
	$(MAKE) --jobs=2 check docs
	$(PYTEST)

busy: $(STAMP)  ## the same tests beside four busy loops: load must not decide
	@loops=; for i in 1 2 3 4; do timeout 7200 $(BIN)/python -c "while True: pass" & loops="$$loops $$!"; done; \
	trap "kill $$loops" EXIT; $(PYTEST)

nightly: check docs  ## every test with all its cases, then the soak, the kills and the counts
	NIGHTLY=1 $(PYTEST)
	$(MAKE) soak kills counts

oldest: $(OLDEST)/.installed  ## pure tests, runs of one worker, storages and private interfaces with the lowest versions: make oldest TESTS=tests/pure
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist worksteal $(or $(TESTS),tests/pure tests/one_process tests/storage $(INTERFACES))

$(OLDEST)/.installed: pyproject.toml setup.py constraints-oldest.txt
	$(OLDEST_PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints-oldest.txt --editable '.[test]'
	touch $@

newest: $(NEWEST)/.installed  ## the same tests and the demo with the newest torch, which `pip install` brings: make newest TESTS=tests/pure
	$(NEWEST)/bin/elastic demo
	$(NEWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal $(or $(TESTS),tests/pure tests/one_process tests/storage $(INTERFACES))

$(NEWEST)/.installed: pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv --clear $(NEWEST)
	grep -v '^torch==' constraints.txt >$(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install -qq --disable-pip-version-check --constraint $(NEWEST)/constraints.txt --editable '.[test]'
	touch $@

deploy-tools: $(DEPLOY_TOOLS)/.installed  ## what knows the files of deploy/: linters, validators, schemas, kubectl

build/deploy-%/.installed: tests/deploy/%.txt
	$(PYTHON) -m venv --clear build/deploy-$*
	build/deploy-$*/bin/python -m pip install -qq --no-compile --disable-pip-version-check --requirement $<
	touch $@

deploy-check: $(STAMP) deploy-tools  ## the files of deploy/, strictly: no cluster, no container, no account
	DEPLOY=1 $(PYTEST) tests/deploy

deploy-nightly: $(STAMP) deploy-tools build/deploy-ray/.installed build/deploy-sky/.installed  ## these, and what needs a server, an image or a cluster: make deploy-nightly TESTS=tests/deploy/test_ray.py
	DEPLOY=1 NIGHTLY=1 $(PYTEST) --timeout=3600 $(or $(TESTS),tests/deploy)

kubernetes: build/kubernetes/kubelet  ## compiles what tests/deploy/test_cluster.py runs: as root on Debian 12, 16 minutes of a processor

build/kubernetes/kubelet:
	tests/deploy/compile_kubernetes.sh build/kubernetes

soak: $(STAMP)  ## 200 random drills, 100 of hosts, and 200 faults in one run: make soak DRILLS=50 SEED=7, or HOSTS=9, FAULTS=50
ifneq ($(or $(DRILLS),$(if $(HOSTS)$(FAULTS),,200)),)
	SEED=$(or $(SEED),$(NEW_SEED)) DRILLS=$(or $(DRILLS),200) $(BIN)/python -m pytest -s tests/processes/test_random_drills.py::test_random_drills_keep_every_promise
endif
ifneq ($(or $(HOSTS),$(if $(DRILLS)$(FAULTS),,100)),)
	SEED=$(or $(SEED),$(NEW_SEED)) HOSTS=$(or $(HOSTS),100) $(BIN)/python -m pytest -s tests/hosts/test_random_drills.py
endif
ifneq ($(or $(FAULTS),$(if $(DRILLS)$(HOSTS),,200)),)
	SEED=$(or $(SEED),$(NEW_SEED)) FAULTS=$(or $(FAULTS),200) $(BIN)/python -m pytest -s --timeout=3600 tests/processes/test_soak.py
endif

kills: $(STAMP)  ## 100 SIGKILLs of trainers, writers and agents at random moments: make kills KILLS=20 KILLS_SEED=7
	KILLS_SEED=$(or $(KILLS_SEED),$(NEW_SEED)) KILLS=$(or $(KILLS),100) $(BIN)/python -m pytest -s --timeout=3600 tests/processes/test_kills.py

counts: $(STAMP)  ## what disturbs a run, often: make counts COUNT=starts STARTS=20 COUNTS_SEED=7, or STRAYS, STOPS, PEERS, DRILLS with SEED
	NIGHTLY=1 COUNTS_SEED=$(or $(COUNTS_SEED),$(NEW_SEED)) SEED=$(or $(SEED),$(NEW_SEED)) STRAYS=$(or $(STRAYS),10000) \
	STARTS=$(or $(STARTS),200) STOPS=$(or $(STOPS),5) PEERS=$(or $(PEERS),60) DRILLS=$(or $(DRILLS),100) \
	$(BIN)/python -m pytest -s --timeout=43200 $(if $(COUNT),tests/counts/test_$(COUNT).py,tests/counts)

notices: $(STAMP)  ## 100 notices at drawn moments of one run, each whatever it is doing: make notices NOTICES=20 SEED=7
	SEED=$(or $(SEED),$(NEW_SEED)) NOTICES=$(or $(NOTICES),100) $(BIN)/python -m pytest -s -k any_moment tests/processes/test_random_notices.py

gpu: $(STAMP)  ## what only a GPU can answer, with figures, on a machine with one or more: make gpu DEVICE=cpu rehearses it
	DEVICE=$(DEVICE) $(BIN)/python -m pytest -s --timeout=900 tests/gpu

bench: $(STAMP)  ## the benchmarks, a line each; one of them: make bench NAME=recovery OPTIONS="--quick"
	@$(BIN)/python -m tests.benchmarks $(NAME) $(OPTIONS)

clean:  ## remove .venv, caches and the pages
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

.PHONY: help setup demo check docs pure quick test busy nightly oldest newest deploy-tools deploy-check deploy-nightly kubernetes soak kills counts notices gpu bench clean
