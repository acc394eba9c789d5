# Needs python3 >= 3.11 with venv, and make; everything else comes from pip, into .venv.
# The stamp makes that happen once for each pyproject.toml, so that later runs need no network.

PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
BIN     := .venv/bin
READY   := .venv/.ready
SOURCES  = $(wildcard pool examples tests benchmarks tools)
SECONDS ?= 60
SEED    ?= 1
MINUTES ?= 10
SEEDS   ?= 100
LANES   ?= 1 4
FIRST   ?= 0
JOBS    ?= 2
SCALE   ?= 1
COUNT   ?= 100
JOBS_OVER_HTTP ?= 10000
PARALLEL = -n $(WORKERS) --dist worksteal
WORKERS ?= 8
# The image of a container may forbid bytecode: then each of the hundreds of processes that tests
# start compiles the library anew, and `test` takes 1.4 times as long.
export PYTHONDONTWRITEBYTECODE =

.PHONY: check prepared collected test test-ops test-all test-loops test-long test-cron test-web test-cluster test-sentinel test-languages demo docs docs-serve reference recording captures stranger lint fmt bench bench-peers bench-fleet bench-looking verify sim sim-fresh steps chaos chaos-each mutants small-mutants soak clean

# A minute and a half before each commit: each test on one of the event loops, half of them on either.
# These compute more than they wait.
check: WORKERS = 4
check: prepared
	POOL_TEST_LOOPS=one $(BIN)/python -m pytest $(PARALLEL) -m "not slow and not long and not languages"

test: prepared
	$(BIN)/python -m pytest $(PARALLEL)

test-long: $(READY)
	$(BIN)/python -m pytest -m long

# Cron times beside a search by minutes: around each change of each zone's clock from 2020 to 2037, and
# in whole years of the oddest zones.  `test` has a sample.
test-cron: $(READY)
	$(BIN)/python -m tests.verify.cron --jobs $(JOBS)

# What a gateway answers, by its OpenAPI: at each boundary of each schema, and call after call.
test-web: $(READY)
	POOL_TEST_WEB=long $(BIN)/python -m pytest tests/web/test_contract.py

# The guarantees of the kernel again: on three primaries of a cluster, and on a primary with a
# replica and three sentinels.  `test` has the short forms.
test-cluster test-sentinel: $(READY)
	POOL_TEST_ON=$(@:test-%=%) $(BIN)/python -m pytest $(PARALLEL) tests/runtime tests/maps tests/jobs tests/process

# What operators get, by Prometheus' own tool: its rules fire when they should, and what is scraped is
# named as it wants.  On Debian: apt install prometheus.  Not part of `test`.
test-ops: $(READY)
	@command -v promtool >/dev/null || { echo "test-ops needs promtool (on Debian: apt install prometheus)" >&2; exit 1; }
	cd examples/ops && promtool check rules alerts.yml && promtool test rules alerts_test.yml
	cd examples/ops && promtool check config prometheus.yml && promtool check config prometheus-compose.yml
	$(BIN)/python -m tools.scrape /metrics | promtool check metrics
	$(BIN)/python -m tools.scrape /metrics/pool | promtool check metrics
	$(BIN)/python -m pytest tests/ops/test_ops_examples.py

