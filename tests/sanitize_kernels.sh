#!/usr/bin/env bash
# Builds the kernels with the address and undefined-behaviour sanitizers and runs their tests on that build.
# Usage: [PYTHON=python3] tests/sanitize_kernels.sh [pytest arguments]. Needs cmake, a compiler and nanobind.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
build=build/sanitize
package=$build/package/slipstream

"$python" -m nanobind --version > /dev/null 2>&1 || "$python" -m pip install --quiet nanobind
cmake -S . -B "$build" -DSLIPSTREAM_SANITIZE=address,undefined -DPython_EXECUTABLE="$(command -v "$python")" > /dev/null
cmake --build "$build"

# the package as it is, with the instrumented extension in place of any other
rm -rf "$package"
mkdir -p "$package"
cp -r src/slipstream/. "$package"
rm -f "$package"/kernels/_native*
cp "$build"/_native*.so "$package/kernels/"

# the sanitizers must be loaded before the interpreter; its own leaks are not ours to report
runtimes=$("${CXX:-g++}" -print-file-name=libasan.so):$("${CXX:-g++}" -print-file-name=libubsan.so)
LD_PRELOAD=$runtimes:$("${CXX:-g++}" -print-file-name=libstdc++.so) \
ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$build/package \
  "$python" -m pytest -p no:cacheprovider "${@:-tests/unit/test_kernels_gemm.py}"
