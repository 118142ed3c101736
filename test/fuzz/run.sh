#!/usr/bin/env bash
# Runs libFuzzer for some seconds on each kind of file, or on those that are named, from files that the tests write. What
# it finds stays in build/fuzz/found; what it learns in build/fuzz/corpus, for the next time; how much it tried is added
# to build/fuzz/executions. usage: run.sh PYTHON BUILDS SECONDS [KIND...]
set -euo pipefail
python=$1 builds=$2 seconds=$3
shift 3
here=$(dirname "$0")
kinds=${*:-ir package plan states packed tokenizer template gguf safetensors ptd npz audio image message request}
corpus=$builds/fuzz/corpus found=$builds/fuzz/found log=$builds/fuzz/log
mkdir -p "$corpus" "$found"
GRAFT_CORPUS=$corpus "$builds/release/graft_tests" --gtest_brief=1 --gtest_filter='*Mutants.Corpus/*' >"$log"
# Programs of one operator each, of all that there are.
[ -e "$corpus/ir/operators" ] || "$python" "$here/operators.py" "$corpus/ir"
status=0
for kind in $kinds; do
  mkdir -p "$corpus/$kind"
  echo "== $kind, $seconds s, from $(ls "$corpus/$kind" | wc -l) files"
  GRAFT_FUZZ=$kind ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1 \
    UBSAN_OPTIONS=print_stacktrace=1 "$builds/fuzz/graft_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=100000 -max_len=65536 -artifact_prefix="$found/$kind-" -print_final_stats=1 "$corpus/$kind" \
    >"$log" 2>&1 || status=1
  grep -v -e '^#[0-9]*\s*\(NEW\|REDUCE\|RELOAD\|pulse\)' -e '^INFO: Loaded' -e NEW_FUNC "$log" || true
  awk -v kind="$kind" '/stat::number_of_executed_units/ { print kind, $2 }' "$log" >>"$builds/fuzz/executions"
done
exit $status
