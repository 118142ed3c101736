"""Every operator that the engine has is compared with eager; this looks back at the other tests of this folder."""

import runpy
from pathlib import Path

import pytest
from graft import _C, testing
from op_cases import many


def test_every_operator_has_its_cases(request):
    collected = {item.path for item in request.session.items}
    whole = collected >= set(Path(__file__).parent.rglob("*_test.py"))
    if not whole or getattr(request.session, "graft_deselected", False) or any("::" in a for a in request.config.args):
        pytest.skip("needs a run of all tests of src/op")
    # A quick run has fewer cases; eager then refuses most of those of some operators.
    wanted = many.max_examples if many.max_examples >= 200 else 1
    counts = testing.case_counts()
    # Numbers are evaluated while a plan is made (scalar_test.cpp); test/python/programs/custom_op_test.py registers the examples.
    numbers = ("python.", "aten.sym_", "example.")
    elsewhere = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "docs" / "ops.py"))["MADE"]
    targets = [name for name in _C.operator_targets() if not name.startswith(numbers) and name not in elsewhere]
    all_of_them = sum(counts.values())
    shares = {kind: count / all_of_them for kind, count in testing.case_kinds().items()}
    assert min(shares.values()) >= 0.1, f"less than a tenth of {all_of_them} cases: {shares}"
    few = {name: counts.get(name, 0) for name in targets if counts.get(name, 0) < wanted}
    assert not few, f"operators with less than {wanted} cases: {few}"
