# Every verb but `install` depends on .venv, which is made once (and again when the dependencies change).
PYTHON ?= python3
BIN := $(if $(filter Windows_NT,$(OS)),.venv/Scripts,.venv/bin)
PY := $(BIN)/python
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install app demo test check bench campaign kills machines docs

help: ## list the verbs
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install -q -c constraints.txt -e '.[app,demo,dev]'
	@touch $@

install: .venv/installed ## make .venv and install everything, once

app: install ## serve the web page on http://127.0.0.1:7860
	$(PY) app/app.py

demo: install ## break a small training three times and see it end right
	@$(PY) -m fluxguard demo

test: install ## run all tests, shared by so many workers; WORKERS=0 runs them in one process
	$(PY) -m pytest -n $(WORKERS)

check: install ## lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install ## measure the bars, with peers; prints a table and writes bench.json (BENCH=guard: a part)
	@$(PY) -m tests.bench $(BENCH)

campaign: install ## break trainings in every way at random moments; prints a table and writes campaign.json
	@$(PY) -m tests.campaign $(CAMPAIGN)

kills: install ## the long version of the tests that kill at random: training, ranks, saving and patching
	CAMPAIGN_KILLS=20 $(PY) -m pytest tests/campaign -k "kill and not test_campaign"

machines: install ## let two machines train together and pull the cable between them; needs root, for network namespaces
	MACHINES=namespaces $(PY) -m pytest tests/supervisor/test_machines.py

docs: install ## write the generated pages of docs/
	$(PY) -m fluxguard.patching.document docs/rules.md
	$(PY) -m fluxguard.patching.scan_document docs/scan.md
	$(PY) -m fluxguard.supervisor.causes.document docs/what-goes-wrong.md
