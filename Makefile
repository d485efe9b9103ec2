# Four verbs for contributors: install, fix, check, test. `make help` lists all.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES := $(or $(ASTROLABE_ENGINES),.engines)

.DEFAULT_GOAL := help
.PHONY: help install demo engines test-engines test check fix bench bench-predictor bench-tagger chaos soak rivals clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/' | expand -t 12

install: $(STAMP) ## a virtual environment with everything that runs and tests

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[onnx,evaluation,dev]'
	@touch $(STAMP)

demo: $(STAMP) ## a local stack under load, and a table of what happened (ENGINE=vllm: two real ones)
	$(DEMO_$(or $(ENGINE),simulated))
DEMO_simulated = $(BIN)/astrolabe demo
DEMO_vllm = $(BIN)/python -m engines.demo vllm

engines: $(STAMP) ## real engines on this machine, each in an environment of its own
	$(BIN)/python -m engines

test-engines: $(STAMP) ## the adapters against the real engines that `make engines` set up
	$(ENGINES)/vllm/bin/python -m pytest -o filterwarnings=ignore tests/engines/test_vllm.py tests/engines/test_vllm_server.py
	$(ENGINES)/sglang/bin/python -m pytest -o filterwarnings=ignore tests/engines/test_sglang.py
	$(BIN)/python -m pytest tests/engines

test: $(STAMP) ## the whole test suite, against a NATS server that it starts itself
	$(BIN)/python -m pytest

check: $(STAMP) ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(STAMP) ## mend what lint and format can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## the pipeline's own added latency, beside the bus's floor
	$(BIN)/python -m bench.pipeline

bench-predictor: $(STAMP) ## one prediction, beside the step-by-step reference
	$(BIN)/python -m bench.predictor

bench-tagger: $(STAMP) ## the length model as it is served, one core
	$(BIN)/python -m bench.tagger

chaos: $(STAMP) ## break a stack on purpose: SEED=1 MINUTES=10
	$(BIN)/python -m bench.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),10)

soak: $(STAMP) ## 1,500 streams at once, and whose memory grows: STREAMS=1500 MINUTES=5
	$(BIN)/python -m bench.soak --streams $(or $(STREAMS),1500) --minutes $(or $(MINUTES),5)

rivals: $(STAMP) ## our pipeline against real routers, on the same simulated engines
	$(BIN)/python -m evaluation.rivals

clean: ## remove the environment and caches, not the engines
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis bench-results
