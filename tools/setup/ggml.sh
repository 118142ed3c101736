#!/usr/bin/env bash
# Installs ggml (inside llama-cpp-python) into the virtual environment, built from source for this machine.
# usage: ggml.sh VENV    needs requirements/build.txt installed there
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd)
log=build/ggml-build.log
mkdir -p build

# GGML_OPENMP=OFF: with OpenMP ggml's own thread pool has no threads. GGML_RPC=ON: devices of other processes and
# machines (GRAFT_RPC), and the device of the tests. The rest leaves out what graft does not use.
export CMAKE_ARGS="-DGGML_OPENMP=OFF -DGGML_RPC=ON -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF ${GRAFT_GGML_CMAKE_ARGS:-}"
# Without build isolation, so that the pinned cmake and ninja of the environment do the work.
export PATH="$venv/bin:$PATH"

install() {
  echo "== ggml: building llama-cpp-python from source, some minutes (log: $log)"
  # Every 20th compiled file is shown.
  if ! "$venv/bin/pip" install -v --no-build-isolation --no-binary llama-cpp-python \
       -c requirements/constraints.txt -r requirements/ggml.txt "$@" 2>&1 | tee "$log" |
       awk '/^ *\[[0-9]+\/[0-9]+\]/ { if (n++ % 20 == 0) { print "   " $1; fflush() } }'; then
    tail -40 "$log" >&2
    echo "ggml could not be built; the whole log is $log" >&2
    return 1
  fi
}

install
# pip keeps wheels that it built: one from another machine or with other flags is built again.
if ! "$venv/bin/python" tools/setup/check_ggml.py; then
  install --no-cache-dir --force-reinstall --no-deps
  "$venv/bin/python" tools/setup/check_ggml.py
fi
