#!/usr/bin/env bash
# Makes an environment with a wheel that sees another one's packages, except graft. usage: wheel_environment.sh VENV WHEEL ENV
set -euo pipefail
venv=$(cd "$1" && pwd)
"$venv/bin/python" -m venv "$3"
site() { "$1/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['platlib'])"; }
from=$(site "$venv") to=$(site "$3")
for package in "$from"/*; do
  name=$(basename "$package")
  case $name in graft | graft-*) ;; *)
    [ -e "$to/$name" ] || ln -s "$package" "$to/$name" ;;
  esac
done
"$3/bin/pip" --disable-pip-version-check install -q --no-deps "$2"
