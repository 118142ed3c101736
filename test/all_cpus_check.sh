#!/usr/bin/env bash
# Installs the wheel for all CPUs into an environment of its own and runs small models with it:
# on this CPU, and under qemu-user on older ones. usage: all_cpus_check.sh VENV WHEEL
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd) wheel=$(realpath "$2") models=$PWD/test/all_cpus_models.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "all-cpus check: $*" >&2; exit 1; }

echo "== Check of the wheel for all CPUs"
test/wheel_environment.sh "$venv" "$wheel" "$work/env"
to=$("$work/env/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['platlib'])")
graft=$work/env/bin/graft models="env -u PYTHONPATH $work/env/bin/python $models"
cd "$work"
env -u LD_LIBRARY_PATH ldd "$graft" "$to"/graft/lib/*.so* "$to"/graft/_C.*.so >libraries
grep -F libggml libraries | grep -vF "$work" && fail "a ggml from elsewhere is loaded"

# qemu names the features of a CPU that it leaves out.
quiet() { "$@" 2>errors || fail "$* gave: $(grep -v 'warning: TCG' errors | tail -20)"; }

# The models with their inputs, and what eager PyTorch gives; then Python and the command line on this CPU.
quiet $models make models
quiet $models check models
run() {  # NAME EXPECTED COMMAND: all models by the command line
  quiet "${@:3}" devices >devices
  found=$(sed -n 's/^cpu .*(\(kernels of graft.*\))$/\1/p' devices)
  [[ "$found" == $2 ]] || fail "$1: expected $2, found $(cat devices)"
  mkdir "$1"
  for model in models/*.pte; do
    method='--method step'  # of a language model
    [ "$(basename "$model")" = convolution.pte ] && method=''
    for flag in '' --no-fast-kernels; do
      quiet "${@:3}" run "$model" $method --inputs "${model%.pte}.npz" --outputs "$1/$(basename "$model" .pte)$flag.npz" $flag >/dev/null
    done
  done
  quiet $models compare models "$1"
  echo "   $1: $found"
}
run here 'kernels of graft: *; of ggml: libggml-cpu-*.so' "$graft"

if [ "$(uname -m)" != x86_64 ]; then
  echo "   other CPUs: skipped: only those of x86-64 are known to this check"
  exit 0
fi
qemu=$(command -v qemu-x86_64 || command -v qemu-x86_64-static || true)
if [ -z "$qemu" ]; then
  echo "   other CPUs: skipped: apt-get install qemu-user"
  exit 0
fi
# CPU of qemu, level of graft's kernels, module of ggml. This qemu may know no AVX-512, so none of these has it.
while read -r name level module; do
  run "$name" "kernels of graft: $level; of ggml: libggml-cpu-$module.so" "$qemu" -cpu "$name" "$graft"
done <<'CPUS'
qemu64 baseline x64
Nehalem baseline sse42
SandyBridge baseline sandybridge
Haswell avx2 haswell
CPUS

# A wheel without the modules that a CPU needs is an error with names, not a crash.
mkdir "$work/few"
cp -L "$to"/graft/lib/*.so* "$work/few"
rm "$work"/few/libggml-cpu-{x64,sse42}.so
error=$(LD_LIBRARY_PATH=$work/few "$qemu" -cpu Nehalem "$graft" devices 2>&1) && fail "no module fits, but: $error"
[[ "$error" == *"expected a module of ggml's CPU backend"*"in $work/few"* ]] || fail "the error was: $error"
