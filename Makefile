# Everything on a fresh machine: `make demo`, `make test`. The environment is made in .venv by whatever needs it first.
PYTHON ?= python3
BIN = .venv/bin
READY = .venv/ready

# A torch without CUDA is some 200 MB, one with CUDA some 5 GB on x86_64. Where there is no NVIDIA driver, torch comes from this
# index, if it can be reached; `make TORCH_INDEX=` leaves it to pip.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
REACH = import urllib.request; urllib.request.urlopen("$(TORCH_INDEX)/torch/", timeout=5)
FROM_INDEX = $(shell [ -z "$(TORCH_INDEX)" ] || command -v nvidia-smi >/dev/null || \
  { $(PYTHON) -c '$(REACH)' 2>/dev/null && echo --extra-index-url $(TORCH_INDEX); } || \
  echo "note: $(TORCH_INDEX) cannot be reached: torch comes from the usual index, on x86_64 with CUDA" >&2)
PIP_INSTALL = -m pip install --quiet --constraint constraints.txt

# The oldest and the newest Python that we name.
PYTHONS = 3.10 3.14

# Processes that share the tests. A fixed number: a container may show all processors of its machine, and have one.
# A worker takes its tests file by file, so that what a file sets up is set up once; one that is done takes over half of
# what the other has left, so that neither waits for a long file.
WORKERS ?= 2
PYTEST = -m pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: demo test test-all coverage chaos browser lint audit docs wheel bench clean

demo: $(READY)
	@echo "selex demo --out demo"
	@$(BIN)/selex demo --out demo

test: $(READY) browser
	$(BIN)/python $(PYTEST)

# The same, slower, with a list of the lines that no test reaches; fails if there are too many of them.
coverage: $(READY) browser
	$(BIN)/python $(PYTEST) --cov --cov-report=term-missing

# Breaks things on purpose, for hours; CHAOS="--minutes 30" does what there is time for, CHAOS=--short what `make test` does.
chaos: $(READY)
	PYTHONPATH=tests $(BIN)/python -m chaos --out benchmarks/results/reliability/chaos.json $(CHAOS)

# Each Python that uv, pyenv or the path has, in an environment of its own; the others are named.
test-all: browser
	@failed=; for version in $(PYTHONS); do \
	  python=$$(uv python find --no-project $$version 2>/dev/null || ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
	  python=$${python:-$$(command -v python$$version)}; \
	  [ -n "$$python" ] || { echo "note: no Python $$version here: not tested with it" >&2; continue; }; \
	  $(MAKE) --no-print-directory test BIN=.venv-$$version/bin READY=.venv-$$version/ready PYTHON=$$python || failed="$$failed $$version"; \
	done; [ -z "$$failed" ] || { echo "error: tests fail with Python$$failed" >&2; exit 1; }

# Chromium, for the tests of pages: installed where that is possible; where it is not, they are skipped.
browser:
	@command -v chromium >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && { apt-get update -qq; apt-get install -qq -y chromium >/dev/null; }; } || \
	  echo "note: no chromium here: tests of pages in a browser are skipped" >&2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

# Whether what is installed has known vulnerabilities. It fails too where the index does not know, or cannot be asked.
audit: $(READY)
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//' > .venv-audit/installed.txt
	.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement .venv-audit/installed.txt

docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel, installed where there is nothing else: whether it holds all that it needs.
wheel:
	rm -rf dist .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	.venv-wheel/bin/python $(PIP_INSTALL) $(FROM_INDEX) dist/*.whl
	cd dist && ../.venv-wheel/bin/selex --help && ../.venv-wheel/bin/python -c "import selex; selex.HierarchicalKMeans()"
	.venv-wheel/bin/python $(PIP_INSTALL) "selex[all] @ file://$$(echo $(CURDIR)/dist/*.whl)"
	cd dist && ../.venv-wheel/bin/python -c "import selex.cli.demo, selex.review.server.serve, selex.serve"

bench: $(READY)
	$(BIN)/python $(PIP_INSTALL) --group bench
	$(BIN)/python benchmarks/cluster_cpu.py

# venv is missing from some Debian installations: it is installed where that is possible, and said where it is not
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y python3-venv; } || \
	  { echo "error: $(PYTHON) lacks venv: install it (Debian: apt-get install python3-venv), then make again" >&2; exit 2; }
	@echo "setting up $(@D), once: a virtual environment of its own"
	@$(PYTHON) -m venv $(@D)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@echo "installing selex, torch and the tools for tests and docs: a few minutes, longer on a slow connection"
	@$(BIN)/python $(PIP_INSTALL) $(FROM_INDEX) --editable ".[all]" --group dev
	@touch $(READY)
	@echo "$(@D) is ready"

clean:
	rm -rf .venv .venv-* site build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
