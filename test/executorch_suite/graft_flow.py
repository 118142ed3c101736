"""pytest plugin: graft as the only flow of ExecuTorch's backend test suite, at its own tolerance.

Loaded with `-p graft_flow`, before the suite's conftest.py asks for its flows. Each test leaves a line of JSON in the file
that GRAFT_SUITE_REPORT names.
"""

import json
import os

import executorch.backends.test.harness.stages as stages
import executorch.backends.test.suite.flow as suite
import pytest
from executorch.backends.test.harness import Tester
from executorch.backends.test.harness.stages import StageType
from executorch.exir import EdgeCompileConfig

import graft

# The suite's own tolerances are 1e-1 and 4e-2.
TOLERANCE = 1e-4


class ToEdgeTransformAndLower(stages.ToEdgeTransformAndLower):
    def __init__(self, partitioners=None, edge_compile_config=None):
        super().__init__(
            default_partitioner_cls=graft.GraftPartitioner,
            partitioners=partitioners,
            edge_compile_config=edge_compile_config or EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False),
        )


class GraftTester(Tester):
    __test__ = False

    def __init__(self, module, example_inputs, dynamic_shapes=None, **options):
        classes = Tester.default_stage_classes() | {StageType.TO_EDGE_TRANSFORM_AND_LOWER: ToEdgeTransformAndLower}
        super().__init__(
            module=module, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, stage_classes=classes, **options
        )

    def run_method_and_compare_outputs(self, *args, **options):
        options.update(atol=TOLERANCE, rtol=TOLERANCE)
        return super().run_method_and_compare_outputs(*args, **options)


# No skips and no expected failures of its own.
_FLOW = suite.TestFlow("graft", backend="graft", tester_factory=GraftTester)
suite.all_flows = lambda: {"graft": _FLOW}


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): the suite's, for a plugin that may be absent")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when != "call" and report.outcome == "passed":
        return
    runner = getattr(item, "funcargs", {}).get("test_runner")
    line = {"test": item.nodeid.split("operators/")[-1], "outcome": report.outcome, "parts": []}
    for part in getattr(runner, "_results", []):
        line["parts"].append(
            {
                "result": part.result.name,
                "error": str(part.error or "")[:400],
                "delegated": dict(part.delegated_op_counts or {}),
                "left": dict(part.undelegated_op_counts or {}),
            }
        )
    with open(os.environ["GRAFT_SUITE_REPORT"], "a") as file:
        file.write(json.dumps(line) + "\n")
