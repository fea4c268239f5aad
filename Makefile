# Everything a developer needs. A bare `make` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := "setuptools>=77" "Cython>=3.1,<4"
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
SOURCES := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check bench demo wheel clean

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# Bytecode is written here, also where PYTHONDONTWRITEBYTECODE is set: compiling it anew doubles each start of a process.
setup: $(VENV)/.built  ## prepare .venv with the compiled package, nothing more
	@$(BIN)/python -m compileall -q src

run: setup  ## start the broker with embedded defaults and print its endpoints
	@$(BIN)/mainstem up

test: $(VENV)/.tested setup  ## everything that proves the product, under 15 minutes on 2 cores
	@scripts/test fast

test-all: $(VENV)/.tested setup  ## and the full products, soaks, millions of records, interop suites
	@scripts/test all

check: $(VENV)/.checked  ## format, lint, types, layers
	$(BIN)/ruff format --check setup.py src tests bench fuzz examples
	$(BIN)/ruff check setup.py src tests bench fuzz examples
	$(BIN)/mypy
	$(BIN)/lint-imports --config .importlinter

bench: $(VENV)/.tested setup  ## ours beside its peers in one run; results in bench/results
	@$(BIN)/python -m bench

demo: $(VENV)/.spark setup  ## one message in by one protocol, out by all others and by Spark SQL
	@$(BIN)/mainstem demo

wheel: $(VENV)/.built  ## a wheel for machines without a compiler, in dist/
	@$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls -sh dist/*.whl

clean:  ## remove what was built
	rm -rf build dist $(VENV) src/*.egg-info
	find src -name '*.so' -delete -o -name '*.c' -delete

$(VENV)/bin/pip:
	@$(PYTHON) -m venv $(VENV)

# What compiles, what is downloaded and what is written do not wait for each other: two cores have work until the end. Bytecode
# is written behind pip, which takes three times as long for it.
$(VENV)/.built: setup.py pyproject.toml $(SOURCES) | $(VENV)/bin/pip
	@echo "compiling the hot modules, installing what Mainstem needs ..."
	@$(BIN)/python scripts/requires > $(VENV)/requirements.txt
	@{ $(PIP) --requirement $(VENV)/requirements.txt && { $(BIN)/python -m compileall -qq $(VENV)/lib src || true; }; } & rest=$$!; \
		{ test -x $(BIN)/cython || $(PIP) $(BUILD); } || exit 1; \
		MAINSTEM_MODULES_APART=1 $(PIP) --no-deps --no-build-isolation --editable . & itself=$$!; \
		$(BIN)/python setup.py --quiet build_ext --inplace && wait $$itself && wait $$rest
	@touch $@

$(VENV)/.spark: $(VENV)/.built
	@scripts/debian java
	@$(call install,pipeline clients)
	@touch $@

$(VENV)/.tested: $(VENV)/.spark
	@scripts/debian test
	@$(call install,pipeline clients test)
	@touch $@

$(VENV)/.checked: $(VENV)/.built
	@$(call install,pipeline clients test check)
	@touch $@

# The dependencies of some extras; the package itself is installed already.
define install
echo "installing what $(1) need ..." && $(BIN)/python scripts/requires $(1) > $(VENV)/requirements.txt \
	&& $(BIN)/pip install --quiet --requirement $(VENV)/requirements.txt
endef
