#!/usr/bin/env bash
# `pip install .` into an environment that has the dependencies but not this tree's build. usage: wheel_check.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel check: $*" >&2; exit 1; }

echo "== Wheel check"
"$venv/bin/pip" wheel -q --no-deps -w "$work/dist" .
wheel=$(echo "$work"/dist/graft-*.whl)
"$venv/bin/python" - "$wheel" <<'PYTHON'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
for part in ["/licenses/LICENSE", "/licenses/THIRD_PARTY_LICENSES.md", "graft/lib/libgraft.so",
             "graft/lib/libgraft_executorch.so", "graft/lib/libggml.so.graft", "graft/lib/libggml-cpu.so.graft",
             "graft/_fb/Program.py", "graft/include/graft/graft.h", "graft/lib/cmake/graft/graftConfig.cmake", "/scripts/graft"]:
    assert any(n.endswith(part) for n in names), f"{part} is not in the wheel: {names}"
assert any(n.startswith("graft/_C.") for n in names), names
assert not any(n.endswith("_test.py") for n in names), names
PYTHON

test/wheel_environment.sh "$venv" "$wheel" "$work/env"
to=$("$work/env/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['platlib'])")
cd "$work"
env -u PYTHONPATH "$work/env/bin/python" - <<'PYTHON'
import torch
import graft

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1

graft.export(Model(), (torch.zeros(3),), path="model.pte")
result = graft.load("model.pte")(torch.ones(3))
assert torch.equal(torch.as_tensor(result), torch.full((3,), 3.0)), result
PYTHON
"$work/env/bin/graft" --help >/dev/null || fail "the command line does not start"
"$work/env/bin/graft" inspect "$work/model.pte" >/dev/null || fail "graft inspect"
readelf -d "$to"/graft/lib/*.so "$to"/graft/_C.* "$work/env/bin/graft" | grep -E 'R(UN)?PATH' | grep -F "$venv" &&
  fail "a binary remembers where it was built"
echo "   $(basename "$wheel"): $(($(stat -c %s "$wheel") / 1024)) KiB"
