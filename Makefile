# Two commands for newcomers: `make demo` and `make test`. Each does all the set-up it needs; a second run starts in
# seconds. Everything lives in .venv and build.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
# Processes of pytest; each test uses the engine's threads besides.
PYTEST_JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
CMAKE := $(BIN)/cmake
# pip's cmake and ninja come first; flatc and the compilers are found elsewhere by CMake.
export PATH := $(CURDIR)/$(BIN):$(PATH)

PIP := $(BIN)/pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install -c requirements/constraints.txt

.PHONY: all help demo test test-cpp test-python product build setup system format format-check tidy asan tsan mutations \
        vulkan vulkan-test cuda cuda-test \
        pages-test fuzz coverage docs types soak reliability bench bench-kernels bench-overhead install-check wheel wheel-check \
        wheels wheels-check clean-check aarch64-check executorch-suite ops-report clean
all: build

help:
	@echo 'make demo            semantic search with a real model, exported once, run on ggml'
	@echo 'make test            C++ and Python tests, and the install check (GRAFT_SLOW=1: the slow ones too)'
	@echo 'make product         the engine and its front doors, installed into .venv'
	@echo 'make build           that, and the tests and benchmarks'
	@echo 'make asan | tsan     C++ tests with sanitizers, ggml included'
	@echo 'make fuzz            libFuzzer with sanitizers on files of every kind, FUZZ_SECONDS=60 each (needs clang);'
	@echo '                     FUZZ="tokenizer gguf ..." for some of them'
	@echo 'make soak            what a long-lived process and a server do, SOAK_SECONDS=7200 each: nothing may grow or change'
	@echo 'make reliability     faults at every call, and the tables of docs/reliability.md from them'
	@echo 'make coverage        lines of loader, verifier, planner, lowering and text that the tests reach; fails below 95 %'
	@echo 'make mutations       puts known bugs into a copy of the tree, one by one, and requires that the tests notice;'
	@echo '                     ONLY=name,... for some of them'
	@echo 'make vulkan          the Vulkan backend of ggml as a module beside the CPU one; vulkan-test: what runs on it'
	@echo 'make cuda            the same for CUDA (GRAFT_CUDA_ARCHITECTURES=90: for which GPUs); cuda-test, on a GPU'
	@echo 'make install-check   the C++ install, moved away from here, runs examples/cpp'
	@echo 'make executorch-suite  the operator tests that ExecuTorch ships for backends, on graft'
	@echo 'make wheel-check     pip install . into an environment of its own'
	@echo 'make wheels          wheels for every x86-64 CPU and Linux since glibc 2.28, into dist/wheels'
	@echo 'make wheels-check    runs them, on CPUs of qemu-user too; builds them once more: the same bytes'
	@echo 'make clean-check     runs them in Debian without compiler and without this tree, then the C++ SDK with a compiler'
	@echo 'make aarch64-check   kernels and their tests for aarch64, cross-compiled, under qemu-user (skipped without the tools)'
	@echo 'make format | tidy   clang-format, clang-tidy'
	@echo 'make ops-report      the differential tests of all operators, and docs/ops.md from them'
	@echo 'make pages-test      the pages of graft serve and graft inspect in headless Chromium, which it installs'
	@echo 'make docs            the documentation as a site, into build/docs/html, with its links checked'
	@echo 'make types           pyright, strict, on the public API of the Python package'
	@echo 'make bench           measurements (bench/README.md)'
	@echo 'make bench-kernels   what bounds each kernel, after make bench'
	@echo 'make bench-overhead  planning, the cost of a call around its kernels, runs that overlap, flows'

# --- set-up -----------------------------------------------------------------------------------------------------------

# What each part of a first run took is printed after it.
TIMED := tools/setup/timed.sh

system:
	@tools/setup/system.sh $(PYTHON)

$(STAMP)/venv: | system
	@$(TIMED) 'virtual environment .venv' $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/build-tools: requirements/build.txt $(STAMP)/venv
	@$(TIMED) 'build tools' $(PIP_INSTALL) -q -r requirements/build.txt
	@touch $@

