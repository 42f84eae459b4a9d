# `make check` runs every check. Only Python 3.10 or later and make are needed; everything else is installed here.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The oldest supported Ray, on which the tests marked `smoke` run in an environment of their own.
OLDEST_RAY := 2.49.2
OLDEST := .venv-oldest
# Without compiled bytecode Ray's workers start three times slower; see docs/performance.md.
export PYTHONDONTWRITEBYTECODE :=
COMPILE = $(1)/bin/python -m compileall -q $(1)/lib schedulemesh >/dev/null || true

.PHONY: env demo test skipped smoke check format lint types contracts docs site bench drill fuzz explore dist release-check clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.full: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[full]'
	@$(call COMPILE,$(VENV))
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@$(call COMPILE,$(VENV))
	@touch $@ $(VENV)/.full

$(OLDEST)/.done: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet 'ray[default]==$(OLDEST_RAY)' -e '.[dev]'
	@$(call COMPILE,$(OLDEST))
	@touch $@

env: $(VENV)/.dev ## Install everything that tests and checks need

demo: $(VENV)/.full ## Run the training demo on a local Ray
	$(BIN)/python -m schedulemesh demo

# Four runs at the same time, on two processors, because tests wait for processes and for time as often as they
# compute. Two have the tests without Ray, from both ends until they meet. The third has those that share a Ray, then
# those that load large libraries. The fourth has those that start clusters of their own, and then it takes what the
# third has from the other end, on a Ray of its own, until the two meet.
ON_RAY := tests/integration
LIBRARIES := $(ON_RAY)/libraries
CLUSTERS := tests/clusters tests/drills $(LIBRARIES)
# The modules in a folder, and from the last to the first.
MODULES = $(sort $(wildcard $(addsuffix /test_*.py,$(1))))
BACKWARDS = $$(printf '%s\n' $(call MODULES,$(1)) | sort -r)
WITHOUT_RAY := $(filter-out $(addsuffix /%,$(ON_RAY) tests/clusters tests/drills),\
	$(sort $(shell find tests -name 'test_*.py')))
# The longest begins first, so that no run waits for it at the end.
LONGEST := $(ON_RAY)/test_project_layouts.py
LONGEST_FIRST = $(LONGEST) $(filter-out $(LONGEST),$(1))
RUNS := .pytest_cache/runs
LOGS_BESIDE := $(addprefix $(RUNS)/,from_the_end.log on_ray.log clusters.log)
SKIPPED := .pytest_cache/skipped
# No test begins after that, so that a Ray that has been broken does not let every other test run into its limit.
RUN = { $(BIN)/python -m pytest -p tests.runs --session-timeout=5400 --report=$(RUNS)/$(1).jsonl $(2); \
	echo "run $(1): exit status $$?"; }
LOGGED = $(call RUN,$(1),$(2)) 2>&1 | tee $(RUNS)/$(1).log
# A run whose output is shown when it has ended, with a cache of its own.
BESIDE = $(call RUN,$(1),-o cache_dir=.pytest_cache/$(1) --claims=$(RUNS)/claims $(2)) >$(RUNS)/$(1).log 2>&1 &
SUM_UP = $(BIN)/python -m tests.runs --skipped=$(SKIPPED) $(patsubst %,$(RUNS)/%.jsonl,$(1))

test: $(VENV)/.dev ## Run all tests; the last lines say what passed, failed and was skipped
	@rm -rf $(RUNS) && mkdir -p $(RUNS)/claims
	@trap 'cat $(LOGS_BESIDE)' TERM; \
	$(call BESIDE,on_ray,$(call LONGEST_FIRST,$(call MODULES,$(ON_RAY))) $(call BACKWARDS,$(LIBRARIES))) \
	$(call BESIDE,clusters,$(call MODULES,$(CLUSTERS)) $(call BACKWARDS,$(ON_RAY))) \
	$(call BESIDE,from_the_end,$$(printf '%s\n' $(WITHOUT_RAY) | sort -r)) \
	$(call LOGGED,without_ray,--claims=$(RUNS)/claims $(WITHOUT_RAY)); \
	wait; cat $(LOGS_BESIDE); \
	$(call SUM_UP,without_ray from_the_end on_ray clusters)

