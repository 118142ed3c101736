#!/usr/bin/env bash
# Installs a build into the virtual environment as `pip install .` would, except that the Python files and ggml's
# libraries are links: an edit needs no new install. usage: install_dev.sh VENV BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 build=$2
site=$("$venv/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['platlib'])")
# Nothing is left to do where no file was built, changed, added or removed since the last time.
state() {
  { find python include cmake pyproject.toml CMakeLists.txt "$venv/ggml/lib" "$build"/{python,generated,graft,cmake_install.cmake} \
    "$build"/lib*.so "$site/graft" \( -type f -o -type l \) -not -name '*.pyc' -printf '%p %s %T@\n' 2>/dev/null || true; } |
    sort | cksum
}
[ "$(state)" != "$(cat "$build/installed_into_venv" 2>/dev/null)" ] || exit 0
quiet() { "$@" >build/install.log || { cat build/install.log >&2; return 1; }; }

quiet "$venv/bin/cmake" --install "$build" --component python --prefix "$site"
for component in python_source python_ggml; do
  quiet env CMAKE_INSTALL_MODE=ABS_SYMLINK_OR_COPY "$venv/bin/cmake" --install "$build" --component $component --prefix "$site"
done
# The entry points, as an installed package has them.
"$venv/bin/python" - "$site" <<'PYTHON'
import pathlib, re, shutil, sys, tomllib
pyproject = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
project, stated = pyproject["project"], pyproject["tool"]["scikit-build"]["metadata"]["version"]
version = re.search(stated["regex"], pathlib.Path(stated["input"]).read_text())["value"]
for earlier in pathlib.Path(sys.argv[1]).glob(f"{project['name']}-*.dist-info"):
    shutil.rmtree(earlier)
folder = pathlib.Path(sys.argv[1]) / f"{project['name']}-{version}.dist-info"
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
groups = project.get("entry-points", {})
lines = [line for group, points in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
(folder / "entry_points.txt").write_text("\n".join(lines) + "\n")
PYTHON
# Links to files that were removed or renamed.
find "$site/graft" -xtype l -delete
state >"$build/installed_into_venv"
