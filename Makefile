# poolbridge: the most important commands are `make verify`, `make test` and `make lint`. `make help` lists all commands.

PYTHON ?= python3
GO     ?= go
VENV   := .venv
PY     := $(abspath $(VENV))/bin/python

# go-nvml resolves its symbols at their first use. With -z lazy, the program does not resolve them at its start.
LDFLAGS := -extldflags=-Wl,-z,lazy -X github.com/poolbridge/poolbridge/internal/program.linked=$(shell $(PYTHON) release/version.py)
GOLANGCI_VERSION := v2.15.0
GOLANGCI := build/tools/golangci-lint-$(GOLANGCI_VERSION)
ACTIONLINT_VERSION := v1.7.12
ACTIONLINT := build/tools/actionlint-$(ACTIONLINT_VERSION)

.PHONY: help build venv verify verify-simulated test test-gpu test-long test-simcuda test-go test-model test-python test-python-long test-torch test-integration test-kinds test-deploy test-aarch64 test-go-long test-integration-long test-stress native-test native-test-long simcuda ptx generate lint fuzz bench dist test-dist docs gpu-bundle vulnerabilities api-changes clean FORCE
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

build: bin/poolsvc ## build the service

bin/poolsvc: FORCE
	@test -e $@ || echo "building poolsvc; the first time this takes a minute or two and may show warnings from NVIDIA's go-nvml"
	$(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/poolsvc

# The environment is out of date if its stamp file is older than a file that says what to install, or than a C file.
$(VENV)/installed: pyproject.toml hatch_build.py release/version.py $(wildcard python/native/*.[ch])
	@$(PYTHON) -c '$(CHECK_PYTHON)'
	$(PYTHON) -m venv $(VENV)
	@echo "installing the Python package into $(VENV), with what its tests need (Ray, Dask, cuda.core): 1.1 GB, one to three minutes"
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[cuda,dask,ray,test]'
	ln -sf ../../bin/poolsvc $(VENV)/bin/poolsvc # `poolbridge.connect(start=True)` looks beside the interpreter
	touch $@

venv: $(VENV)/installed ## make the virtual environment with the Python package in it

CHECK_PYTHON = import sys; sys.exit(sys.version_info < (3, 11) and "poolbridge needs Python 3.11 or newer, this is " + sys.version)

dist: ## build the published files in the folder dist: the source package, wheels with the service in them, the service alone, SBOMs
	release/dist $(PYTHON)

test-dist: dist ## install the wheel into a new environment and run `poolsvc verify` there, without Go and a compiler
	release/check $(PYTHON)

# The environment gets the packages for the site only when the site is built.
$(VENV)/docs: $(VENV)/installed
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

GO_REFERENCE := bridge bridge/oteltrace bridge/safetensors bridge/server mempool mempool/service cuda

docs: $(VENV)/docs ## build the documentation site in build/docs/html; a dead link or an undocumented public name is an error
	rm -rf build/docs
	$(GO) run ./docs/site/godoc -out build/docs/source/go $(GO_REFERENCE)
	$(PY) docs/site/sources.py build/docs/source
	$(PY) -m sphinx --quiet --fail-on-warning -c docs/site build/docs/source build/docs/html
	@echo "open build/docs/html/index.html"

verify: bin/poolsvc $(VENV)/installed ## run `poolsvc verify`, on the GPU if there is one
	bin/poolsvc verify --python $(PY)

verify-simulated: bin/poolsvc $(VENV)/installed simcuda ## run `poolsvc verify` for every kind of memory, on a simulated GPU
	tests/simcuda/machine bin/poolsvc verify --python $(PY)

# Tests that need a CUDA driver run on the simulated driver. On a machine with a GPU, tests/gpu/run uses the real driver.
ON_SIMCUDA := -exec $(abspath tests/simcuda/machine)
# A program with the race detector sleeps for a second before it ends, for late reports. Tests start thousands of such programs.
GOTEST := GORACE=atexit_sleep_ms=10 $(GO) test -race -timeout 45m -ldflags '$(LDFLAGS)'

# Two parts run at a time, because most parts wait for other processes more than they compute. The longest parts come first.
AT_A_TIME := $(PYTHON) tests/parts "$(MAKE)"

test test-go test-integration test-integration-long test-kinds test-simcuda test-stress: export POOLBRIDGE_CHECK_LEASES := 1 # see CONTRIBUTING.md

PARTS := test-python test-go test-integration test-kinds native-test test-simcuda test-deploy

test: simcuda bin/poolsvc $(VENV)/installed ## run every test that does not take long
	@$(AT_A_TIME) $(PARTS)

# CI also runs the target test-long.
test-long: simcuda bin/poolsvc $(VENV)/installed ## run the tests in Python and Go that take long, longer stress tests, and minutes of fuzzing
	@$(AT_A_TIME) test-python-long test-go-long test-integration-long native-test-long test-stress
	$(MAKE) fuzz

test-simcuda: simcuda $(VENV)/installed
	$(MAKE) -C tests/simcuda test test-python PYTHON=$(PY)

test-go: simcuda
	$(GO) vet ./...
	$(GOTEST) -short $(ON_SIMCUDA) ./bridge/... ./internal/... ./mempool/... ./cuda/... ./cmd/... ./tests/driverfacts
	cd bridge/oteltrace && $(GO) vet ./... && $(GO) test -race ./...

# Sends thousands of frames in every mode, with every policy of a full channel, while the tests kill processes or write arbitrary words.
test-stress: simcuda bin/poolsvc $(VENV)/installed
	POOLBRIDGE_STRESS_FRAMES=5000 $(GO) test $(ON_SIMCUDA) -count=1 -timeout 20m \
		-run '^(TestNoFrameOfABroadcastIsLostOrTorn|TestEveryFrameOfAQueueIsAcknowledgedOrDropped|TestEachOfManySubscribersOfOneChannelGetsEveryFrame|TestArbitraryWordsEndNoSession)$$' ./bridge
	POOLBRIDGE_STRESS_FRAMES=1000 $(GO) test -count=1 -timeout 20m -run '^TestConsumersInPythonLoseNoFrameOfKilledProcesses$$' ./tests/integration
	POOLBRIDGE_STRESS_KILLS=200 $(GO) test -count=1 -timeout 20m -v -run '^TestClientsGoOnWhenTheServiceIsKilled$$' ./tests/integration
	POOLBRIDGE_SURVIVE_KILLS=70 $(GO) test $(ON_SIMCUDA) -count=1 -timeout 20m -v -run '^TestClientsGoOnWithMemoryOfAGPUWhenTheServiceIsKilled$$' ./tests/integration

# The coverage of cuda and mempool must be 85 % or more. Code does not count if only processes reach it that tests start. It is measured
# without the race detector, with which a program that counts takes four times as long.
COUNTED := -coverpkg=./cuda/...,./mempool/...

test-go-long: simcuda
	mkdir -p build/coverage
	$(GO) test -short $(ON_SIMCUDA) $(COUNTED) -coverprofile=build/coverage/tests.out -timeout 45m ./tests/anomaly ./mempool/... ./cuda/...
	tests/coverage/report 85 build/coverage/tests.out
	$(GOTEST) $(ON_SIMCUDA) -count=1 ./tests/anomaly ./mempool/...
	GOMAXPROCS=8 $(GOTEST) $(ON_SIMCUDA) -count=1 ./mempool # with more CPUs, copiers poll for work before they sleep
	$(MAKE) test-model

test-model: ## check every interleaving of small channels, and that this check finds every mutation
	$(GO) test -count=1 ./tests/streammodel

# Tests wait for other processes more than they compute, so more tests than CPUs run at a time.
test-python: $(VENV)/installed simcuda bin/poolsvc
	$(PY) -m pytest -q -n $$(($$(nproc) + 1)) -m 'not long' python/tests

test-python-long: $(VENV)/installed simcuda bin/poolsvc
	$(PY) -m pytest -q -n $$(($$(nproc) + 1)) -m long python/tests

# PyTorch and transformers are in a folder of their own, so that only this target needs them: on x86-64, PyTorch's package wants those of CUDA.
TORCH := build/torch

$(TORCH)/installed: | $(VENV)/installed
	@echo "installing PyTorch and transformers into $(TORCH): minutes and, on x86-64, 5.6 GB; PIP_EXTRA_INDEX_URL can name an index with less"
	rm -rf $(TORCH)
	$(PY) -m pip install --quiet --disable-pip-version-check --target $(TORCH) 'torch>=2.4' torchdata 'transformers>=5,<6'
	touch $@

TORCH_TESTS := $(addprefix python/tests/test_,array_matrix.py examples.py libraries.py loader.py named_buffers.py torch.py)

test-torch: bin/poolsvc $(VENV)/installed $(TORCH)/installed ## run the tests and examples that need PyTorch, on the CPU; installs PyTorch
	PYTHONPATH=$(abspath $(TORCH)) $(PY) -c 'import torch, transformers'
	PYTHONPATH=$(abspath $(TORCH)) $(PY) -m pytest -q -n 2 $(TORCH_TESTS)

# These tests also run without a driver, to show that poolbridge works without it. `verify` passes. `verify`, `doctor` and `bench` say what
# is missing. The loops of the docs run against `serve`. The stress test uses memory of the CPU, which it skips with a driver. The examples
# also run without a driver. The other tests check nothing more without a driver.
WITHOUT_DRIVER := ^Test(VerifyPasses|VerifyWithNothing|Doctor|TheExitStatusOfDoctor|BenchOfAKind|EveryDocumentedLoop|ConsumersInPython)

test-integration: bin/poolsvc $(VENV)/installed simcuda
	$(GOTEST) -short -count=1 -run '$(WITHOUT_DRIVER)' ./tests/integration
	$(GOTEST) -short $(ON_SIMCUDA) -count=1 ./tests/integration

test-integration-long: bin/poolsvc $(VENV)/installed simcuda
	$(GOTEST) $(ON_SIMCUDA) -count=1 -run '^Test(NothingIsLost|VerifyPasses|Bench(Measures|SaysWhat))' ./tests/integration

# The tests of tests/kinds start the simulated driver themselves.
test-kinds: bin/poolsvc $(VENV)/installed simcuda
	$(GOTEST) -count=1 ./tests/kinds ./examples/...
	$(GOTEST) $(ON_SIMCUDA) -count=1 $(addprefix ./examples/,transfer stream pipeline model embedded) # the others use memory of kind host

test-deploy: bin/poolsvc ## check units, alerts, the dashboard and the examples for Kubernetes with the libraries of the programs that read them
	cd deploy/check && $(GO) vet ./... && $(GO) test -count=1 ./...

# Runs on an emulated aarch64 processor. The emulator does not reorder loads and stores as a real processor does. On a real processor,
# `make native-test` and `go test ./internal/shmchannel` can find a missing memory fence.
ARM := CC=aarch64-linux-gnu-gcc RUN=qemu-aarch64-static VARIANTS=plain STUMBLES=500 INPUTS=50000

test-aarch64: ## test streams through shared memory on an emulated aarch64; needs a cross compiler and qemu-user-static
	$(MAKE) -C python/native/tests test $(ARM)
	SHMCHANNEL_TEST_EMULATOR=qemu-aarch64-static GOARCH=arm64 CGO_ENABLED=0 $(GO) test -count=1 -exec qemu-aarch64-static \
		-skip Killed ./internal/shmchannel

native-test: ## test the native module's core in C: processes and kills, hostile memory, with sanitizers
	$(MAKE) -C python/native/tests test

native-test-long:
	$(MAKE) -C python/native/tests test FRAMES=20000 STUMBLES=2000 INPUTS=30000000

simcuda: ## build the simulated CUDA driver
	$(MAKE) -C tests/simcuda

ptx: ## rebuild the pattern kernels from their source
	$(MAKE) -C cuda/pattern ptx

generate: ## generate code in Go and Python, and lists of docs/protocol.md, from messages.go and limits.go of bridge/wire
	$(GO) generate ./bridge/wire

lint: $(GOLANGCI) $(ACTIONLINT) $(VENV)/installed ## check the style of everything
	$(GO) vet ./...
	$(GOLANGCI) run ./...
	cd deploy/check && $(abspath $(GOLANGCI)) run ./...
	cd bridge/oteltrace && $(abspath $(GOLANGCI)) run ./...
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/pyright --pythonpath $(PY)
	$(ACTIONLINT)

$(GOLANGCI):
	GOBIN=$(abspath build/tools) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv build/tools/golangci-lint $@

$(ACTIONLINT):
	GOBIN=$(abspath build/tools) $(GO) install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	mv build/tools/actionlint $@

bench: bin/poolsvc $(VENV)/installed ## measure on host memory, and compare with queues and shared memory of Python
	$(PY) benchmarks/run.py --kind host

# Counts of inputs, not times: at its time limit, go test may fail with "context deadline exceeded" (go.dev/issue/75804).
fuzz: ## fuzz the packet checker and decoder, and shared memory, about a minute each on 2 CPUs
	$(GO) test -run '^$$' -fuzz FuzzDecodeRequest -fuzztime 1700000x ./bridge/wire
	$(GO) test -run '^$$' -fuzz FuzzHeader -fuzztime 400000x ./bridge/safetensors
	$(GO) test -run '^$$' -fuzz FuzzBufferLayout -fuzztime 500000x -fuzzminimizetime 10x ./bridge/wire
	$(GO) test -run '^$$' -fuzz FuzzCheckAgainstDecoder -fuzztime 2000000x ./bridge/wire
	$(GO) test -run '^$$' -fuzz FuzzHostilePages -fuzztime 110000x -fuzzminimizetime 10x ./internal/shmchannel

test-gpu: ## on a machine with a GPU: run `poolsvc verify` and the integration tests there, with CuPy
	@$(PYTHON) tests/gpu/missing.py $(PY)
	@$(MAKE) --no-print-directory bin/poolsvc $(VENV)/installed
	LIMIT=1200 PYTHON=$(PY) tests/gpu/run verify tests-integration stress-python survive

gpu-bundle: bin/poolsvc $(VENV)/installed ## collect the files that a machine with a GPU needs to run the GPU tests
	tests/gpu/bundle $(PY) build/gpu

vulnerabilities: ## look for known vulnerabilities in the Go code that is called, and in Go itself
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

BASE ?= main
api-changes: ## report how the public APIs of Go and Python differ from those of the commit BASE
	@release/api-changes $(PYTHON) $(BASE)

clean: ## remove all built files
	rm -rf bin build dist $(VENV) python/poolbridge/*.so
