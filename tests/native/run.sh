#!/usr/bin/env bash
# Builds the programs beside this file and runs them: for this machine, or for another under an emulator.
# Usage: tests/native/run.sh BUILD_FOLDER [cmake options]. Needs cmake and a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
shift
cmake -S . -B "$build" -DSLIPSTREAM_CHECKS=ON "$@" > /dev/null
cmake --build "$build" --parallel "${JOBS:-2}" > "$build/log" 2>&1 || { cat "$build/log"; exit 1; }
emulator=$(sed -n 's/^CMAKE_CROSSCOMPILING_EMULATOR:[A-Z]*=//p' "$build/CMakeCache.txt" | tr ';' ' ')
for check in check_levels check_decoder check_tasks check_laws; do
  # shellcheck disable=SC2086
  $emulator "$build/$check"
done