# ggml is built for one CPU: carried to another, it is looked at again, and built again if it does not fit.
CPU := $(shell grep -m1 -e '^flags' -e '^Features' /proc/cpuinfo 2>/dev/null | cksum | cut -d' ' -f1)
GGML_STAMP := $(STAMP)/ggml-$(CPU)
$(GGML_STAMP): requirements/ggml.txt tools/setup/ggml.sh cmake/GgmlFromSource.cmake cmake/ggml/CMakeLists.txt $(STAMP)/build-tools
	@$(TIMED) 'ggml from its source' tools/setup/ggml.sh $(VENV)
	@touch $@

$(STAMP)/torch: requirements/torch.txt $(STAMP)/build-tools
	@$(TIMED) 'torch' $(PIP_INSTALL) -q -r requirements/torch.txt
	@touch $@

$(STAMP)/packages: requirements/run.txt requirements/constraints.txt $(STAMP)/torch
	@$(TIMED) 'executorch and transformers' $(PIP_INSTALL) -q -r requirements/torch.txt -r requirements/run.txt
	@touch $@

# pip's downloads go on while ggml is compiled.
setup: system $(STAMP)/build-tools
	@$(MAKE) --no-print-directory -j2 $(STAMP)/packages $(GGML_STAMP)

# For tests alone.
$(STAMP)/test-packages: requirements/test.txt requirements/constraints.txt $(STAMP)/packages
	@$(TIMED) 'test tools' $(PIP_INSTALL) -q -r requirements/torch.txt -r requirements/run.txt -r requirements/test.txt
	@touch $@

$(STAMP)/llama-cpp: tools/setup/llama_cpp.sh cmake/ggml/installed.cmake $(GGML_STAMP)
	@$(TIMED) 'llama.cpp, which slow tests compare with (log: build/llama-cpp-build.log)' tools/setup/llama_cpp.sh $(VENV)
	@touch $@

# --- build and install into .venv -------------------------------------------------------------------------------------

# The engine and its front doors, and nothing that only tests or measurements run.
product: setup
	@[ -e build/release/build.ninja ] || $(TIMED) 'configuration' $(CMAKE) --preset release --log-level=WARNING
	@$(TIMED) 'graft' $(CMAKE) --build --preset release -j $(JOBS) --target graft_product
	@tools/setup/install_dev.sh $(VENV) build/release

build: product $(STAMP)/test-packages
	@$(TIMED) 'tests and benchmarks' $(CMAKE) --build --preset release -j $(JOBS)

# --- the two commands -------------------------------------------------------------------------------------------------

demo: product
	@$(BIN)/python examples/semantic_search.py

test: test-cpp test-python install-check

test-cpp: build
	@echo '== C++ tests, in two halves side by side'
# Each half has its own folder: files that tests write have fixed names.
	@mkdir -p build/release/tmp-0 build/release/tmp-1
	@seq 0 1 | xargs -P 2 -I@ env GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=@ TMPDIR=$(CURDIR)/build/release/tmp-@ \
	  TEST_TMPDIR=$(CURDIR)/build/release/tmp-@/ build/release/graft_tests --gtest_brief=1
	@echo '== Faults of memory, files and threads'
	@build/release/graft_fault_tests --gtest_brief=1 >build/release/faults.log || { cat build/release/faults.log; exit 1; }

# llama.cpp is built for the slow ones, which compare with it.
test-python: build $(if $(GRAFT_SLOW),$(STAMP)/llama-cpp)
	@echo '== Python tests$(if $(GRAFT_SLOW), (slow ones too))'
	@$(BIN)/python -m pytest -q -n $(PYTEST_JOBS) --dist loadfile $(if $(GRAFT_SLOW),--slow) $(PYTEST_ARGS)

install-check: build
	@test/install_check.sh $(VENV) build/release

# --- for developers ---------------------------------------------------------------------------------------------------