skipped: $(VENV)/.dev ## Run the tests that the last `make test` has skipped, after what they lacked was installed
	@rm -rf $(RUNS) && mkdir -p $(RUNS)
	@test -f $(SKIPPED) || { echo "no test was skipped: first run 'make test'"; exit 1; }
	@test ! -s $(SKIPPED) || { $(call LOGGED,skipped,@$(SKIPPED)); $(call SUM_UP,skipped); }

smoke: $(OLDEST)/.done ## Run the smoke tests on the oldest supported Ray; its own warnings are no errors
	$(OLDEST)/bin/python -m pytest tests/integration -m smoke -o filterwarnings= -p no:cacheprovider

check: format lint types contracts test ## Everything that must pass before a commit

format: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet schedulemesh tests examples benchmarks

lint: $(VENV)/.dev
	$(BIN)/ruff check schedulemesh tests examples benchmarks

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev ## Check links, commands and snippets of the documentation
	$(BIN)/python -m pytest tests/docs

$(VENV)/.docs: pyproject.toml | $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@

site: $(VENV)/.docs ## Build the site of the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/.dev ## Measure every figure of docs/performance.md
	$(BIN)/python -m benchmarks

drill: $(VENV)/.dev ## Kill processes and nodes on a real Ray and check recovery; DRILL_KILLS=200, DRILL_SEED= to repeat a run
	$(BIN)/python -m tests.drills.drill
	$(BIN)/python -m tests.drills.nodes
	$(BIN)/python -m tests.drills.node_kills

fuzz: $(VENV)/.dev ## An HTTP storm (STORM_S=20), then every public call with malicious values on a real Ray; FUZZ_CALLS=20000, FUZZ_SEED= to repeat
	$(BIN)/python -m tests.server.storm $(or $(STORM_S),20) $(FUZZ_SEED)
	$(BIN)/python -m tests.integration.request_fuzz $(or $(FUZZ_CALLS),20000) $(FUZZ_SEED)

# A fault that is found is reduced to its shortest form, which takes minutes: no test is ended before that.
explore: $(VENV)/.dev ## New examples for every state machine; EXPLORE_EXAMPLES=1000, EXPLORE_DAYS=365, EXPLORE_SEED= to repeat a run
	@set -e; seed=$${EXPLORE_SEED:-$$$$}; echo "EXPLORE_SEED=$$seed"; \
	SCHEDULEMESH_SEED=$$seed HYPOTHESIS_EXAMPLES=$(or $(EXPLORE_EXAMPLES),1000) HISTORIES_STIMULI=100000 \
	    $(BIN)/python -m pytest --hypothesis-profile=explore --hypothesis-seed=$$seed --timeout=0 \
	    $$(grep -rlE --include='*.py' 'HYPOTHESIS_EXAMPLES|SCHEDULEMESH_SEED' tests); \
	$(BIN)/python -m tests.runtime.stories --stories $(or $(EXPLORE_EXAMPLES),1000) --seed $$seed; \
	$(BIN)/python -m tests.sim.mixed_year --days $(or $(EXPLORE_DAYS),365) --seed $$seed

dist: export SOURCE_DATE_EPOCH ?= 315619200
dist: $(VENV)/.dev ## Build all distributions into dist/: the same commit gives the same bytes
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist packaging/schedulemesh
	$(BIN)/python -m build --wheel --outdir dist packaging/client
	$(BIN)/python packaging/same_archive.py dist/*.tar.gz

release-check: ## Check the distributions in dist/: what an index shows, and that tests are whole in the sdist
	$(BIN)/python -m pip install --quiet 'twine>=6.1,<8'
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.docs.sdist dist

clean:
	rm -rf $(VENV) $(OLDEST) build dist site *.egg-info
