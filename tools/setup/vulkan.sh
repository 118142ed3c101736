#!/usr/bin/env bash
# Builds ggml's Vulkan backend from its source, as a module beside the ggml of VENV/ggml. usage: vulkan.sh VENV [JOBS]
# Minutes, most of them for its shaders.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd) jobs=${2:-$(nproc)}
prefix=$venv/ggml build=build/ggml-vulkan log=build/ggml-vulkan-build.log
made="$(cat "$prefix/made") $(cat cmake/GgmlModule.cmake cmake/vulkan/* tools/setup/vulkan.sh | cksum)"
if [ "$(cat "$prefix/made-vulkan" 2>/dev/null)" = "$made" ] && [ -e "$prefix/lib/libggml-vulkan.so" ]; then
  exit 0
fi
export PATH="$venv/bin:$PATH"
tools/setup/ggml_source.sh "$venv" build/ggml-source
{
  cmake -S cmake/vulkan -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -Dggml_DIR="$prefix/lib/cmake/ggml" -DGRAFT_GGML_SOURCE="$PWD/build/ggml-source/vendor/llama.cpp/ggml" &&
    cmake --build "$build" -j "$jobs" &&
    cmake --install "$build"
} >"$log" 2>&1 ||
  { tail -40 "$log" >&2; echo "ggml's Vulkan backend could not be built; the whole log is $log" >&2; exit 1; }
echo "$made" >"$prefix/made-vulkan"
