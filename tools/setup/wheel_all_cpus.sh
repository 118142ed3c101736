#!/usr/bin/env bash
# Builds a wheel that runs on every CPU of this architecture and brings its own ggml. usage: wheel_all_cpus.sh VENV OUT
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd) out=$2
tools/setup/ggml_source.sh "$venv" build/ggml-source
echo "== Wheel for all CPUs: ggml's CPU backend is compiled once per kind of CPU"
"$venv/bin/pip" --disable-pip-version-check wheel -q --no-build-isolation --no-deps -w "$out" \
  -Cbuild-dir=build/wheel-all-cpus -Ccmake.define.GRAFT_ALL_CPUS=ON \
  -Ccmake.define.GRAFT_GGML_SOURCE="$PWD/build/ggml-source/vendor/llama.cpp/ggml" .
