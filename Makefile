# Every task of the project. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Passed on to the command that a target runs.
ARGS ?=
PKG ?= ./...
RUN ?=
BENCH_ARGS ?=
FUZZTIME ?= 30s

# The scripts read these from the environment, so that no value is
# ever spliced into a shell command by make.
export PKG RUN FUZZTIME

# Without a folder's path in what is compiled, another clone finds it in the build cache. What a
# debugger needs is a tenth of the compiler's work; for a debugger, use `go build`.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -gcflags=all=-dwarf=false)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: ## Install what the tests need (Debian packages, .venv, Go modules)
	@scripts/setup

.PHONY: build
build: ## Build bin/countersign
	CGO_ENABLED=0 go build -o bin/countersign ./cmd/countersign

.PHONY: run
run: build ## Build and serve on an embedded database in ./data (ARGS="--listen ...")
	exec bin/countersign serve --data ./data $(ARGS)

.PHONY: demo
demo: build ## See it all in a minute, on a throw-away store (ARGS="--yes")
	@exec bin/countersign demo $(ARGS)

.PHONY: test
test: ## Run everything that decides on a commit: Go and Python tests, adapters, lint
	@scripts/setup
	@PKG= RUN= scripts/test

.PHONY: nightly
nightly: setup ## Run everything that is long, for hours, and print one table: race detector, matrices, fuzzing, bench
	@PKG= RUN= scripts/nightly

.PHONY: test-go
test-go: setup ## Run Go tests (PKG=./internal/canon RUN=TestName)
	@scripts/with-postgres --memory scripts/test-go

.PHONY: test-python
test-python: setup ## Run the Python client's tests (ARGS="-k name")
	@scripts/test-python $(ARGS)

.PHONY: test-adapters
test-adapters: ## Run the adapters' tests with the newest frameworks (ARGS="newest -- langgraph")
	@scripts/test-adapters $(ARGS)

.PHONY: test-matrix
test-matrix: setup ## Run the client's tests on every Python here, and the adapters' at both ends of their ranges
	@scripts/test-python --every
	@scripts/test-adapters newest floor

.PHONY: lint
lint: ## Check style, types and import rules (golangci-lint, ruff, mypy, Biome, shellcheck)
	@scripts/lint

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in the Go code (govulncheck; needs the network)
	@scripts/vulncheck

.PHONY: fmt
fmt: ## Format the Go, Python and JavaScript code
	@scripts/fmt

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (PKG=./internal/canon FUZZTIME=30s)
	@scripts/fuzz

.PHONY: bench
bench: setup build ## Measure against a throw-away PostgreSQL (BENCH_ARGS="...")
	@scripts/with-postgres scripts/bench $(BENCH_ARGS)

.PHONY: dist
dist: ## Build a release into ./dist: binaries, Python client, images, checksums (ARGS="binaries")
	@scripts/dist $(ARGS)

.PHONY: clean
clean: ## Remove what was built and cached; ./data is kept
	rm -rf bin dist .cache .venv
