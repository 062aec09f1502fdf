# Two commands set everything up on a fresh machine: `make demo` and `make test`.
#
# PYTHON    the interpreter the virtual environment is made from (3.11 or newer)
# PIP_ARGS  more arguments for pip, for example an index that offers torch without CUDA
# GRIDML_DATA, GRIDML_CACHE reach the programs through the environment, as everywhere else.

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# Newer than both files it depends on: the environment is up to date and is used again as it is.
STAMP := $(VENV)/.installed
BENCHMARKS := merge memory overhead kills condor.latency condor.evictions condor.stages condor.chunks \
              chunk_size simulated_scale paper_experiment local_goodput campaign crashes disks hostile hostile_steps \
              carriers local_ec2 spot.replay large_replicas new_user kept_chunks kept_after_restart \
              devices page graph_programs.kernels graph_programs.against_libmf graph_programs.against_tomotopy \
              graph_programs.hash_tables graph_programs.larger_than_memory graph_programs.mini_batches \
              graph_programs.workers graph_programs.slack graph_programs.threads graph_programs.linked \
              graph_programs.placed graph_programs.lines

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
# Modules are compiled once and not by each of hundreds of processes, which halves what a process takes to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test quick verify lint docs pool pool-firewalled pool-down clean
.DELETE_ON_ERROR:

help:
	@echo "make demo             train LeNet on MNIST on four workers that keep dying"
	@echo "make test             lint, types and tests"
	@echo "make quick            lint, types and the tests of the work in hand, two minutes at most"
	@echo "make verify           the long proofs and every benchmark"
	@echo "make lint             lint and types only"
	@echo "make docs             build the documentation in build/docs/site, and check its links"
	@echo "make pool             raise an HTCondor pool on this machine, and say how to use it"
	@echo "make pool-firewalled  the same with four workers behind firewalls (root)"
	@echo "make pool-down        take that pool down"
	@echo "make clean            remove the environment and the caches; runs/ stays"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; \
	    sys.exit(None if sys.version_info >= (3, 11) else f"Python {v} found, 3.11 or newer expected: make PYTHON=python3.11 ...")'
	@echo "setting up $(VENV) (a minute or two, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[all,test,dev,docs]"
	@touch $@

demo: $(STAMP)
	$(BIN)/gridml run examples/mnist.py --workers 4 --lifetime "normal(45m,10m)" --speedup 300 \
	    --run-dir "runs/demo-$$(date +%Y%m%d-%H%M%S)"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples
	$(BIN)/mypy -p docs.site -p docs.pictures

docs: $(STAMP)
	@$(BIN)/python -m docs.site

# What raises daemons waits most of the time: two files of it at once, and beside them lint, the documentation and all other
# tests, which yield to it, and are shown afterwards, so that pytest's summary is the last line; before it stand the tests
# that were skipped, and why. Of what raises daemons a test that failed is run once more, since it keeps times of its own
# on a machine that is shared, and named as RERUN among the last lines.
# pytest's own limit of a test cannot end one that hangs in compiled code; LIMIT ends its process, after a second try, too.
PYTEST := $(BIN)/python -m pytest -rfERs
LIMIT := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

test: $(STAMP)
	@mkdir -p build; $(BIN)/python -m compileall -q gridml chunk_model master remote ami pools benchmarks; \
	echo "tests that raise daemons; beside them lint and docs, into build/lint.log, and the rest, into build/rest.log"; \
	nice $(MAKE) --no-print-directory lint docs > build/lint.log 2>&1 & lint=$$!; \
	nice $(PYTEST) $(LIMIT) -m "not alone and not long" -n 2 --dist worksteal > build/rest.log 2>&1 & rest=$$!; \
	trap 'kill $$lint $$rest' INT TERM; \
	$(PYTEST) $(LIMIT) --reruns 1 -m "alone and not long" -n 2 --dist loadfile | tee build/alone.log; alone=$$?; \
	wait $$lint; lint=$$?; wait $$rest; rest=$$?; \
	cat build/lint.log; sed '$$d' build/rest.log; \
	if [ $$lint -ne 0 ]; then echo "FAILED lint or docs, see build/lint.log"; fi; \
	grep -hE '^(SKIPPED|RERUN|FAILED|ERROR)' build/alone.log; tail -n 1 build/rest.log; \
	[ "$$alone $$lint $$rest" = "0 0 0" ]

# What differs from the last commit, or the last commit itself, is looked at for at most two minutes.
quick: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@timeout 110 $(BIN)/mypy & types=$$!; \
	$(PYTEST) -q -n 2 --within 90 -m "not real and not alone and not long" $$($(BIN)/python tests/quick.py); tests=$$?; \
	wait $$types; types=$$?; if [ $$types -eq 124 ]; then echo "mypy was not done within 110 s"; fi; \
	[ "$$types $$tests" = "0 0" ]

# Properties are tried with all of their examples, of which `make test` tries a third.
verify: $(STAMP)
	$(BIN)/python -m pytest --hypothesis-profile whole -m "long or hypothesis"
	GRIDML_MAKE_ROOT=1 $(BIN)/python -m pytest tests/pools/ec2
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(BIN)/python -m benchmarks.$$benchmark; done

pool: $(STAMP)
	$(BIN)/python -m pools up

pool-firewalled: $(STAMP)
	$(BIN)/python -m pools up --firewalled

pool-down: $(STAMP)
	$(BIN)/python -m pools down

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
