#!/usr/bin/env bash
# Installs the distribution's packages that are missing, and only those. Looks for what is needed, not for package
# names, so that a compiler or a Python from elsewhere counts. usage: system.sh [PYTHON [clang|vulkan|chromium]]; with clang,
# also what fuzzing needs, with vulkan, what ggml's Vulkan backend is built with, and a driver that computes on the CPU,
# with chromium, the browser that tests of pages run in.
set -euo pipefail
python=${1:-python3}

packages=()
need() { packages+=("$1"); }
have_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }

command -v c++ >/dev/null || need g++
if ! command -v "$python" >/dev/null; then
  need python3; need python3-venv; need python3-dev
else
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "graft needs Python 3.11 or newer; $python is $("$python" --version). Set PYTHON to a newer one." >&2; exit 1; }
  "$python" -c 'import venv, ensurepip' 2>/dev/null || need python3-venv
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' ||
    need python3-dev
fi
[ -x /usr/bin/flatc ] || [ -x /usr/local/bin/flatc ] || need flatbuffers-compiler
have_header flatbuffers/flatbuffers.h || need libflatbuffers-dev
have_header gtest/gtest.h || need libgtest-dev
have_header gmock/gmock.h || need libgmock-dev
have_header CLI/CLI.hpp || need libcli11-dev
have_header nlohmann/json.hpp || need nlohmann-json3-dev
have_header zip.h || need libzip-dev
have_header histedit.h || need libedit-dev
have_header boost/beast.hpp || need libboost-dev
have_header oniguruma.h || need libonig-dev
have_header utf8proc.h || need libutf8proc-dev
have_header zlib.h || need zlib1g-dev
if [ "${2:-}" = clang ]; then
  command -v clang++ >/dev/null || need clang
  compgen -G "$(clang++ -print-resource-dir 2>/dev/null)/lib/*/libclang_rt.fuzzer*" >/dev/null || need libclang-rt-dev
fi
if [ "${2:-}" = vulkan ]; then
  command -v glslc >/dev/null || need glslc
  have_header vulkan/vulkan.hpp || need libvulkan-dev
  have_header spirv/unified1/spirv.hpp || need spirv-headers
  compgen -G '/usr/share/vulkan/icd.d/lvp_icd.*.json' >/dev/null || need mesa-vulkan-drivers
fi
if [ "${2:-}" = chromium ]; then
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || need chromium
fi

[ ${#packages[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "Missing on this system (named as Debian does): ${packages[*]}. Install them, then try again." >&2
  exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    { echo "Missing packages and no sudo. As root: apt-get install ${packages[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "== Installing the distribution's packages that are missing: ${packages[*]}"
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}"
