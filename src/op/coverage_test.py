"""Every operator that the engine has is compared with eager; this looks back at the other tests of this folder."""

from pathlib import Path

import pytest
from graft import _C, testing
from op_cases import many


def test_every_operator_has_its_cases(request):
    collected = {item.path for item in request.session.items}
    whole = collected >= set(Path(__file__).parent.glob("*_test.py"))
    if not whole or getattr(request.session, "graft_deselected", False) or any("::" in a for a in request.config.args):
        pytest.skip("needs a run of all tests of src/op")
    # Fewer cases than usual are for a quick look; eager then refuses some operators in most of them.
    wanted = many.max_examples if many.max_examples >= 200 else 1
    counts = testing.case_counts()
    # Numbers are evaluated while a plan is made (scalar_test.cpp); test/python/custom_op_test.py registers the examples.
    numbers = ("python.", "aten.sym_", "example.")
    # Over a cache, or made by a pass from operators of PyTorch: src/kernel/cached_attention_test.cpp,
    # src/run/kv_cache_test.cpp, src/pass/passes_test.cpp, test/python/llm_test.py, seq2seq_test.py and torchao_test.py.
    elsewhere = {"graft.attention.default", "graft.cached_attention", "graft.cache_positions", "graft.rope"}
    elsewhere |= {"graft.store_source.default", "graft.source_attention.default", "graft.source_positions"}
    elsewhere |= {"graft.stored_source", "graft.stored_source_attention"}
    elsewhere |= {"graft.quantized_linear", "graft.quantized_conv", "graft.pack_int4"}
    elsewhere |= {"graft.pack_conv", "graft.packed_conv"}  # test/python/convolution_test.py
    elsewhere |= {"graft.pack_quantized_conv", "graft.packed_quantized_conv"}  # test/python/quantized_conv_test.py
    targets = [name for name in _C.operator_targets() if not name.startswith(numbers) and name not in elsewhere]
    all_of_them = sum(counts.values())
    shares = {kind: count / all_of_them for kind, count in testing.case_kinds().items()}
    assert min(shares.values()) >= 0.1, f"less than a tenth of {all_of_them} cases: {shares}"
    few = {name: counts.get(name, 0) for name in targets if counts.get(name, 0) < wanted}
    assert not few, f"operators with less than {wanted} cases: {few}"