asan tsan: %: setup
	tools/setup/ggml_source.sh $(VENV) build/ggml-source
	@[ -e build/$@/build.ninja ] || $(CMAKE) --preset $@
	$(CMAKE) --build --preset $@ -j $(JOBS)
	$(BIN)/ctest --preset $@

FUZZ_SECONDS ?= 60

fuzz: build
	@tools/setup/system.sh $(PYTHON) clang
	@[ -e build/fuzz/build.ninja ] || $(CMAKE) --preset fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
	@$(CMAKE) --build --preset fuzz -j $(JOBS) --target graft_fuzz
	@test/fuzz/run.sh $(BIN)/python build $(FUZZ_SECONDS) $(FUZZ)

SOAK_SECONDS ?= 7200

soak: build
	@$(BIN)/python test/soak/soak.py --seconds $(SOAK_SECONDS)
	@$(BIN)/python test/soak/server_soak.py --seconds $(SOAK_SECONDS)

# Twenty minutes: every call of every operation fails once.
reliability: build
	@GRAFT_FAULTS_ALL=1 build/release/graft_fault_tests >build/release/faults-all.log || \
	  { tail -40 build/release/faults-all.log; exit 1; }
	@GRAFT_FAULTS_ALL=1 $(BIN)/python -m pytest -q -s --slow test/python/hostile/faults_test.py \
	  test/python/hostile/server_faults_test.py >>build/release/faults-all.log || \
	  { tail -40 build/release/faults-all.log; exit 1; }
	@$(BIN)/python tools/docs/reliability.py --faults build/release/faults-all.log --executions build/fuzz/executions

coverage: setup
	@[ -e build/coverage/build.ninja ] || $(CMAKE) --preset coverage
	@$(CMAKE) --build --preset coverage -j $(JOBS) --target graft_tests graft_fault_tests _C
	@$(BIN)/python tools/coverage/work.py build/coverage
	@tools/coverage/run.sh $(VENV) build/coverage
	@$(BIN)/python tools/coverage/lines.py build/coverage

mutations: setup $(STAMP)/test-packages $(STAMP)/llama-cpp
	@$(BIN)/python test/mutations/run.py --jobs $(JOBS) $(if $(ONLY),--only $(ONLY)) $(if $(CMAKE_ARGS),-- $(CMAKE_ARGS))

# Beside an engine that is built already: no part of graft depends on it.
vulkan: setup
	@tools/setup/system.sh $(PYTHON) vulkan
	@$(TIMED) 'the Vulkan backend of ggml from its source (log: build/ggml-vulkan-build.log)' \
	  tools/setup/vulkan.sh $(VENV) $(JOBS)

# Where there is no GPU, on the driver that computes on the CPU, which ggml takes only when it is named.
VULKAN_ENV = GGML_VK_VISIBLE_DEVICES=$${GGML_VK_VISIBLE_DEVICES:-0} OMP_NUM_THREADS=1
VULKAN_CASES ?= 20

vulkan-test: vulkan build
	@echo '== Models on a Vulkan device'
	@env $(VULKAN_ENV) GRAFT_DEVICE_TEST=vulkan0 $(BIN)/python -m pytest -q -rP \
	  test/python/device/models_test.py test/python/device/vulkan_test.py
	@echo '== Caches and states on a Vulkan device'
	@env $(VULKAN_ENV) GRAFT_DEVICE=vulkan0 build/release/graft_tests --gtest_brief=1 --gtest_filter='KvOnDevice.*:KvRing.*'
	@echo '== Operators on a Vulkan device, $(VULKAN_CASES) cases each'
	@env $(VULKAN_ENV) GRAFT_DEVICE=vulkan0 GRAFT_CASES=$(VULKAN_CASES) $(BIN)/python -m pytest -q src/op

cuda: setup
	@$(TIMED) 'the CUDA backend of ggml from its source (log: build/ggml-cuda-build.log)' \
	  tools/setup/cuda.sh $(VENV) $(JOBS)

CUDA_ENV = GRAFT_DEVICE=cuda0 OMP_NUM_THREADS=1
CUDA_CASES ?= 20

