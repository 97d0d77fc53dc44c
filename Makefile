# Everything on a fresh machine: `make demo`, `make test`. The environment is made in .venv by whatever needs it first.
PYTHON ?= python3
BIN = .venv/bin
READY = .venv/ready

.PHONY: demo test chaos browser lint docs bench clean

demo: $(READY)
	$(BIN)/selex demo --out demo

test: $(READY) browser
	$(BIN)/python -m pytest

# Breaks things on purpose, for an hour or so; CHAOS="--share 0.2" does a fifth of it, CHAOS=--short what `make test` does.
chaos: $(READY)
	PYTHONPATH=tests $(BIN)/python -m chaos --out benchmarks/results/reliability/chaos.json $(CHAOS)

# Chromium, for the tests of pages: installed where that is possible; where it is not, they are skipped.
browser:
	@command -v chromium >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && { apt-get update -qq; apt-get install -qq -y chromium >/dev/null; }; } || \
	  echo "note: no chromium here: tests of pages in a browser are skipped" >&2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	$(BIN)/python benchmarks/cluster_cpu.py

# venv is missing from some Debian installations: it is installed where that is possible, and said where it is not
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y python3-venv; } || \
	  { echo "error: $(PYTHON) lacks venv: install it (Debian: apt-get install python3-venv), then make again" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $(READY)

clean:
	rm -rf .venv site build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
