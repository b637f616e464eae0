#!/usr/bin/env bash
# Builds check_levels.cpp with a compiler (default: c++) and runs it, under an emulator if one is named.
set -euo pipefail
cd "$(dirname "$0")/../.."
compiler=${1:-c++}
runner=${2:-}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

avx2="-mavx2 -mfma -mf16c"
avx512="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16"
declare -A flags=()
if [[ $("$compiler" -dumpmachine) == x86_64* ]]; then
  flags=([gemm_avx2]=$avx2 [gemm_avx512]=$avx512 [gemm_amx]="$avx512 -mamx-tile -mamx-bf16 -mamx-int8")
fi
for file in cpu gemm gemm_amx gemm_avx2 gemm_avx512 gemm_neon gemm_portable groups pack pool; do
  # shellcheck disable=SC2086
  "$compiler" -std=c++17 -O3 -ffp-contract=off ${flags[$file]:-} -c "src/kernels/$file.cpp" -o "$out/$file.o"
done
"$compiler" -std=c++17 -O2 -Isrc/kernels tests/native/check_levels.cpp "$out"/*.o -pthread -o "$out/check"
# shellcheck disable=SC2086
$runner "$out/check"
