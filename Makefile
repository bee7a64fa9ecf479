# SmolGym. `make help` lists what there is.
SHELL := /bin/bash
GO ?= go
PYTHON ?= python3
BIN := bin/smolgym
VENV := .venv
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

build: ## build bin/smolgym
	$(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN) ./cmd/smolgym

demo: ## build, serve, and watch a model learn (SEED=0); leaves no process
	@bash gym/demo.sh

demo-seeds: ## the demo on five seeds, as a table
	gym/seeds.sh

test: build lint $(VENV)/ready ## every check that holds the product: Go tests, then the official SDK against the built binary
	@$(PYTHON) .ci/tally.py go sdk

test-go: ## the Go tests alone
	@$(PYTHON) .ci/tally.py go

test-sdk: build $(VENV)/ready ## the official SDK's end-to-end tests alone
	@$(PYTHON) .ci/tally.py sdk

$(VENV)/ready: testdata/sdk/requirements.txt testdata/sdk/env.sh
	bash testdata/sdk/env.sh
	@touch $@

torch-env: ## the optional, cached environment with torch that some SDK tests and golden makers need
	bash testdata/sdk/torch_env.sh

test-all: test check-export check-onnx ## test, and what takes longer: other SDK and hub client versions, exports read by peft, transformers and ONNX Runtime, cookbook recipes, arm64 under qemu
	SMOLGYM_CASES=10000 $(GO) test -count=1 -timeout 30m -run TestBitProperty ./appliance/engine
	SMOLGYM_BIN=$(CURDIR)/$(BIN) sh testdata/sdk/versions.sh
	SMOLGYM_BIN=$(CURDIR)/$(BIN) bash testdata/hub/versions.sh
	SMOLGYM_BIN=$(CURDIR)/$(BIN) bash testdata/cookbook/run.sh
	$(MAKE) test-neon rack-rerun demo-seeds

test-neon: ## the arm64 kernels under qemu-user, and a server that answers there; installs the cross compiler through apt
	bash .ci/neon.sh

test-amx: ## the AMX level in an emulated machine; needs BOCHS, KERNEL and BIOS (see .ci/amx.sh), so not in test-all
	bash .ci/amx.sh

rack-rerun: build $(VENV)/ready ## the first 200 steps of rack/small's training, compared with the committed log to the bit
	SMOLGYM_RACK_STEPS=200 $(VENV)/bin/python -m pytest -q testdata/sdk/test_rack.py -k reruns

check-export: build torch-env ## exports of trained checkpoints, judged by transformers and peft, GGUF files too
	"$${SMOLGYM_TORCH_VENV:-$$HOME/.cache/smolgym/torch-venv}/bin/python" testdata/sdk/check_export.py
	"$${SMOLGYM_TORCH_VENV:-$$HOME/.cache/smolgym/torch-venv}/bin/python" testdata/sdk/check_gguf.py

check-llama: build torch-env ## GGUF exports computed by llama.cpp, whose llama-results lies in LLAMA_BIN: ids, log-probabilities, best tokens
	SMOLGYM_BIN=$(CURDIR)/$(BIN) "$${SMOLGYM_TORCH_VENV:-$$HOME/.cache/smolgym/torch-venv}/bin/python" testdata/sdk/check_llama.py

check-onnx: ## ONNX files of every dense family, judged by the ONNX checker and by ONNX Runtime; VERDICT=write keeps what a Go test compares
	sh testdata/sdk/onnx_env.sh
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(GO) test ./model/export -run TestONNXCheck -count=1 -write "$$dir" && \
	"$${SMOLGYM_ONNX_VENV:-$$HOME/.cache/smolgym/onnx-venv}/bin/python" model/export/testdata/check_onnx.py "$$dir" $(if $(filter write,$(VERDICT)),model/export/testdata/verdict_onnx.json)

lint: ## gofmt, vet, staticcheck, errcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt needed: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) tool errcheck -ignoretests -exclude .ci/errcheck.txt ./...

race: ## the concurrent packages under the race detector
	$(GO) test -race ./appliance/... ./store/... ./tokenizer/... ./httpapi/...

fuzz: ## 30 s for each fuzz target
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime 30s $$pkg || exit 1; done; done

fuzz-hour: ## an hour for each parser of foreign bytes, over as many calls as it takes
	$(PYTHON) .ci/fuzz_hour.py

bench: build torch-env ## SmolGym against torch and (LLAMA_BIN=FOLDER) llama.cpp in one run, interleaved: training, decoding, matrix products, memory; BENCH="--only small" for a part
	mkdir -p bin/bench
	$(GO) test -c -o bin/bench/cpu.test ./kernels/cpu
	$(GO) test -c -o bin/bench/engine.test ./appliance/engine
	SMOLGYM_BIN=$(CURDIR)/$(BIN) "$${SMOLGYM_TORCH_VENV:-$$HOME/.cache/smolgym/torch-venv}/bin/python" testdata/bench/bench.py --out bin/bench/result.json $(BENCH)

bench-go: ## kernel and tokenizer benchmarks of the Go packages
	$(GO) test -run '^$$' -bench . -benchtime 1s ./kernels/... ./tokenizer/... ./store/...

bench-import: build $(VENV)/ready ## import and merged export of a 1.2 GB model against copying and hashing it (7 GB of disk); ARGS="--runs 5 --dir DIR"
	SMOLGYM_BIN=$(CURDIR)/$(BIN) $(VENV)/bin/python testdata/sdk/bench_import.py $(ARGS)

deps: ## write the list of outside packages in the binary, which a test compares
	$(GO) list -deps ./cmd/smolgym | grep '^[^/]*\.' | LC_ALL=C sort > testdata/deps.txt

size: ## lines of Go, C and Python per folder
	@git ls-files '*.go' '*.c' '*.h' '*.py' | xargs wc -l | awk '$$2 != "total" {n=split($$2,p,"/"); d=(n>1?p[1] (n>2?"/" p[2]:""):"."); s[d]+=$$1; t+=$$1} END {for (d in s) printf "%7d  %s\n", s[d], d; printf "%7d  in all\n", t}' | sort -k2

clean: ## remove what was built
	rm -rf bin $(VENV)
