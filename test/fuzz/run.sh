#!/usr/bin/env bash
# Runs both libFuzzer targets for some seconds each, from files that the tests write. What it finds stays in
# build/fuzz/found; what it learns in build/fuzz/corpus, for the next time. usage: run.sh BUILDS SECONDS
set -euo pipefail
builds=$1 seconds=$2
corpus=$builds/fuzz/corpus found=$builds/fuzz/found
mkdir -p "$corpus/ir" "$corpus/package" "$found"
GRAFT_CORPUS=$corpus "$builds/release/graft_tests" --gtest_brief=1 --gtest_filter='Mutants.Corpus'
for target in ir package; do
  echo "== fuzz_$target, $seconds s, from $(ls "$corpus/$target" | wc -l) files"
  ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
    "$builds/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=100000 \
    -max_len=65536 -artifact_prefix="$found/$target-" -print_final_stats=1 "$corpus/$target" 2>&1 |
    grep -v -e '^#[0-9]*\s*\(NEW\|REDUCE\|RELOAD\|pulse\)' -e '^INFO: Loaded' -e NEW_FUNC
done
