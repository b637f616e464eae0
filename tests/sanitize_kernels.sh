#!/usr/bin/env bash
# The kernels under sanitizers: address and undefined behaviour on the Python tests and the programs of tests/native,
# then threads on those programs. Needs cmake and g++ or clang; Python tests need nanobind.
# Usage: [PYTHON=python3] tests/sanitize_kernels.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
build=build/sanitize
package=$build/package/slipstream
export UBSAN_OPTIONS=print_stacktrace=1

tests/native/run.sh build/sanitize-address -DSLIPSTREAM_SANITIZE=address,undefined
tests/native/run.sh build/sanitize-thread -DSLIPSTREAM_SANITIZE=thread

"$python" -m nanobind --version > /dev/null 2>&1 || "$python" -m pip install --quiet nanobind
cmake -S . -B "$build" -DSLIPSTREAM_SANITIZE=address,undefined -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" > /dev/null
cmake --build "$build" --parallel "${JOBS:-2}" > "$build/log" 2>&1 || { cat "$build/log"; exit 1; }

# the package as it is, with the instrumented extension in place of any other
rm -rf "$package"
mkdir -p "$package"
cp -r src/slipstream/. "$package"
rm -f "$package"/kernels/_native*
cp "$build"/_native*.so "$package/kernels/"

# the sanitizers must be loaded before the interpreter; its own leaks are not ours to report
runtimes=$("${CXX:-g++}" -print-file-name=libasan.so):$("${CXX:-g++}" -print-file-name=libubsan.so)
if [ $# = 0 ]; then set -- tests/unit/test_kernels_{gemm,decoder,laws}.py; fi
LD_PRELOAD=$runtimes:$("${CXX:-g++}" -print-file-name=libstdc++.so) ASAN_OPTIONS=detect_leaks=0 \
PYTHONPATH=$build/package "$python" -m pytest -p no:cacheprovider "$@"
