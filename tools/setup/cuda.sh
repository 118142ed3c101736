#!/usr/bin/env bash
# Builds ggml's CUDA backend from its source, as a module beside the ggml of VENV/ggml. usage: cuda.sh VENV [JOBS]
# The compiler is the nvcc on PATH if cuBLAS is beside it, else that of NVIDIA's wheels, installed for this alone.
# GRAFT_CUDA_ARCHITECTURES: for which GPUs (90, or 86;90, or native), else those that ggml chooses, which takes hours.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd) jobs=${2:-$(nproc)}
prefix=$venv/ggml build=build/ggml-cuda log=build/ggml-cuda-build.log toolkit=$PWD/build/cuda-toolkit
architectures=${GRAFT_CUDA_ARCHITECTURES:-}
made="$(cat "$prefix/made") $(cat cmake/GgmlModule.cmake cmake/cuda/* src/device/cuda/* requirements/cuda.txt tools/setup/cuda.sh | cksum) $architectures"
if [ "$(cat "$prefix/made-cuda" 2>/dev/null)" = "$made" ] && [ -e "$prefix/lib/libggml-cuda.so" ]; then
  exit 0
fi
export PATH="$venv/bin:$PATH"
if ! { nvcc=$(readlink -f "$(command -v nvcc)") && ls "${nvcc%/bin/nvcc}"/{lib64,targets/*/lib}/libcublas.so; } >/dev/null 2>&1; then
  if ! cmp -s requirements/cuda.txt "$toolkit/made"; then
    echo "== CUDA's compiler and libraries, from NVIDIA's wheels"
    rm -rf "$toolkit"
    "$venv/bin/pip" --disable-pip-version-check install -q --no-deps --target "$toolkit" -r requirements/cuda.txt
    # What linkers look for by a name without a version.
    for library in "$toolkit"/nvidia/cu13/lib/*.so.*; do ln -sf "${library##*/}" "${library%%.so.*}.so"; done
    ln -s lib "$toolkit/nvidia/cu13/lib64"
    cp requirements/cuda.txt "$toolkit/made"
  fi
  export PATH="$toolkit/nvidia/cu13/bin:$PATH"
fi
tools/setup/ggml_source.sh "$venv" build/ggml-source
rm -rf "$build"
{
  cmake -S cmake/cuda -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -Dggml_DIR="$prefix/lib/cmake/ggml" -DGRAFT_GGML_SOURCE="$PWD/build/ggml-source/vendor/llama.cpp/ggml" \
    -DGRAFT_CUDA_WHEELS="../../$("$venv/bin/python" -c "import os, sys, sysconfig
print(os.path.relpath(sysconfig.get_paths()['platlib'], sys.prefix))")/nvidia/cu13/lib" \
    ${architectures:+-DCMAKE_CUDA_ARCHITECTURES="$architectures"} &&
    cmake --build "$build" -j "$jobs" &&
    cmake --install "$build"
} >"$log" 2>&1 ||
  { tail -40 "$log" >&2; echo "ggml's CUDA backend could not be built; the whole log is $log" >&2; exit 1; }
echo "$made" >"$prefix/made-cuda"