cuda-test: cuda build
	@echo '== Models on a CUDA device'
	@env $(CUDA_ENV) GRAFT_DEVICE_TEST=cuda0 $(BIN)/python -m pytest -q -rP test/python/device/models_test.py
	@echo '== Caches and states on a CUDA device'
	@env $(CUDA_ENV) build/release/graft_tests --gtest_brief=1 --gtest_filter='KvOnDevice.*:KvRing.*'
	@echo '== Operators on a CUDA device, $(CUDA_CASES) cases each'
	@env $(CUDA_ENV) GRAFT_CASES=$(CUDA_CASES) $(BIN)/python -m pytest -q src/op

wheel: setup
	$(PIP) wheel --no-build-isolation --no-deps -w dist .

wheel-check: setup
	@test/wheel_check.sh $(VENV)

wheels: system $(STAMP)/packages
	@tools/setup/wheels.sh $(VENV) dist/wheels

wheels-check: wheels
	@test/all_cpus_check.sh $(VENV) dist/wheels/graft-*-cp311-*.whl
	@test/reproducible_check.sh $(VENV) dist/wheels

clean-check: wheels
	@test/clean_check.sh $(VENV) dist/wheels

aarch64-check: setup
	@test/aarch64/check.sh $(VENV) $(JOBS)

CPP_FILES = git ls-files -co --exclude-standard 'include/*.h' 'src/*.h' 'src/*.cpp' 'test/*.cpp' 'examples/*.cpp'

CLANG_FORMAT ?= $(firstword $(shell command -v clang-format clang-format-14 clang-format-18))

format format-check:
	@[ -n "$(CLANG_FORMAT)" ] || { echo 'clang-format is missing: apt-get install clang-format' >&2; exit 1; }
	@$(CPP_FILES) | xargs $(CLANG_FORMAT) $(if $(filter format,$@),-i,--dry-run -Werror)

tidy: build
	@command -v clang-tidy >/dev/null || { echo 'clang-tidy is missing: apt-get install clang-tidy' >&2; exit 1; }
	git ls-files 'src/*.cpp' | grep -v -e _test.cpp -e src/kernel/simd/ | \
	  xargs -P $(JOBS) -n 4 clang-tidy -quiet -p build/release

executorch-suite: build
	@$(BIN)/python test/executorch_suite/run.py

pages-test: build
	@tools/setup/system.sh $(PYTHON) chromium
	@$(BIN)/python -m pytest -q src/serve/page_test.py src/cli/diagrams_test.py

ops-report: build
	@rm -rf build/ops-report && mkdir -p build/ops-report
	@GRAFT_OPS_REPORT=$(CURDIR)/build/ops-report $(BIN)/python -m pytest -q src/op
	@$(BIN)/python tools/docs/ops.py build/ops-report docs/ops.md

$(STAMP)/docs: requirements/docs.txt requirements/constraints.txt $(STAMP)/packages
	@echo '== Installing Sphinx'
	@$(PIP_INSTALL) -q -r requirements/docs.txt
	@touch $@

docs: build $(STAMP)/docs
	@tools/docs/build.sh $(VENV) $(DOCS_LINKS)

types: build $(STAMP)/docs
	@$(BIN)/python test/python/docs/types_check.py

bench: build $(STAMP)/llama-cpp
	@$(MAKE) -C bench PYTHON=$(CURDIR)/$(BIN)/python

bench-kernels: build
	@$(CMAKE) --build --preset release -j $(JOBS) --target graft_kernel_times graft_roofline
	@cd bench && ../$(BIN)/python kernels.py

bench-overhead: demo
	@$(CMAKE) --build --preset release -j $(JOBS) --target graft_overhead graft_overlap
	@build/release/graft_overhead build/demo/minilm.pte
	@build/release/graft_overlap build/demo/minilm.pte
	@$(BIN)/python bench/beside_torch.py build/demo/minilm.pte
	@$(BIN)/python bench/branches.py
	@$(BIN)/python bench/flow.py

clean:
	rm -rf build dist
