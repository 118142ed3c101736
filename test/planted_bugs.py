"""Plants one known bug after the other and requires that the tests notice: `make planted`.

    python test/planted_bugs.py [--build build/planted] [NAME ...]

The bugs are those that made an earlier project and careless uses of ggml wrong without an error. Each sits in one line
of the engine behind GRAFT_PLANT("name") (src/base/plant.h). Without a plant every test below must pass; with it, the
test named beside it must fail.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_OP = "src/op/"
_SIGNATURE = "python/graft/signature_test.py::"

#: Bug -> the test that catches it: a pytest node, or the name of a C++ test.
BUGS = {
    # Shapes
    "permute-scatters": _OP + "view_test.py::test_permute",
    "permutes-composed-backwards": _OP + "view_test.py::test_permute",
    "permute-with-a-1-as-reshape": _OP + "view_test.py::test_permute",
    "broadcast-guessed-by-size": _OP + "arithmetic_test.py::test_arange_minus_its_transpose",
    "mm-is-a-b-transposed": _OP + "linear_test.py::test_mm_sizes",
    "mean-of-the-last-dim": _OP + "reduce_test.py::test_mean",
    "sum-over-one-dim": _OP + "reduce_test.py::test_sum",
    "cumsum-along-the-last-dim": _OP + "reduce_test.py::test_cumsum",
    # Dtypes
    "i64-weights-read-as-i32": _SIGNATURE + "test_dtypes_of_weights_and_results[dtype3]",
    "integers-cut-to-i32": _OP + "arithmetic_test.py::test_integers_above_two_to_the_24",
    "integers-through-f32": _OP + "arithmetic_test.py::test_integers_above_two_to_the_24",
    "floats-compared-as-integers": _OP + "logic_test.py::test_comparison",
    "cast-copies-raw-bytes": _OP + "creation_test.py::test_cast",
    "output-dtype-unchecked": "Session.WrongOutputsAreRefused",
    # Attention
    "attention-scale-dropped": _OP + "attention_test.py::test_scale",
    "attention-mask-dropped": _OP + "attention_test.py::test_mask_broadcasts",
    "bool-mask-is-added": _OP + "attention_test.py::test_mask_broadcasts",
    "mask-is-scaled-again": _OP + "attention_test.py::test_mask_broadcasts",
    "one-query-aligned-bottom-right": _OP + "attention_test.py::test_causal_is_aligned_top_left",
    "attention-window-dropped": "KvCache.AWindowOfOneGivesTheTokenItself",
    "attention-softcap-dropped": "KvCache.ATinySoftcapGivesTheMean",
    "attention-sinks-dropped": "KvCache.LargeSinksTakeAll",
    # The cache of keys and values
    "ring-slot-off-by-one": "KvRing.ResizedAndRestoredElsewhere",
    "ring-forgets-what-it-lost": "KvRing.AFailedRunLeavesWhatTheNextOneSees",
    "long-prefill-not-kept": "KvRing.ResizedAndRestoredElsewhere",
    "relative-bias-dropped": "test/python/seq2seq_test.py::test_decoding_in_parts_and_a_padded_batch[t5]",
    "source-not-refreshed": "test/python/seq2seq_test.py::test_a_new_source_begins_anew[t5]",
    # Language models
    "kept-positions-from-the-first": "Decoder.ChunksAndStepsGiveWhatTheWholeGives",
    "rejected-drafts-kept": "TextGenerator.DraftsDoNotChangeTheTokens",
    "prompts-read-into-row-0": "BatchGenerator.EveryTextIsTheOneItHasAlone",
    "block-scale-of-the-next-block": "StoredWeightsRun.NothingIsConvertedWhereProductsAndLookupsReadIt",
    # Arguments that were ignored
    "alpha-ignored": _OP + "arithmetic_test.py::test_sums",
    "gelu-kind-ignored": _OP + "activation_test.py::test_gelu",
    "softplus-beta-ignored": _OP + "activation_test.py::test_softplus",
    "elu-alpha-ignored": _OP + "activation_test.py::test_elu",
    "pad-with-zeros": _OP + "movement_test.py::test_constant_pad",
    "clamp-of-one-bound-is-0-to-1": _OP + "activation_test.py::test_clamp",
    # Values
    "where-by-multiplying": _OP + "logic_test.py::test_where",
    "infinity-as-65504": _OP + "logic_test.py::test_masked_fill",
    "round-half-away": _OP + "unary_test.py::test_half_to_even",
    "sort-returns-places-as-values": _OP + "sort_test.py::test_sort",
    "topk-unordered": _OP + "sort_test.py::test_topk",
    # Reads and writes at indices
    "slice-scatter-does-nothing": _OP + "movement_test.py::test_slice_scatter",
    "index-put-on-the-first-axis": _OP + "index_test.py::test_index_put",
    "index-put-never-accumulates": _OP + "index_test.py::test_index_put_accumulates",
    "bad-index-is-clamped": _OP + "index_test.py::test_out_of_range_without_wrapping",
    # States
    "state-write-dropped": "Session.StatesKeepTheirValueFromRunToRun",
    "state-written-before-it-is-read": "Session.StatesKeepTheirValueFromRunToRun",
    "state-per-method": _SIGNATURE + "test_methods_share_state",
    # Weights and inputs
    "missing-weights-are-zeros": "PackageTest.WeightsInDataFiles",
    "weight-size-unchecked": "PackageTest.WeightOfAnotherSize",
    "input-sizes-unchecked": "Session.WrongInputsNameWhatWasExpectedAndFound",
    "input-read-at-the-graphs-size": "Session.OneProgramServesEverySize",
    # Quantized weights
    "weight-zero-forgotten": "test/python/torchao_test.py::test_one_layer[False-int4 by 32 with zeros]",
    "input-zero-forgotten": "test/python/torchao_test.py::test_one_layer[False-dynamic int4 by 32]",
    "quantized-group-off-by-one": "test/python/torchao_test.py::test_one_layer[False-int4 by 32]",
    # Plans and their caches
    "plans-found-by-hash-alone": "Session.SizesInAnotherOrderAreAnotherPlan",
    "plan-cache-unbounded": "Session.PlansAreBounded",
    "inputs-of-the-first-run-frozen": "Session.SteadyStateRewritesOnlyWhatMoved",
    "numbers-of-the-first-run-frozen": _SIGNATURE + "test_a_number_that_changes",
    "refresh-decided-by-64-bytes": "Session.AnInputThatBeginsLikeTheLastOneIsRead",
    "memory-reused-too-early": "test/golden/golden_test.py::test_python",
    # Which nodes run here
    "operators-found-by-substring": "Program.UnknownOperatorIsNamed",
}


def planted_in_source() -> list[str]:
    """The names in the engine's sources."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.cpp")):
        found += re.findall(r'GRAFT_PLANT\("([^"]+)"\)', path.read_text())
    return found


