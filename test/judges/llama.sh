#!/usr/bin/env bash
# Runs the tests of llama.cpp's server against graft serve. They need pytest, openai, requests, wget and filelock beside
# graft. usage: llama.sh LLAMA_CPP [argument of pytest...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export GRAFT_JUDGE_MODELS=${GRAFT_JUDGE_MODELS:-$(mktemp -d)} LLAMA_SERVER_BIN_PATH=$here/llama_server.py
cd "$1/tools/server/tests"
shift
export PYTHONPATH=$here:$PWD${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-python3}" -m pytest -p llama_plugin -p no:cacheprovider "$@"
