#!/usr/bin/env bash
# Runs the C++ tests, and the Python tests of text, on a build with --coverage. usage: run.sh VENV BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 build=$2
find "$build" -name '*.gcda' -delete
"$build/graft_tests" --gtest_brief=1
# The package with this build's binary part, before the installed one.
site=$build/site
rm -rf "$site" && mkdir -p "$site"
cp -rs "$PWD/python/graft" "$site/graft"
ln -s "$PWD/$build"/python/graft/_C*.so "$site/graft/"
ln -s "$PWD/$build/generated/python/graft/_fb" "$site/graft/_fb"
PYTHONPATH=$PWD/$site "$venv/bin/python" -m pytest -q -p no:cacheprovider src/text
