# SPDX-License-Identifier: Apache-2.0
# Every step that CI runs is a target here, so that a failure of CI can be repeated with one command.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# Cargo already uses every core; two of these at once would only wait for each other's lock.
.NOTPARALLEL:

# A cold build of the 600 dependencies takes about 20 minutes on two cores. So what is built lives outside the clone,
# in one place, and every clone and work tree of this machine starts warm.
CACHE ?= $(HOME)/.cache/tributary
CARGO_TARGET_DIR ?= $(CACHE)/target
export CACHE
export CARGO_TARGET_DIR

# rustup takes the toolchain of rust-toolchain.toml. Where it can neither find nor download that, an installed
# toolchain of the same release under another name will do.
ifeq ($(origin RUSTUP_TOOLCHAIN),undefined)
toolchain := $(shell bash .ci/setup.sh toolchain)
ifneq ($(toolchain),)
export RUSTUP_TOOLCHAIN := $(toolchain)
endif
endif

# Always the whole workspace: `-p one-crate` selects other features of some thirty base crates, and then almost
# everything is compiled again.
WORKSPACE := --workspace --locked

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))

## Build and run

.PHONY: setup
setup: ## Install what is missing on this machine: Rust, protoc, cargo-deny
	@bash .ci/setup.sh base rust lints protoc deny

# What every build needs, without the tools that only checks use.
.PHONY: setup-build
setup-build:
	@bash .ci/setup.sh base rust protoc

.PHONY: build
build: setup-build ## Build everything, the binary `tributary` included (unoptimised)
	cargo build $(WORKSPACE)

.PHONY: demo
demo: build ## Merge two real Hudi tables into one and show what came out
	@TRIBUTARY_BIN="$(CARGO_TARGET_DIR)/debug/tributary" bash tests/demo/run.sh

.PHONY: bench
bench: setup-build ## Measure an optimised build against plain DataFusion (builds long the first time)
	cargo build $(WORKSPACE) --release
	"$(CARGO_TARGET_DIR)/release/tributary" bench
	"$(CARGO_TARGET_DIR)/release/tributary" bench --rows 5000000 --runs 1 --memory-only

# Dependencies stay: only this workspace's own artefacts go, of every profile.
.PHONY: clean
clean: ## Remove what was built from this workspace (`rm -r` the target folder to remove its dependencies too)
	cargo clean --workspace --locked
	cargo clean --workspace --locked --release

## Test

.PHONY: test
test: setup-build ## Run every Rust test
	cargo test $(WORKSPACE)

# The same integration tests with each role behind its own port: gRPC and Flight between them. Where a role runs changes no
# storage operation, so faults of each are explored with the roles together; one exploration is repeated here.
.PHONY: test-apart
test-apart: setup-build ## Run the integration tests with the roles apart
	TRIBUTARY_TEST_ROLES=apart cargo test $(WORKSPACE) --test it -- --skip every_fault
	TRIBUTARY_TEST_ROLES=apart cargo test $(WORKSPACE) --test it the_first_batch_survives_every_fault

# setup.sh says where it put Python, Spark's bundle and Java. Its failure must not be lost in an `eval`.
.PHONY: interop
interop: build ## Compare with Spark, the `hudi` Python package and a Kafka broker (downloads about 460 MB the first time)
	@settings="$$(TRIBUTARY_CACHE="$(CACHE)" bash tests/interop/setup.sh)"; set -a; eval "$$settings"; set +a; \
	TRIBUTARY_BIN="$(CARGO_TARGET_DIR)/debug/tributary" "$$INTEROP_PYTHON" tests/interop/interop.py

# setup.sh says where it put Python, helm and the linter. A release build does as well: TRIBUTARY_BIN names another binary.
.PHONY: deploy-check
deploy-check: $(if $(TRIBUTARY_BIN),,build) ## Check the chart, manifests, image, alerts and the operator for Airflow
	@settings="$$(TRIBUTARY_CACHE="$(CACHE)" bash tests/deploy/setup.sh)"; set -a; eval "$$settings"; set +a; \
	TRIBUTARY_BIN="$${TRIBUTARY_BIN:-$(CARGO_TARGET_DIR)/debug/tributary}" "$$DEPLOY_PYTHON" -B tests/deploy/deploy.py

# The pages and the list are made of the code by the tests that compare them.
.PHONY: docs
docs: setup-build ## Write the references in docs/ that are made of the code
	UPDATE=1 cargo test $(WORKSPACE) --test it the_reference_of

.PHONY: proto-accept
proto-accept: setup-build ## Add what is new in proto/ to what clients may rely on; refuses what would break them
	UPDATE=1 cargo test $(WORKSPACE) --test it no_change_of_proto_breaks_a_client

.PHONY: manifests
manifests: ## Render deploy/manifests from the chart
	@settings="$$(TRIBUTARY_CACHE="$(CACHE)" bash tests/deploy/setup.sh)"; set -a; eval "$$settings"; set +a; \
	"$$DEPLOY_PYTHON" -B tests/deploy/render.py

## Check

.PHONY: check
check: check-rules check-fmt check-deny check-clippy check-doc ## Everything that is checked without running a test

.PHONY: fmt
fmt: ## Format the Rust code
	cargo fmt --all

.PHONY: check-fmt
check-fmt: setup-build ## The code is formatted
	@bash .ci/setup.sh lints
	cargo fmt --all --check

.PHONY: check-clippy
check-clippy: setup-build ## No lint fires
	@bash .ci/setup.sh lints
	cargo clippy $(WORKSPACE) --all-targets -- -D warnings

.PHONY: check-doc
check-doc: setup-build ## The documentation builds, with every link right
	RUSTDOCFLAGS="-D warnings" cargo doc $(WORKSPACE) --no-deps

# The fetch brings what other platforms need too: metadata names it.
.PHONY: fetch
fetch: setup-build
	@cargo fetch --locked

# Advisories are not looked at: that needs a database from elsewhere, and its news would fail unchanged code.
.PHONY: check-deny
check-deny: fetch ## Licences, owners of heavy dependencies, and where dependencies come from
	@bash .ci/setup.sh deny
	"$(CACHE)/bin/cargo-deny" --offline --locked check --hide-inclusion-graph bans licenses sources

.PHONY: check-rules
check-rules: fetch ## Who depends on whom, licence lines, file sizes; and that these checks find what they are for
	python3 -B tests/rules/test_rules.py
	python3 -B tests/rules/check_dependencies.py
	python3 -B tests/rules/check_sources.py
