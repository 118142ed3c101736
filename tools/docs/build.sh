#!/usr/bin/env bash
# Builds the documentation into build/docs/html; warnings and links that lead nowhere are errors. usage: build.sh VENV
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(cd "$1" && pwd)/bin
if ! command -v doxygen >/dev/null; then
  command -v apt-get >/dev/null || { echo 'doxygen is missing on this system: install it, then try again' >&2; exit 1; }
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  echo "== Installing doxygen"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends doxygen
fi
echo "== Documentation"
rm -rf build/docs/doxygen build/docs/html
mkdir -p build/docs/doxygen
doxygen tools/docs/Doxyfile
# Each header has the namespace: Breathe would declare it once for each page section.
sed -i '/<innernamespace /d' build/docs/doxygen/xml/*_8h.xml
"$bin/python" -m sphinx -q -W --keep-going -d build/docs/doctrees -c tools/docs -b html . build/docs/html
"$bin/python" tools/docs/links.py build/docs/html "${@:2}"
echo "build/docs/html/index.html"
