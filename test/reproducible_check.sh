#!/usr/bin/env bash
# Builds the wheels once more from nothing and compares the bytes. usage: reproducible_check.sh VENV DIST
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "== The same wheels again"
rm -rf build/wheels/build-*
export CCACHE_DISABLE=1  # it would give the first build's objects
tools/setup/wheels.sh "$1" "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for wheel in "$2"/graft-*-manylinux*.whl; do
  cmp "$wheel" "$work/$(basename "$wheel")" || { echo "reproducible check: $wheel differs from a second build" >&2; exit 1; }
  echo "   $(basename "$wheel"): $(sha256sum <"$wheel" | cut -c1-64)"
done
