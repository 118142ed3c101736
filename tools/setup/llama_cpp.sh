#!/usr/bin/env bash
# Installs llama-cpp-python, which tests compare with, on the ggml of VENV/ggml. usage: llama_cpp.sh VENV
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd)
log=build/llama-cpp-build.log
export PATH="$venv/bin:$PATH"
tools/setup/ggml_source.sh "$venv" build/ggml-source
export CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF -Dggml_DIR=$venv/ggml/lib/cmake/ggml
  -DCMAKE_PROJECT_llama_cpp_INCLUDE=$PWD/cmake/ggml/installed.cmake"
# Without build isolation, so that the pinned cmake and ninja of the environment do the work. A wheel that pip kept may
# have been built on another ggml.
"$venv/bin/pip" install -v --no-build-isolation --no-cache-dir --force-reinstall --no-deps build/ggml-source >"$log" 2>&1 ||
  { tail -40 "$log" >&2; echo "llama-cpp-python could not be built; the whole log is $log" >&2; exit 1; }
"$venv/bin/pip" --disable-pip-version-check install -q -c requirements/constraints.txt -r requirements/ggml.txt
# Its Python code loads ggml from its own folder, by path.
site=$("$venv/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['platlib'])")
ln -sf "$venv"/ggml/lib/libggml*.so* "$site/llama_cpp/lib/"
