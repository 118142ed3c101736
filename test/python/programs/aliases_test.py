"""Operators that are other names of operators, or composed of them: each runs, is decomposed, or is refused by name."""

import pytest
import torch

import graft
from graft import _C
from graft.llm.lower import lower

A = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
B = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).abs() + 0.5
FLAGS = A > 0

# What torch.export itself takes apart while it traces, or gives no value that a program can hold.
TAKEN_APART_BY_EXPORT = {
    "__iand__", "__ior__", "__ixor__", "_autocast_to_full_precision", "_autocast_to_reduced_precision",
    "_batch_norm_impl_index", "_unpack_dual", "adjoint", "alpha_dropout", "atleast_1d", "atleast_2d", "atleast_3d",
    "cartesian_prod", "coalesce", "conj", "conj_physical", "dim", "divide", "dsplit", "feature_alpha_dropout",
    "feature_dropout", "fused_moving_avg_obs_fake_quant", "hsplit", "imag", "is_contiguous", "linalg_diagonal",
    "linalg_eigh", "linalg_matrix_rank", "linalg_pinv", "linalg_svd", "mH", "mT", "matrix_H", "moveaxis", "narrow", "numel",
    "numpy_T", "pin_memory", "qr", "real", "reshape_as", "resolve_conj", "resolve_neg", "retain_grad", "set_data",
    "storage_offset", "svd", "tensor_split", "unsafe_chunk", "vsplit",
}  # fmt: skip


def composite():
    """Functional operators of ATen's registry that are composed of others, by target."""
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        in_place = base.endswith("_") and not base.endswith("__")
        if in_place or overload.endswith("out"):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            yield base, overload or "default"


def test_every_composite_operator_has_a_way():
    runs, decomposed, others = set(_C.operator_targets()), torch.export.default_decompositions(), set()
    counts = {"runs": 0, "decomposed": 0, "taken apart by export": 0}
    for base, overload in composite():
        packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload, None)
        if f"aten.{base}.{overload}" in runs:
            counts["runs"] += 1
        elif operator is not None and operator in decomposed:
            counts["decomposed"] += 1
        else:
            counts["taken apart by export"] += 1
            others.add(base)
    assert others <= TAKEN_APART_BY_EXPORT, sorted(others - TAKEN_APART_BY_EXPORT)
    assert counts["runs"] > 50 and counts["decomposed"] > 350, counts


CASES = {
    "multiply": lambda: torch.multiply(A, B),
    "subtract": lambda: torch.subtract(A, B),
    "divide": lambda: torch.divide(A, B),
    "true_divide": lambda: torch.true_divide(A, B),
    "absolute": lambda: torch.absolute(A),
    "negative": lambda: torch.negative(A),
    "or": lambda: FLAGS | (B > 1),
    "and": lambda: FLAGS & (B > 1),
    "xor": lambda: FLAGS ^ (B > 1),
    "greater": lambda: torch.greater(A, B),
    "less_equal": lambda: torch.less_equal(A, B),
    "not_equal": lambda: torch.not_equal(A, B),
    "clip": lambda: torch.clip(A, -0.5, 0.5),
    "arctan2": lambda: torch.arctan2(A, B),
    "swapaxes": lambda: torch.swapaxes(A, 0, 1),
    "concat": lambda: torch.concat([A, B], 1),
    "hstack": lambda: torch.hstack([A, B]),
    "square": lambda: torch.square(A),
    "softmax": lambda: torch.softmax(A, -1),
    "layer_norm": lambda: torch.nn.functional.layer_norm(A, (4,)),
    "einsum": lambda: torch.einsum("ij,kj->ik", A, B),
    "diff": lambda: torch.diff(A),
    "outer": lambda: torch.outer(A[0], B[0]),
}


@pytest.mark.parametrize("name", CASES)
def test_aliases_of_language_models(name):
    """Language models are lowered without ExecuTorch, which takes apart what graft does not run."""

    class Module(torch.nn.Module):
        def forward(self, a, b, flags):
            before = dict(A=A, B=B, FLAGS=FLAGS)
            globals().update(A=a, B=b, FLAGS=flags)
            try:
                return CASES[name]()
            finally:
                globals().update(before)

    program = torch.export.export(Module(), (A, B, FLAGS))
    lowered, _ = lower(program, {})
    assert torch.allclose(lowered.module()(A, B, FLAGS), CASES[name]())


def test_what_has_no_way_is_refused_by_name():
    class Module(torch.nn.Module):
        def forward(self, a):
            return torch.linalg.matrix_exp(a @ a.t())

    with pytest.raises(graft.ExportError, match="aten.linalg_matrix_exp.default.*no such operator"):
        lower(torch.export.export(Module(), (A,)), {})
