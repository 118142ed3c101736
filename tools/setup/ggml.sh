#!/usr/bin/env bash
# Builds ggml alone from its source, for this machine, and installs it into VENV/ggml. usage: ggml.sh VENV
# Needs requirements/build.txt installed in VENV. GRAFT_GGML_CMAKE_ARGS are given to CMake (-DGGML_CUDA=ON, say).
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd)
prefix=$venv/ggml build=build/ggml log=build/ggml-build.log
made="$(grep -v '^#' requirements/ggml.txt) $(cat cmake/GgmlFromSource.cmake cmake/ggml/* tools/setup/ggml.sh | cksum) ${GRAFT_GGML_CMAKE_ARGS:-}"
if [ "$(cat "$prefix/made" 2>/dev/null)" = "$made" ] && "$venv/bin/python" tools/setup/check_ggml.py "$prefix"; then
  exit 0
fi
export PATH="$venv/bin:$PATH"
tools/setup/ggml_source.sh "$venv" build/ggml-source
rm -rf "$build" "$prefix"
{
  cmake -S cmake/ggml -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DGRAFT_GGML_SOURCE="$PWD/build/ggml-source/vendor/llama.cpp/ggml" ${GRAFT_GGML_CMAKE_ARGS:-}
  cmake --build "$build"
  cmake --install "$build"
  cp build/ggml-source/vendor/llama.cpp/vendor/{miniaudio/miniaudio,stb/stb_image}.h "$prefix/include"
} >"$log" 2>&1 || { tail -40 "$log" >&2; echo "ggml could not be built; the whole log is $log" >&2; exit 1; }
echo "$made" >"$prefix/made"
"$venv/bin/python" tools/setup/check_ggml.py "$prefix"
