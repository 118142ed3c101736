#!/usr/bin/env bash
# Runs the C++ tests and, where they reach what C++ tests do not, some of faults and of Python on a build with --coverage.
# usage: run.sh VENV BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 build=$2
find "$build" -name '*.gcda' -delete
"$build/graft_tests" --gtest_brief=1
"$build/graft_fault_tests" --gtest_brief=1 --gtest_filter='Faults.PackedFiles'
# The package with this build's binary part, before the installed one.
site=$build/site
rm -rf "$site" && mkdir -p "$site"
cp -rs "$PWD/python/graft" "$site/graft"
ln -s "$PWD/$build"/python/graft/_C*.so "$site/graft/"
ln -s "$PWD/$build/generated/python/graft/_fb" "$site/graft/_fb"
PYTHONPATH=$PWD/$site "$venv/bin/python" -m pytest -q -p no:cacheprovider src/text test/python/programs/stored_plans_test.py
