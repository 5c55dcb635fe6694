# Every target sets the checkout up by itself: Python 3.11 or newer, make and git are enough.
#   make demo      train the digits example over processes, and check what it reaches
#   make test      the tests, without the slow ones        make slow   the slow ones, and more draws
#   make gpu       the tests that need a GPU; without one they skip with a reason
#   make ray       the runs on a Ray cluster of several nodes of this machine; installs Ray
#   make check     ruff, mypy (of the installed package), import contracts
#   make docs      the documentation, into docs/_build/html
#   make wheel     the package as a wheel, into dist
#   make bench     every benchmark                         make simulate   the fault simulator, SEEDS=n of each driver
#   make fuzz      frames of every kind, FRAMES=n, for everything that reads what others send
#   make storm     runs of every driver whose processes are killed and frozen, SECONDS=n, SEED=n
#   make soak      the same for HOURS=n
#   make clean     remove what was built (make distclean: and the .venv)

PYTHON ?= $(shell command -v python3.11 || command -v python3 || command -v python)
PIP_FLAGS ?=
SEEDS ?= 50000
FRAMES ?= 1000000
SECONDS ?= 600
HOURS ?= 8
SEED ?=
BIN := .venv/bin
# What was installed last: all that runs (for `demo`), and what tests, linters and documentation need besides.
RUNS := .venv/.installed-runs
STAMP := .venv/.installed
RAY := .venv/.installed-ray
ROOMS := layers partitioner engine
INSTALLED := build/installed

.PHONY: all install demo test slow gpu ray check lint types contracts docs wheel bench simulate fuzz storm soak clean distclean
.DELETE_ON_ERROR:

all: test

install: $(STAMP)

# Two makes at once in one checkout install one after the other, and the second finds everything done.
LOCKED := $(shell command -v flock > /dev/null && echo flock .install.lock) sh -ec
# A stamp as old as what it depends on is up to date: clocks of files tick in milliseconds.
UP_TO_DATE = test -e $@ -a ! pyproject.toml -nt $@ -a ! setup.py -nt $@ -a ! constraints.txt -nt $@

# Most modules of the packages are never imported: bytecode is written of what is, once, also where it is not wanted later.
IMPORTED_BY_RUNS := examples.digits, partita.engine.cli, partita.engine.launch.worker, torch
IMPORTED_BY_TESTS := hypothesis.strategies, pytest, scipy.optimize, scipy.sparse, sklearn.linear_model, tests.networks, xdist.plugin
KEEP_BYTECODE_OF = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS) -c constraints.txt

$(RUNS): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none was found: install it, or set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("%s is Python %d.%d; 3.11 or newer is needed: set PYTHON=..." % (sys.executable, v[0], v[1]))'
	$(LOCKED) "$(UP_TO_DATE) || { test -x $(BIN)/python || $(PYTHON) -m venv .venv; $(PIP_INSTALL) -e '.[examples,view]'; $(KEEP_BYTECODE_OF) 'import $(IMPORTED_BY_RUNS)'; touch $@; }"

# One after the other, also under -j: two pips at once spoil an environment.
$(STAMP): $(RUNS)
	$(LOCKED) "$(UP_TO_DATE) -a ! $(RUNS) -nt $@ || { $(PIP_INSTALL) -e '.[dev,docs,examples,view]'; $(PIP_INSTALL) -e '.[models]' || echo 'torchvision and transformers cannot be installed: tests of their models are skipped'; $(KEEP_BYTECODE_OF) 'import $(IMPORTED_BY_TESTS)'; touch $@; }"

demo: $(RUNS)
	$(BIN)/python examples/digits.py

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

slow: $(STAMP)
	$(BIN)/python -m pytest -q -m "slow or hypothesis" --hypothesis-profile=thorough

gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu

$(RAY): $(STAMP)
	$(LOCKED) "$(UP_TO_DATE) -a ! $(STAMP) -nt $@ || { $(PIP_INSTALL) -e '.[ray]'; touch $@; }"

ray: $(RAY)
	$(BIN)/python -m pytest -q -m ray

check: lint types contracts

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# What a user gets is checked, not the checkout: a module or a py.typed that the wheel forgets is missed here.
types: $(STAMP)
	@rm -rf $(INSTALLED) build/lib build/bdist.*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --target $(INSTALLED) .
	MYPYPATH=$(INSTALLED) $(BIN)/mypy $(foreach room,$(ROOMS),-p partita.$(room))

contracts: $(STAMP)
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: $(STAMP)
	$(BIN)/python -m build --wheel --no-isolation

# All of them are run, and one that fails makes the whole fail at the end.
bench: $(STAMP)
	@failed=; for file in benchmarks/[a-z]*.py; do \
	    name=$$(basename $$file .py); echo "== $$name"; \
	    $(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

simulate: $(STAMP)
	$(BIN)/python -m partita.engine.testing --jobs 2 --schedules $(SEEDS)
	$(BIN)/python -m partita.engine.testing --jobs 2 --schedules $(SEEDS) --storms

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --frames $(FRAMES)

storm: $(STAMP)
	$(BIN)/python -m tests.storm --seconds $(SECONDS) $(addprefix --seed ,$(SEED))

soak: SECONDS = $(shell expr $(HOURS) \* 3600)
soak: storm

clean:
	rm -rf build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
