# fallow: two commands set everything up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 4
PAGES := src/fallow/doors/api/static/index.html
UI := ui/index.html ui/package-lock.json ui/vite.config.ts $(shell find ui/src ui/public ui/tools -type f -not -path "ui/src/fonts/*")
# The folder of real traces, if there is one; empty: the built-in day.
export FALLOW_TRACES ?= $(abspath $(wildcard ../shared/data))
unexport PYTHONDONTWRITEBYTECODE # or every worker and every command that a test starts compiles everything anew

.DEFAULT_GOAL := help
.PHONY: help setup ui shots world check lint types contracts unit test fuzz soak real rights demo bench acceptance docs site pins builder images release build docker install-deps dev-cluster clean

help: ## Show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(VENV)/.ready $(PAGES) ## Make the virtual environment with the pinned packages, and the dashboard (where npm is present)

# What fallow itself needs: all that the demo waits for. Compiled is what is imported, when it is.
$(VENV)/.runs: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fallow needs Python 3.11 or newer ($(PYTHON) is older)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.ready: $(VENV)/.runs
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	@touch $@

# The dashboard, when its sources are newer. Who has no npm, or cannot reach its packages, goes on without: the server says so on its page.
$(PAGES): $(UI)
	@if ! command -v npm >/dev/null; then echo "npm is not here: the dashboard is not built. Install Node.js 20.19 or newer and run: make ui"; \
	elif ! (cd ui && { cmp -s package-lock.json node_modules/.built-with || npm ci --no-audit --no-fund --silent; } \
		&& npm run --silent build >/dev/null && cp package-lock.json node_modules/.built-with); then echo "the dashboard could not be built; to see why: make ui"; fi

ui: ## Build the dashboard into the package, with its types checked
	cd ui && npm ci --no-audit --no-fund --silent && npm run --silent check && npm run --silent build

shots: setup ## Pictures of every page over the demo, in light, dark and phone width, into build/shots
	$(BIN)/python -m tests.browser.shots build/shots

world: setup ## Build the real control plane and Prometheus once, into the cache
	$(BIN)/python -m tests.real.build

check: setup lint types contracts unit ## The fast loop: ruff, mypy, import contracts, unit tests

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest tests/unit -n $(WORKERS) --dist worksteal -q --hypothesis-profile=quick

test: setup lint types contracts world $(VENV)/.site ## Everything, on the real control plane and the real Prometheus
	$(BIN)/pytest tests -n $(WORKERS) --dist worksteal -q

fuzz: setup ## Property tests on new examples, ten times as many
	$(BIN)/pytest tests/unit -n $(WORKERS) --dist worksteal -q -m hypothesis --hypothesis-profile=fuzz

soak: setup ## Two hundred pretend days with every fault and a hostile tenant (an hour or so on two cores)
	$(BIN)/python -m tests.functional.bad_days --days 200

real: setup world ## Only the tests on real parts
	$(BIN)/pytest tests/real -n $(WORKERS) --dist worksteal -q

rights: setup world ## The same, and then: which of the rights that we ship did no program of ours use?
	rm -f .pytest_cache/v/fallow/rights.jsonl
	$(BIN)/pytest tests/real -n $(WORKERS) --dist worksteal -q
	$(BIN)/python -m tests.real.shipped

demo: ## Watch the real controller work a pretend GPU cluster through a day
	@$(MAKE) --no-print-directory -j2 $(VENV)/.runs $(PAGES)
	$(BIN)/fallow demo

bench: setup world ## Print the figures, side by side with what they are compared to
	$(BIN)/python -m benchmarks

acceptance: setup ## Print every acceptance line with the tests that prove it and their last result
	$(BIN)/python -m tests.acceptance

docs: setup ## Write flags, metrics, reasons and alerts in docs/operators, the CRD, the roles and their bounds in deploy/, the Helm chart, the dashboard's types anew from the code
	$(BIN)/python -m docs.write
	$(BIN)/python -m docs.api_types

# Only who makes the site, or tests it, needs what makes it.
$(VENV)/.site: $(VENV)/.runs
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --group site
	@touch $@

site: $(VENV)/.site ## The documents as a site, into build/site (with pictures of the pages where make shots has made some)
	$(BIN)/python -m docs.site build/site

pins: setup ## Write the packages of the images with their hashes anew (asks the package index)
	$(BIN)/python -m docs.pins

# What makes the wheel, checked by its hashes, before it makes one that others run.
builder: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --force-reinstall --requirement deploy/image/build.txt

images: builder ## The images for both processors, as OCI archives, into build/images-made (MIRROR=: of Debian's packages, if not apt's)
	$(BIN)/python -m docs.images build/images-made $(if $(MIRROR),--mirror $(MIRROR))

release: builder ## Wheel, sdist, images, charts, manifests, bills of materials, changes and checksums of a tagged commit, into build/release (SNAPSHOT=1: of any; URL=https://...: where they will be, for krew)
	rm -rf build/release
	$(BIN)/python -m docs.release build/release $(if $(SNAPSHOT),--snapshot) $(if $(URL),--url $(URL)) $(if $(MIRROR),--mirror $(MIRROR))

# By the names in the documents of gpu-idle-exporter and GPU Autoscaler.
build: builder ## Wheel and sdist of this checkout, into build/dist
	$(BIN)/python -m hatchling build -d build/dist

docker: builder ## The images for this processor, put into docker or podman, also as ghcr.io/affinode/gpu-idle-exporter:latest
	$(BIN)/python -m docs.image_load build/images-made $(if $(MIRROR),--mirror $(MIRROR))

install-deps: setup

dev-cluster: demo

clean: ## Remove the virtual environment and caches of tools (not the cache of built programs)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
