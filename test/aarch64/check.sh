#!/usr/bin/env bash
# Builds the kernels and their tests for aarch64 and runs them under qemu-user. Without the tools it says which are
# missing and succeeds: nothing else depends on them. usage: check.sh VENV JOBS [GTEST_FILTER]
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 jobs=$2 filter=${3:-*}
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
missing=()
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
[ -n "$qemu" ] || missing+=(qemu-user)
[ -e /usr/src/googletest/CMakeLists.txt ] || missing+=(googletest)
if [ ${#missing[@]} -gt 0 ]; then
  echo "aarch64-check: skipped: apt-get install ${missing[*]}"
  exit 0
fi
tools/setup/ggml_source.sh "$venv" build/ggml-source
[ -e build/aarch64/build.ninja ] || "$venv/bin/cmake" -S test/aarch64 -B build/aarch64 -G Ninja \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_FIND_ROOT_PATH=/usr/aarch64-linux-gnu -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
  -DGRAFT_GGML_SOURCE="$PWD/build/ggml-source/vendor/llama.cpp/ggml"
"$venv/bin/cmake" --build build/aarch64 -j "$jobs" --target graft_kernel_tests
# In four processes: in one, qemu's memory grows to more than 20 GB. Death tests start their own binary again, which needs
# binfmt_misc.
export GTEST_TOTAL_SHARDS=4
for shard in 0 1 2 3; do
  GTEST_SHARD_INDEX=$shard "$qemu" -L /usr/aarch64-linux-gnu build/aarch64/graft_kernel_tests --gtest_brief=1 \
    --gtest_filter="$filter-*DeathTest*"
done
