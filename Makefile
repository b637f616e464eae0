# The commands people run are the commands CI runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := .venv-speculators
PURE   := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
MODEL  := smollm2-135m-instruct
# threads that spin while they wait make a busy machine several times slower
export OMP_WAIT_POLICY ?= passive

.PHONY: demo speculators test test-slow test-big test-gpu check fix test-neon wheel wheel-arm bench bench-gpu bench-kernels sanitize docs clean

# A changed kernel source is built by installing again.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/kernels/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The package of another project that the drafters are compared with has pins of its own: it lives in a second
# environment that borrows torch from the first. Without it those tests skip themselves; CI installs it.
$(PEERS)/.installed: $(STAMP) constraints-speculators.txt
	rm -rf $(PEERS)
	$(BIN)/python -m venv $(PEERS)
	$(BIN)/python $(PURE) > "$$($(PEERS)/bin/python $(PURE))/shared.pth"
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement constraints-speculators.txt
	touch $@

speculators: $(PEERS)/.installed

demo: $(STAMP)
	$(BIN)/slipstream models pull $(MODEL)
	$(BIN)/python -m slipstream.measure.demo

test: $(STAMP)
	-@$(MAKE) --no-print-directory speculators
	$(BIN)/slipstream models pull $(MODEL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not big and not gpu"

test-slow: $(STAMP)
	$(BIN)/slipstream models pull $(MODEL)
	$(BIN)/python -m pytest -m "slow and not big"

test-big: $(STAMP)
	$(BIN)/slipstream models pull qwen2.5-coder-0.5b-instruct
	$(BIN)/slipstream models pull qwen2.5-coder-1.5b-instruct
	$(BIN)/python -m pytest -m big

# The Arm kernels on any machine: a cross compiler and an emulator (Debian: g++-aarch64-linux-gnu qemu-user-static).
test-neon:
	@if command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64-static > /dev/null; then \
	  tests/native/run.sh build/neon --toolchain tests/native/aarch64.cmake; \
	else echo "skipped: test-neon needs aarch64-linux-gnu-g++ and qemu-aarch64-static"; fi

wheel: $(STAMP)
	$(BIN)/python -m pip wheel . --no-deps --wheel-dir dist

# The same for 64-bit Arm Linux, from any machine with the cross compiler; for the Python version it is made with.
SUFFIX := -c "import sysconfig as s; print('.' + '-'.join(s.get_config_var('SOABI').split('-')[:2]) + '-aarch64-linux-gnu.so')"
wheel-arm: $(STAMP)
	_PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX="$$($(BIN)/python $(SUFFIX))" $(BIN)/python -m pip wheel . \
	  --no-deps --wheel-dir dist --config-settings=cmake.args=--toolchain=$(CURDIR)/tests/native/aarch64.cmake

# On a GPU machine the environment's own torch is the one to test: PYTHON=python3 make test-gpu BIN=$$(dirname $$(which python3))
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu -p no:cacheprovider tests/gpu

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/slipstream models pull $(MODEL)
	$(BIN)/python -m slipstream.measure.bench $(BENCH)
	$(if $(BENCH),,$(BIN)/python -m slipstream.measure.bench_peers --docs .)

# one prepared run of a few minutes, with the environment's own torch like test-gpu
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m slipstream.measure.bench_gpu $(BENCH)

# The CPU kernels against the machine's memory; BENCH=--check fails where a limit is missed.
bench-kernels: $(STAMP)
	$(BIN)/python -m slipstream.measure.bench_kernels $(BENCH)

# The kernels' tests under the address and undefined-behaviour sanitizers; needs g++ or clang.
sanitize: $(STAMP)
	PYTHON=$(BIN)/python tests/sanitize_kernels.sh

docs: $(STAMP)
	$(BIN)/python -m slipstream.cli.docs

clean:
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
