#!/usr/bin/env bash
# Builds the wheels: one for Python 3.11, one of the stable ABI for all later versions, each for every x86-64 CPU and for
# Linux with glibc 2.28 or newer (manylinux_2_28), with the C++ SDK inside. Two builds of a commit give the same bytes.
# usage: wheels.sh VENV OUT
# GRAFT_WHEEL_PYTHONS: the interpreters, with their headers; else 3.11 and the oldest later one that is found.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(cd "$1" && pwd) out=$2 work=$PWD/build/wheels
fail() { echo "wheels: $*" >&2; exit 1; }
[ "$(uname -sm)" = "Linux x86_64" ] || fail "expected Linux on x86_64, found $(uname -sm)"
mkdir -p "$work"

usable() {  # PYTHON MINOR: that version, with the headers that a module needs
  "$1" -c "import os, sys, sysconfig; sys.exit(sys.version_info[:2] != (3, $2) or
    not os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'))" 2>/dev/null
}
find_python() {
  local candidate
  for candidate in "python3.$1" "/usr/bin/python3.$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$1".*/bin/python3; do
    if usable "$candidate" "$1"; then "$candidate" -c 'import sys; print(sys.executable)'; return; fi
  done
}
pythons=${GRAFT_WHEEL_PYTHONS:-}
if [ -z "$pythons" ]; then
  pythons=$(find_python 11)
  for minor in 12 13 14; do
    later=$(find_python $minor)
    [ -z "$later" ] || break
  done
  [ -n "$pythons" ] || echo "   without a wheel for Python 3.11: none with Python.h is here"
  [ -n "$later" ] || echo "   without a wheel for Python 3.12 and later: none with Python.h is here (GRAFT_WHEEL_PYTHONS)"
  pythons="$pythons $later"
fi

# An environment with the tools, and what to compile against.
tools=$work/tools
if ! cmp -s requirements/wheels.txt "$tools/made"; then
  echo "== Tools for wheels"
  rm -rf "$tools"
  "$venv/bin/python" -m venv "$tools"
  "$tools/bin/pip" --disable-pip-version-check install -q -r requirements/wheels.txt
  cp requirements/wheels.txt "$tools/made"
fi
stamp=$(cat tools/setup/manylinux_sysroot.py tools/setup/libzip.sh requirements/wheels.txt cmake/ManyLinux.cmake | cksum; c++ -dumpfullversion)
if [ "$(cat "$work/sysroot/made" 2>/dev/null)" != "$stamp" ]; then
  echo "== Folder with glibc 2.28, libstdc++ and libzip"
  "$tools/bin/python" tools/setup/manylinux_sysroot.py "$work/sysroot"
  tools/setup/libzip.sh "$venv" "$work/sysroot"
  echo "$stamp" >"$work/sysroot/made"
fi
tools/setup/ggml_source.sh "$venv" build/ggml-source

executorch=$("$venv/bin/python" -c "import importlib.util; print(importlib.util.find_spec('executorch').submodule_search_locations[0])")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CMakeLists.txt)
export SOURCE_DATE_EPOCH
[ -n "${pythons// /}" ] || fail "expected a Python of 3.11 to 3.14 with its headers, found none (GRAFT_WHEEL_PYTHONS)"
mkdir -p "$out"
rm -rf "$work/repaired"
for python in $pythons; do
  name=$("$python" -c "import sys; print('%d.%d' % sys.version_info[:2])")
  environment=$work/python-$name
  if ! cmp -s requirements/build.txt "$environment/made"; then
    rm -rf "$environment"
    "$python" -m venv "$environment"
    "$environment/bin/pip" --disable-pip-version-check install -q -c requirements/constraints.txt -r requirements/build.txt
    cp requirements/build.txt "$environment/made"
  fi
  echo "== Wheel by Python $name: ggml's CPU backend is compiled once per kind of CPU"
  rm -rf "$work/made"
  PATH="$environment/bin:$PATH" "$environment/bin/pip" --disable-pip-version-check wheel -q --no-build-isolation --no-deps \
    -w "$work/made" --config-settings=build-dir="$work/build-$name" --config-settings=cmake.define.GRAFT_ALL_CPUS=ON \
    --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/ManyLinux.cmake" --config-settings=cmake.define.GRAFT_SYSROOT="$work/sysroot" \
    --config-settings=cmake.define.GRAFT_EXECUTORCH_ROOT="$executorch" \
    --config-settings=cmake.define.GRAFT_GGML_SOURCE="$PWD/build/ggml-source/vendor/llama.cpp/ggml" .
  # Everything that is not the system's lies in the wheel already, beside what needs it, or in the package executorch.
  PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair --plat manylinux_2_28_x86_64 --only-plat --strip \
    --exclude 'libgraft*' --exclude 'libggml*' --exclude 'libonig*' --exclude 'libexecutorch*' -w "$work/repaired" "$work"/made/graft-*.whl >"$work/repair" 2>&1 ||
    { cat "$work/repair" >&2; fail "auditwheel"; }
done
rm -f "$out"/graft-*-manylinux*.whl
mv "$work"/repaired/graft-*.whl "$out"
for wheel in "$out"/graft-*-manylinux*.whl; do
  "$tools/bin/auditwheel" show --json "$wheel" >"$work/show"
  "$tools/bin/python" - "$work/show" <<'PYTHON' || fail "$(basename "$wheel") is not for manylinux_2_28"
import json, re, sys
shown = json.load(open(sys.argv[1]))
# By its symbols: its name has what the system's libraries must at least be, and they may need less.
needed = re.fullmatch(r"manylinux_2_(\d+)_x86_64", shown["sym_tag"])
# ExecuTorch's lie in the package executorch; the command finds libgraft by the layout of an environment.
beside = {"libexecutorch.so", "libexecutorch_threadpool.so", "libgraft.so"}
if not needed or int(needed[1]) > 28 or shown["unsupported_isa"] or not shown["external_libs"].keys() <= beside:
    sys.exit(json.dumps(shown, indent=1))
PYTHON
  [ "$(stat -c %s "$wheel")" -lt 20000000 ] || fail "$(basename "$wheel") has $(stat -c %s "$wheel") bytes, expected fewer than 20000000"
  [[ "$wheel" != *abi3* ]] || "$tools/bin/abi3audit" --strict "$wheel" >"$work/abi3" 2>&1 || { cat "$work/abi3" >&2; fail "abi3audit"; }
  echo "   $(basename "$wheel"): $(($(stat -c %s "$wheel") / 1024)) KiB"
done
