#!/usr/bin/env bash
# Puts the header with the interfaces of ggml's backends, which ggml does not install, into the virtual environment: the
# device of src/device/streams_test.cpp implements them. It is taken from the source of the very ggml that is installed.
# usage: ggml_internals.sh VENV
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd)
header=ggml/src/ggml-backend-impl.h
target=$venv/ggml-internals
wanted=$(grep -v '^#' requirements/ggml.txt)
[ -e "$target/ggml-backend-impl.h" ] && [ "$(cat "$target/version" 2>/dev/null)" = "$wanted" ] && exit 0
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
PATH="$venv/bin:$PATH" "$venv/bin/pip" --disable-pip-version-check download -q --no-deps --no-build-isolation \
  --no-binary llama-cpp-python -d "$part" -r requirements/ggml.txt
tar -xzf "$part"/llama_cpp_python-*.tar.gz -C "$part" --strip-components=3 --wildcards "*/vendor/llama.cpp/$header"
mkdir -p "$target"
cp "$part/$header" "$target/"
echo "$wanted" > "$target/version"
