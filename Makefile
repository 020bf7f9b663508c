# Each target does its own set-up. What is there already is not made again.
# PYTHON=/path/to/python3.12 names the Python to make .venv with; where .venv was made with another, set-up says so.

PYTHON ?=
export PYTHON

BIN := .venv/bin
MODEL := smollm2-135m

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-sdks kernels-aot kernels-tune gpu-check lint format docs docs-plots docs-reference soak bench-engine bench-mixed bench-admission bench-overhead bench-hedging bench-intake bench-simulate bench-million bench-classes bench-agreement bench-plan model setup setup-dev clean

help:  ## Say what there is.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: setup model  ## Chat and a bulk job on one engine, measured: no key, no server. Ends with a table and a plot.
	@$(BIN)/orchestra demo

test: setup-dev model  ## All tests.
	@echo "==> running the tests"
	@$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-sdks: setup-dev model  ## Other SDKs and real servers, each in an environment of its own. 20 minutes and 9 GB the first time.
	@nice $(BIN)/python tests/sdks/run.py $(ARGS)

kernels-aot: setup-dev  ## Compile every kernel for every target, without a GPU. ARGS='--help' tells more.
	@$(BIN)/python -m orchestra.kernels.aot $(ARGS)

kernels-tune: setup-dev  ## On a GPU: time how each kernel may be launched, and write the best into kernels/launch.json.
	@$(BIN)/python -m orchestra.kernels.tune $(ARGS)

gpu-check:  ## Kernels and engine on a CUDA GPU, against what it can do: five minutes, no network. ARGS='--rehearse' without one.
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) benchmarks/gpu_check.py $(ARGS)

lint: setup-dev  ## Format, style and types, as CI checks them.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup-dev  ## Put the source into its form.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup-dev  ## The documentation, into site/. Fails where a link, an anchor or a page is missing.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)
	@echo "==> site/index.html"

docs-plots: setup-dev model  ## Measure what the documentation shows, and draw it: ten minutes, on a quiet machine.
	@$(BIN)/python benchmarks/docs_plots.py $(ARGS)

docs-reference: setup-dev  ## The pages of the reference that are made from the code: settings, errors, events, commands.
	@$(BIN)/python scripts/docs_reference.py

soak: setup-dev model  ## The long randomised tests, whole: an hour or more.
	@echo "==> running the long tests, whole"
	@$(BIN)/pytest -m soak --soak --timeout=0 $(ARGS)

bench-mixed: setup-dev  ## Interactive and bulk calls through one account, ours and five other clients. ARGS='--help' tells more.
	@$(BIN)/python benchmarks/mixed_load.py $(ARGS)

bench-engine: setup-dev model  ## Our engine against others on this machine: tokens a second, memory, equal texts. Half an hour.
	@$(BIN)/python benchmarks/engine.py $(ARGS)

bench-admission: setup-dev  ## What the budget costs: time a call, alone and behind 100,000 others, and memory a waiter.
	@$(BIN)/python benchmarks/admission.py $(ARGS)

bench-overhead: setup-dev  ## CPU time a call: OpenAI's SDK over ours and over its own client, bare clients beside them.
	@$(BIN)/python benchmarks/overhead.py $(ARGS)

bench-hedging: setup-dev  ## What sending late calls twice does to the slowest answers, in virtual time.
	@$(BIN)/python benchmarks/hedging.py $(ARGS)

bench-intake: setup-dev  ## What a file of a million lines costs: its check, and its way into the ledger.
	@$(BIN)/python benchmarks/intake.py $(ARGS)

bench-simulate: setup-dev  ## Whether `orchestra simulate` tells beforehand what a real run waits, and how long it drains.
	@$(BIN)/python benchmarks/simulate_check.py $(ARGS)

bench-million: setup-dev  ## A million lines through `orchestra run` over batches, from the check to the results.
	@$(BIN)/python benchmarks/million_lines.py $(ARGS)

bench-classes: setup-dev model  ## Interactive requests among endless bulk work on one engine: what each loses to the other.
	@$(BIN)/python benchmarks/mixed_classes.py $(ARGS)

bench-agreement: setup-dev model  ## `orchestra bench` beside other load generators on one server: do they measure the same?
	@$(BIN)/python benchmarks/agreement.py $(ARGS)

bench-plan: setup-dev model  ## What `orchestra plan` says of this machine, against what the engine does on it.
	@$(BIN)/python benchmarks/plan_check.py $(ARGS)

clean:  ## Remove what was made here, the virtual environment included. The model's cache stays.
	rm -rf .venv build dist site demo-output benchmark-output *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup:
	@scripts/setup all

setup-dev:
	@scripts/setup all,dev

model:
	@$(BIN)/orchestra model pull $(MODEL)
