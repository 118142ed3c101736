#!/usr/bin/env bash
# Unpacks the source of the very ggml that is installed, for builds with sanitizers. usage: ggml_source.sh VENV TARGET
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd)
target=$2
[ -e "$target/vendor/llama.cpp/ggml/CMakeLists.txt" ] && exit 0
echo "== ggml: fetching the source of $(grep -v '^#' requirements/ggml.txt)"
mkdir -p "$target.part"
PATH="$venv/bin:$PATH" "$venv/bin/pip" download -q --no-deps --no-build-isolation --no-binary llama-cpp-python \
  -d "$target.part" -r requirements/ggml.txt
mkdir -p "$target"
tar -xzf "$target.part"/llama_cpp_python-*.tar.gz -C "$target" --strip-components=1
rm -r "$target.part"