# Workers over HTTP in JavaScript, Go and sh: each under SIGKILL of itself and of gateways, and then
# JOBS_OVER_HTTP jobs by eight of them.  Node and Go come in wheels, of 700 MB; curl and jq must be there: on
# Debian: apt install curl jq.  Not part of `test`.
test-languages: $(READY)
	@command -v curl >/dev/null && command -v jq >/dev/null || { echo "test-languages needs curl and jq (on Debian: apt install curl jq)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --group languages
	$(BIN)/python -m pytest -m languages tests/languages
	$(BIN)/python -m tests.languages.campaign --jobs $(JOBS_OVER_HTTP) --seed $(SEED)

# On both event loops what `test` runs on one of them, half on either: see tests/conftest.py.
test-loops: prepared
	POOL_TEST_LOOPS=both $(BIN)/python -m pytest $(PARALLEL)

# The tests hold short forms of all the others.
test-all: test-loops test-long test-cron test-web test-cluster test-sentinel test-languages verify sim steps chaos chaos-each mutants

demo: $(READY)
	$(BIN)/pool demo

# The site, in build/site; a warning is an error.  The variable leaves out an advertisement.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

docs-serve: $(READY)
	$(BIN)/mkdocs serve

# What the documents have from the code: settings, errors, events, commands, keys, scripts.
reference: $(READY)
	$(BIN)/python -m tools.reference

# docs/assets/demo.svg, from a real run of the demo.
recording: $(READY)
	$(BIN)/python -m tools.recording

# docs/how-to/terminal.md: what verbs print, from a real run.
captures: $(READY)
	$(BIN)/python -m tools.captures

# Install, first program, two terminals, tutorial: in a fresh clone, with a clean PATH, timed.
stranger: $(READY)
	$(BIN)/python -m tools.stranger

# Beside what `lint` does on one core: else each process of the tests rewrites all their asserts.
prepared: $(READY)
	@$(MAKE) --no-print-directory -j2 lint collected

collected: $(READY)
	-$(BIN)/python -m pytest --collect-only -qq > /dev/null

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(SOURCES)

fmt: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks.throughput --out build/bench.json

# Beside arq, Celery and eight others, each in .peers/NAME; writes docs/benchmarks.md and its plots,
# and what other pages quote of it.  25 minutes on a machine that does nothing else, or it refuses.
# A short run that writes nothing: .venv/bin/python -m benchmarks.peers --quick --busy
bench-peers: $(READY)
	$(BIN)/python -m benchmarks.peers --out docs/benchmarks.md || [ $$? -eq 1 ] # one of them failed
	$(BIN)/python -m tools.reference

# What only a pool does, at the size of a fleet: takeovers, deployments, 100,000 services.
bench-fleet: $(READY)
	$(BIN)/python -m benchmarks.fleet --scale $(SCALE)

# What looking at a pool of a million jobs and 1,000 workers costs; 2 GB of memory, a minute or two.
bench-looking: $(READY)
	$(BIN)/python -m benchmarks.looking

verify: $(READY)
	$(BIN)/python -m tests.verify.proofs

# Jobs, services, followers, batches, schedules, in one lane and in several.
chaos: $(READY)
	$(BIN)/python -m tests.verify.chaos --seconds $(SECONDS) --seed $(SEED) --lanes $(LANES)

chaos-each: $(READY)
	$(BIN)/python -m tests.verify.chaos --each --seed $(SEED)

soak: $(READY)
	$(BIN)/python -m tests.verify.soak --minutes $(MINUTES) --seed $(SEED)

# The whole fleet under virtual time and seeded faults; one seed again: --seed S [--shrink].
sim: $(READY)
	$(BIN)/python -m tests.verify.sim --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

# Seeds that nobody has run, behind those of tests/verify/sim/ranges.txt; prints the line for that list.
sim-fresh: SEEDS = 300
sim-fresh: $(READY)
	$(BIN)/python -m tests.verify.sim.fresh --seeds $(SEEDS) --jobs $(JOBS)

# A crash right before and right after each command of each transition.
steps: $(READY)
	$(BIN)/python -m tests.verify.sim.steps

# Planted bugs, each of which the simulation must find; writes docs/mutants.md.
mutants: $(READY)
	$(BIN)/python -m tests.verify.mutants --jobs $(JOBS)

# Lines changed at random, each of which the tests must notice; writes docs/small-mutants.md.
small-mutants: $(READY)
	$(BIN)/python -m tests.verify.small --jobs $(JOBS) --seed $(SEED) --count $(COUNT)

clean:
	rm -rf .venv .peers .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find pool examples tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml
	@for python in $(PYTHONS); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then echo "$$python -m venv .venv"; exec $$python -m venv --clear .venv; fi; \
	done; \
	echo "pool needs python3 >= 3.11 with venv; none of these is that: $(PYTHONS)." \
	  "On Debian: apt install python3-venv" >&2; exit 1
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' # the first that knows --group
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@
