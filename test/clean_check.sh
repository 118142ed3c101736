#!/usr/bin/env bash
# The wheels in root folders of Debian's base packages: no compiler, none of this tree, no network. Installs them, runs the
# demo's model, then the steps of Containerfile; last, with a compiler there, examples/cpp on the C++ SDK of the wheel.
# usage: clean_check.sh VENV DIST    (GRAFT_CLEAN_ROOTS: where the root folders are kept, build/clean by default)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD venv=$(cd "$1" && pwd) dist=$(cd "$2" && pwd)
roots=${GRAFT_CLEAN_ROOTS:-$root/build/clean}
fail() { echo "clean check: $*" >&2; exit 1; }

echo "== Clean environments"
[ "$(id -u)" = 0 ] || { echo "   skipped: chroot needs root"; exit 0; }
command -v debootstrap >/dev/null || { echo "   skipped: apt-get install debootstrap"; exit 0; }
# Mounts end with this process.
if [ -z "${GRAFT_CLEAN_MOUNTS:-}" ]; then
  unshare -m true 2>/dev/null || { echo "   skipped: mount namespaces are not permitted here"; exit 0; }
  exec env GRAFT_CLEAN_MOUNTS=1 unshare -m --propagation private "$0" "$@"
fi
mkdir -p "$roots"
roots=$(cd "$roots" && pwd)
work=$(mktemp -d)
trap 'umount -q "$work"/*/proc 2>/dev/null || true; rm -rf "$work"' EXIT

for release in bookworm trixie; do
  if [ ! -e "$roots/$release/done" ]; then
    rm -rf "$roots/$release"
    debootstrap --variant=minbase --include=python3-venv "$release" "$roots/$release" >"$work/log" 2>&1 ||
      { tail -20 "$work/log" >&2; fail "debootstrap $release"; }
    touch "$roots/$release/done"
  fi
done

# The demo's model, and what eager PyTorch gives. The package is written by the wheel itself.
test/wheel_environment.sh "$venv" "$dist"/graft-*-cp311-cp311-*.whl "$work/env"
mkdir "$work/model"
(cd "$work" && env -u PYTHONPATH "$work/env/bin/python" - "$root/examples" "$work/model") <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import numpy, semantic_search, torch, transformers
transformers.utils.logging.disable_progress_bar()
model = semantic_search.SentenceEmbedder()
semantic_search.export_package(model, f"{sys.argv[2]}/minilm.pte")
ids = torch.randint(1000, 20000, (3, 21), generator=torch.Generator().manual_seed(0))
mask = torch.ones_like(ids)
mask[1, 15:] = 0
with torch.no_grad():
    expected = model(ids, mask)
numpy.savez(f"{sys.argv[2]}/inputs.npz", **{"0": ids, "1": mask})
numpy.save(f"{sys.argv[2]}/expected.npy", expected)
PYTHON

run_model=$(cat <<'PYTHON'
import time
start = time.perf_counter()
import graft
imported = time.perf_counter()
import numpy
inputs = numpy.load("/model/inputs.npz")
ids, mask = inputs["0"], inputs["1"]
before = time.perf_counter()
vectors = graft.load("/model/minilm.pte")(ids, mask)
done = time.perf_counter()
error = float(numpy.abs(numpy.asarray(vectors) - numpy.load("/model/expected.npy")).max())
assert error < 1e-5, error
print(f"   import {imported - start:.3f} s, load and first result {done - before:.3f} s, worst error {error:.1e}")
PYTHON
)
compare='import numpy; [found] = numpy.load("/model/out.npz").values(); assert abs(found - numpy.load("/model/expected.npy")).max() < 1e-5'

inside() { env -i PATH=/env/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$work/$1" "${@:2}"; }

for release in bookworm trixie; do
  cp -a "$roots/$release" "$work/$release"
  mount -t proc proc "$work/$release/proc"
  cp -r "$work/model" "$work/$release/model"
  python=$(inside "$release" python3 -c "import sys; print('%d.%d' % sys.version_info[:2])")
  for tool in cc gcc g++ clang c++ ld cmake make ninja; do
    inside "$release" sh -c "command -v $tool" && fail "$release has $tool"
  done
  mkdir "$work/$release/packages"
  wheel=$(echo "$dist"/graft-*-cp312-abi3-*.whl)
  [ "$python" != 3.11 ] || wheel=$(echo "$dist"/graft-*-cp311-cp311-*.whl)
  [ -e "$wheel" ] || { echo "   $release: skipped: make wheels found no Python to make a wheel for its Python $python"; continue; }
  last=$release
  cp "$wheel" "$work/$release/packages/"
  "$venv/bin/pip" --disable-pip-version-check download -q --no-deps --only-binary :all: --python-version "$python" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 -c requirements/run.txt -d "$work/$release/packages" numpy 2>/dev/null
  inside "$release" python3 -m venv /env
  before=$(du -sm "$work/$release/env" | cut -f1)
  start=$(date +%s.%N)
  inside "$release" pip --disable-pip-version-check install -q --no-index --find-links /packages --no-compile graft
  seconds=$(echo "$(date +%s.%N) $start" | awk '{printf "%.1f", $1 - $2}')
  size=$(($(du -sm "$work/$release/env" | cut -f1) - before))
  echo "   $release, Python $python, $(basename "$wheel"): installed in $seconds s, $size MB with numpy"
  [ "$size" -lt 120 ] || fail "$release: the install has $size MB, expected fewer than 120"
  inside "$release" python -c "$run_model"
  inside "$release" graft run /model/minilm.pte --inputs /model/inputs.npz --outputs /model/out.npz >/dev/null
  inside "$release" python -c "$compare"
  inside "$release" graft doctor >"$work/doctor" || fail "$release: graft doctor"
  sed 's/^/      /' "$work/doctor"
done

# The server as the image runs it, in the release that Containerfile names.
base=$(sed -n 's#^FROM docker.io/library/debian:\([a-z]*\)-slim#\1#p' Containerfile)
[ -d "$work/$base" ] || fail "Containerfile starts from $base, expected one of bookworm, trixie"
mkdir -p "$work/context/dist"
ln -s "$dist" "$work/context/dist/wheels"
FIND_LINKS=/packages "$venv/bin/python" test/containerfile.py "$work/context" "$work/$base" "$work/model/minilm.pte"

# The SDK for C++ in the wheel, with the compiler of the later release.
[ "$last" = trixie ] || { echo "   examples/cpp: skipped: the wheel's CMake files need CMake 3.28, $last has an older one"; exit 0; }
cp /etc/resolv.conf "$work/trixie/etc/resolv.conf"
inside trixie sh -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends g++ cmake make' >"$work/log" 2>&1 ||
  { tail -5 "$work/log"; fail "g++ could not be installed"; }
cp -r examples/cpp "$work/trixie/example"
inside trixie sh -ec 'cmake -S /example -B /example/build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=$(python -m graft --cmake-prefix)
  cmake --build /example/build' >"$work/log" 2>&1 || { cat "$work/log"; fail "examples/cpp"; }
output=$(inside trixie /example/build/run_model /model/minilm.pte)
[[ "$output" == "f32[1, 384] "* ]] || fail "examples/cpp printed '$output'"
echo "   examples/cpp on the SDK of the wheel, $(inside trixie g++ --version | head -1): $output"
