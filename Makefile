# Everything runs from `.venv`, made from the hash-pinned locks; `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

UV_VERSION := 0.13.9
export UV_PYTHON_DOWNLOADS := never
# Where pip trusts the system's certificates, a company's own among them, uv has to as well.
export UV_SYSTEM_CERTS ?= 1

# The newest supported interpreter wins; pyenv's are found even when its shims are off.
# Override with `make PYTHON=/path/to/python3.12 up`.
PYTHON ?= $(shell for p in python3.13 $(HOME)/.pyenv/versions/3.13.*/bin/python3 \
	python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python3 python3 python3.11; do \
	  "$$p" -c 'import sys, _ctypes, ssl; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	    && { command -v "$$p"; break; }; done)

UV := .tools/bin/uv
BIN := .venv/bin

##@ Run
.PHONY: up
up: .venv/.local ## Start the whole stack on this machine (Ctrl-C stops it)
	@exec $(BIN)/dify-memory up

.PHONY: demo
demo: .venv/.local ## Two users, two languages, two conversations: does it remember?
	@exec $(BIN)/dify-memory demo

##@ Develop
.PHONY: check
check: .venv/.dev ## Lint, types, layers; locks and generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.locks
	$(BIN)/python -m tests.audit
	$(BIN)/python -m tests.readme
	$(BIN)/python -m tests.sizes
	$(BIN)/dify-memory openapi --check
	$(BIN)/dify-memory templates --check --strict dify_templates/*.yml

.PHONY: test
test: .venv/.dev ## Unit, integration and end-to-end tests on the real parts
	$(BIN)/pytest tests/unit tests/integration -n 3 --dist loadfile
	$(BIN)/pytest tests/e2e -n 3 --dist loadfile

.PHONY: test-fast
test-fast: .venv/.dev ## Only unit and integration tests
	$(BIN)/pytest tests/unit tests/integration -n 3 --dist loadfile

.PHONY: test-browser
test-browser: .venv/.dev ## The pages in a real Chromium (on Debian: apt install chromium fonts-wqy-zenhei)
	$(BIN)/pytest tests/browser

.PHONY: fuzz
fuzz: .venv/.dev ## Twenty times as many made-up requests to every operation as `make test` sends
	FUZZ_EXAMPLES=500 $(BIN)/pytest tests/integration/test_openapi_fuzz.py --timeout 3600

.PHONY: faults
faults: .venv/.dev ## Kills, cuts and races for as long as it takes (10 to 30 minutes)
	$(BIN)/pytest tests/faults --timeout 1800

.PHONY: soak
soak: .venv/.dev ## Everything at once for 30 minutes: 10,000 users and kills; results into tests/soak
	$(BIN)/python -m tests.soak

.PHONY: bench
bench: .venv/.dev ## Speed and retrieval benchmarks; numbers into tests/bench
	$(BIN)/python -m tests.bench
	$(BIN)/python -m tests.bench.recall --write

.PHONY: bench-recall
bench-recall: .venv/.dev ## Only the retrieval benchmark
	$(BIN)/python -m tests.bench.recall --write

.PHONY: fmt
fmt: .venv/.dev ## Format and fix what ruff can
	$(BIN)/ruff check --fix . || true
	$(BIN)/ruff format .

COMPILE = $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command 'make lock' pyproject.toml

.PHONY: lock
lock: $(UV) ## Compile the three locks again (LOCK_FLAGS=--upgrade to take newer versions)
	$(COMPILE) $(LOCK_FLAGS) --extra local --group build --group dev -o requirements-dev.txt
	$(COMPILE) -c requirements-dev.txt --extra local --group build -o requirements-local.txt
	$(COMPILE) -c requirements-dev.txt --group build -o requirements.txt

.PHONY: clean
clean: ## Remove the environment and caches (never the data directory)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# `--target` works with Debian's externally managed Python, and uv makes a venv without ensurepip.
$(UV):
	@test -n "$(PYTHON)" || { echo 'Python 3.11, 3.12 or 3.13 is needed; name one with PYTHON=/path/to/python3' >&2; exit 1; }
	@python3 -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m pip --version >/dev/null 2>&1 \
	  || { echo 'pip is needed, for example: apt install python3-pip' >&2; exit 1; }
	@echo '· getting uv $(UV_VERSION)'
	@"$(firstword $(shell command -v python3) $(PYTHON))" -m pip install --quiet --disable-pip-version-check \
	  --no-warn-script-location --root-user-action ignore --upgrade --target .tools 'uv==$(UV_VERSION)'

# A stamp of its own: .venv/bin/python is a link, and touching it would touch the system's interpreter.
.venv/.made: $(UV)
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	  || { echo '$(PYTHON) is not a Python 3.11, 3.12 or 3.13; name one with PYTHON=/path/to/python3' >&2; exit 1; }
	@echo '· making .venv with $(PYTHON)'
	@$(UV) venv --quiet --allow-existing --python "$(PYTHON)" .venv
	@touch $@

define install
@echo '· installing $(1) (hash-checked)'
@VIRTUAL_ENV=.venv $(UV) pip install --quiet -r $(1)
@VIRTUAL_ENV=.venv $(UV) pip install --quiet --no-deps --no-build-isolation --offline -e .
@touch $@
endef

.venv/.local: .venv/.made requirements-local.txt pyproject.toml
	$(call install,requirements-local.txt)

.venv/.dev: .venv/.made requirements-dev.txt pyproject.toml
	$(call install,requirements-dev.txt)
