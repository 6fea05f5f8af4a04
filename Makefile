# Two commands matter: `make run` (a broker, nothing else) and `make test`.
# Everything lives in .venv. Two stamps say how much of it is there: `broker` (what a broker needs) and
# `complete` (the tools, the tests and Spark too). Both go stale when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BROKER   := $(VENV)/.stamp-broker
COMPLETE := $(VENV)/.stamp-complete
CLASSES  := .cache/spark-classes.jsa
PINS   := pyproject.toml constraints.txt
comma  := ,

# Tests start Python again and again. Where a machine tells it to keep no bytecode, each compiles everything anew: that was
# half of the processor time of the tests of the command line.
unexport PYTHONDONTWRITEBYTECODE

DATA  ?= data
FLAGS ?=

SEEDS ?= 10000
START ?= 0
SEED  ?=
PLANT ?=
NODES ?=
ONLY  ?=
LOOPS ?= 50
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup run test coverage check format sim sim-groups bench bench-spark bench-spark-kafka chaos clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/  make \1\t/' | expand -t 20

# pip brings uv (a few seconds), uv brings the rest several times faster; where uv cannot be had, pip does it all.
define install
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m uv --version >/dev/null 2>&1 \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv \
		|| echo "uv is not to be had here: pip installs, more slowly"
	@echo "installing $(1) into $(VENV)"
	@if $(BIN)/python -m uv --version >/dev/null 2>&1; \
		then $(BIN)/python -m uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '$(1)'; \
		else $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '$(1)'; \
	fi
endef

$(BROKER): $(PINS)
	$(call install,.[server])
	@touch $@

$(COMPLETE): $(PINS)
	$(call install,.[dev$(comma)server$(comma)spark])
	@touch $(BROKER) $@

setup: $(COMPLETE)  ## make .venv with everything: broker, tools, Spark

run: $(BROKER)  ## start a broker on ./data, installing only what it needs
	@exec $(BIN)/lanner up --data $(DATA) $(FLAGS)

$(CLASSES): $(COMPLETE)
	$(BIN)/python tools/spark_classes.py $@

# The pure rooms must be covered by their own unit tests; all other tests then run without the tracer's cost.
test: $(COMPLETE) $(CLASSES)  ## every test, and the coverage of the pure rooms; WORKERS=3 at a time
	$(BIN)/python -m pytest tests/unit -m covered -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=json:.cache/coverage.json
	$(BIN)/python tools/room_coverage.py .cache/coverage.json 97
	$(BIN)/python -m pytest tests -m "not covered" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

coverage: $(COMPLETE)  ## statements and branches of doors, broker, client, forwarding and proxy that their unit and contract tests pass
	$(BIN)/python -m pytest tests/unit/api tests/unit/broker tests/unit/client tests/unit/forwarding tests/unit/proxy tests/contract -n $(WORKERS) --dist loadfile --cov --cov-config=tools/shell_coverage.ini --cov-report=json:.cache/shell-coverage.json
	$(BIN)/python tools/room_coverage.py .cache/shell-coverage.json 90

check: $(COMPLETE)  ## format, lint, types and layering, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(COMPLETE)  ## format the code and fix what can be fixed safely
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: $(COMPLETE)  ## simulate: SEEDS=n START=n, or SEED=n to replay one; NODES=1, 3 or 5; PLANT=name plants a bug
	@$(if $(SEED)$(NODES)$(PLANT),,$(BIN)/python -m lanner.testing.simulate_groups --seeds $(SEEDS) --start $(START))
	@$(BIN)/python -m lanner.testing.simulate $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --start $(START)) $(if $(NODES),--nodes $(NODES)) $(if $(PLANT),--plant $(PLANT))

sim-groups: $(COMPLETE)  ## simulate members of groups only, some minutes for 10,000: SEEDS=n START=n, or SEED=n to replay one
	@$(BIN)/python -m lanner.testing.simulate_groups $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --start $(START))

bench: $(COMPLETE)  ## measure, each figure beside its floor; ONLY=name[,name] runs a part
	@$(BIN)/python -m bench.main $(if $(ONLY),--only $(ONLY))

bench-spark: $(COMPLETE)  ## what Spark reads and writes, beside the same rows from memory; latency to a foreachBatch; memory of workers
	@$(BIN)/python -m bench.spark

bench-spark-kafka: $(COMPLETE)  ## the same beside Spark's own Kafka connector and a Kafka broker, which Maven gets; else it is skipped
	@$(BIN)/python -m bench.spark_kafka

chaos: $(COMPLETE)  ## the long forms: LOOPS=50 kill -9, power loss, 10 GB through one partition, kills, 5,000,000 archived, Spark under fire
	$(BIN)/python -m pytest tests/integration -m "not spark" -p no:xdist --chaos --chaos-loops $(LOOPS) -s
	$(BIN)/python -m pytest tests/acceptance/test_archive.py -p no:xdist --chaos --durations=0
	$(BIN)/python -m pytest tests/acceptance/test_spark_standalone.py tests/acceptance/test_spark_beyond_document.py -p no:xdist --chaos
	$(BIN)/python -m pytest tests/acceptance/test_spark_under_fire.py tests/acceptance/test_spark_speculation.py -p no:xdist --chaos -s

clean:  ## remove .venv and caches (never data)
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
