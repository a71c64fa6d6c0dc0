# SPDX-License-Identifier: Apache-2.0
# Copyright The Sluice Authors

.DEFAULT_GOAL := help
SHELL := /bin/bash
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/sluice-data/sluice/internal/server.Version=$(VERSION) -X main.version=$(VERSION)

.PHONY: help
help: ## show this list
	@awk -F':.*## ' '/^[a-z][a-z0-9-]*:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## start catalogd, load real data, query it, and leave it running (DEMO_EXIT=1 ends it)
	@demo/run

.PHONY: build
build: ## build bin/catalogd and bin/sharectl
	@mkdir -p bin
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: test
test: ## unit and integration tests (starts a private PostgreSQL)
	@test/prepare
	$(GO) vet ./...
	$(GO) test -count=1 -timeout 15m ./...

.PHONY: test-race
test-race: ## the tests under the race detector
	@test/prepare
	$(GO) test -race -count=1 -timeout 30m ./...

.PHONY: fmt
fmt: ## format all Go files with gofumpt
	@"$$($(GO) run ./test/tools gofumpt)" -l -w cmd internal test benchmarks

.PHONY: proto
proto: ## generate code and docs/admin-api.json from proto/*.proto
	@proto/generate

.PHONY: lint
lint: ## golangci-lint, gofumpt, buf, govulncheck, licences of all dependencies
	@test/lint

.PHONY: e2e
e2e: build ## the long checks with real clients; ONLY=rck|metadata|stores|clients|identity|keycloak|kubernetes|policy|faults|audit|openapi runs a part, LONG=1 keycloak and kubernetes too
	@$(GO) run ./test/e2e -only '$(ONLY)' $(if $(LONG),-long)

.PHONY: conformance
conformance: ## run the conformance suite against any catalog: URI=… [TOKEN=…] [WAREHOUSE=…] [ONLY=regexp]
	@$(GO) run ./test/conformance -uri '$(URI)' -token '$(TOKEN)' -warehouse '$(WAREHOUSE)' -only '$(ONLY)'

.PHONY: bench
bench: bench-catalog bench-policy ## all benchmarks

.PHONY: bench-catalog
bench-catalog: build ## the catalog beside the Iceberg reference fixture; QUICK=1 takes a minute
	@$(GO) run ./benchmarks/catalog $(if $(QUICK),-quick)

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 20s) each
	@test/fuzz $(or $(FUZZTIME),20s)

.PHONY: clean
clean: ## remove what was built here (not the caches)
	rm -rf bin dist

.PHONY: bench-policy
bench-policy: ## token checks and policy decisions beside cedar.Authorize; half a minute
	@$(GO) run ./benchmarks/policy