def is_pytest(test: str) -> bool:
    return "::" in test


def make_package(build: Path) -> Path:
    """A folder with the package `graft` of that build: it is never installed."""
    package = build / "site" / "graft"
    package.mkdir(parents=True, exist_ok=True)
    own = ROOT / "python" / "graft"
    sources = [*own.glob("*.py"), own / "llm", own / "hf", *(build / "python" / "graft").glob("_C*.so")]
    sources += build.glob("**/graft/_fb")
    for source in sources:
        link = package / source.name
        if source.is_relative_to(package):
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    return package.parent


@dataclasses.dataclass
class Outcome:
    code: int
    text: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.code == 1 or self.code < 0  # a signal is noticed too

    @property
    def how(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else {0: "passed", 1: "failed"}.get(self.code, f"code {self.code}")


def run_tests(build: Path, tests: list[str], bug: str | None) -> int:
    """In a process of its own."""
    if bug is not None:
        os.environ["GRAFT_PLANT"] = bug
    if not is_pytest(tests[0]):
        command = [str(build / "graft_tests"), "--gtest_brief=1", "--gtest_filter=" + ":".join(tests)]
        return subprocess.run(command).returncode
    import pytest

    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


def run_all(build: Path, runs: list[tuple[list[str], str | None]], jobs: int) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each run by its number, as they end. Runs are forked: torch is imported once."""
    running: dict[int, tuple[int, Any, float]] = {}
    waiting = list(enumerate(runs))
    while waiting or running:
        while waiting and len(running) < jobs:
            i, (tests, bug) = waiting.pop(0)
            log = tempfile.TemporaryFile()
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if child == 0:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                code = 3
                try:
                    code = run_tests(build, tests, bug)
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(code if code >= 0 else 128 - code)
            running[child] = (i, log, time.monotonic())
        child, status = os.wait()
        i, log, begin = running.pop(child)
        log.seek(0)
        code = os.waitstatus_to_exitcode(status)
        yield i, Outcome(code if code < 128 else 128 - code, log.read().decode(errors="replace"), time.monotonic() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "planted")
    parser.add_argument("--jobs", type=int, default=min(len(os.sched_getaffinity(0)), 4))
    parser.add_argument("names", nargs="*", help="bugs to plant; all when none is named")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BUGS)) or sorted(set(planted_in_source()) ^ set(BUGS))
    if unknown:
        print(f"no such bug, or not in both src and the table of this file: {', '.join(unknown)}", file=sys.stderr)
        return 2
    bugs = {name: BUGS[name] for name in (options.names or BUGS)}
    build = options.build.resolve()
    prepare(build)

    clean = [sorted({test for test in bugs.values() if is_pytest(test) == kind}) for kind in (True, False)]
    clean = [tests for tests in clean if tests]
    for i, outcome in run_all(build, [(tests, None) for tests in clean], options.jobs):
        if outcome.code != 0 or re.search(r"(\b0 tests from|no tests ran)", outcome.text):
            print(outcome.text, f"\nwithout a bug planted, these do not pass: {clean[i]}", sep="", file=sys.stderr)
            return 1
    print(f"without a bug: all {len(set(bugs.values()))} tests pass", flush=True)

    missed = []
    names = list(bugs)
    for i, outcome in run_all(build, [([bugs[name]], name) for name in names], options.jobs):
        verdict = "caught" if outcome.failed else "MISSED"
        print(f"{verdict}  {names[i]:33} {bugs[names[i]]}  ({outcome.how}, {outcome.seconds:.1f} s)", flush=True)
        if not outcome.failed:
            missed.append(names[i])
            print(outcome.text, file=sys.stderr)
    print(f"{len(bugs) - len(missed)} of {len(bugs)} planted bugs caught")
    return 1 if missed else 0


def prepare(build: Path) -> None:
    """Imports the package of that build, once for all runs."""
    os.environ["GRAFT_CASES"] = "60"
    os.chdir(ROOT)
    sys.path.insert(0, str(make_package(build)))
    import torch  # noqa: F401
    from hypothesis import Phase, settings

    import graft._C

    assert Path(graft._C.__file__).resolve().is_relative_to(build), f"graft is {graft._C.__file__}, not of {build}"
    # A failing case is not made smaller: that it fails is all that counts.
    settings.register_profile("planted", phases=[Phase.generate])
    settings.load_profile("planted")


if __name__ == "__main__":
    raise SystemExit(main())
