"""Views against eager: every operator on contiguous operands and on views of views."""

import pytest
import torch
from op_cases import ALL, Cases, cases

import graft
from graft.exporter.serialize import serialize
from graft.testing import check_op, run_blob

aten = torch.ops.aten


def _tensor(case: Cases, low: int = 0, high: int = 8) -> torch.Tensor:
    return case.tensor(case.shape(low, high), case.pick(ALL))


def _with_inferred(case: Cases, sizes: list[int]) -> list[int]:
    known = 1
    at = case.random.randrange(len(sizes)) if sizes else 0
    for i, size in enumerate(sizes):
        known *= size if i != at else 1
    if sizes and known and case.chance(0.4):
        sizes[at] = -1
    return sizes


@pytest.mark.parametrize("target", [aten.view.default, aten.reshape.default, aten._unsafe_view.default])
@cases
def test_reshape(target, case):
    x = _tensor(case, high=5)
    case.check(target, (x, _with_inferred(case, case.factors(x.numel(), 8))))


@cases
def test_flatten(case):
    x = _tensor(case)
    first = case.random.randint(0, max(x.dim() - 1, 0))
    last = case.random.randint(first, max(x.dim() - 1, 0))
    case.check(aten.flatten.using_ints, (x, first, last - max(x.dim(), 1) if case.chance(0.5) else last))


@cases
def test_unflatten(case):
    x = _tensor(case, low=1, high=4)
    dim = case.random.randrange(x.dim())
    case.check(aten.unflatten.int, (x, dim, _with_inferred(case, case.factors(x.shape[dim], 4) or [1])))


@cases
def test_view_as(case):
    x = _tensor(case, high=5)
    case.check(aten.view_as.default, (x, torch.zeros(case.factors(x.numel(), 8))))


@cases
def test_view_dtype(case):
    x = case.tensor(case.shape(), case.pick([torch.float32, torch.int32, torch.float16, torch.int16]))
    to = {4: [torch.float32, torch.int32], 2: [torch.float16, torch.int16, torch.bfloat16]}[x.element_size()]
    case.check(aten.view.dtype, (x, case.pick(to)))


@cases
def test_permute(case):
    x = _tensor(case)
    case.check(aten.permute.default, (x, [d - x.dim() if case.chance(0.3) else d for d in case.permutation(x.dim())]))


@pytest.mark.parametrize("target", [aten.transpose.int, aten.swapaxes.default, aten.swapdims.default])
@cases
def test_transpose(target, case):
    x = _tensor(case)
    case.check(target, (x, case.dim(x.dim()), case.dim(x.dim())))


@cases
def test_t(case):
    case.check(aten.t.default, (_tensor(case, high=2),))


@cases
def test_movedim(case):
    x = _tensor(case)
    case.check(aten.movedim.int, (x, case.dim(x.dim()), case.dim(x.dim())))
    sources = case.dims(x.dim())
    targets = case.random.sample(range(x.dim()), len(sources))
    case.check(aten.movedim.intlist, (x, sources, targets))


@cases
def test_unsqueeze(case):
    x = _tensor(case, high=7)
    case.check(aten.unsqueeze.default, (x, case.dim(x.dim() + 1)))


@cases
def test_squeeze(case):
    x = _tensor(case)
    case.check(aten.squeeze.default, (x,))
    case.check(aten.squeeze.dim, (x, case.dim(x.dim())))
    case.check(aten.squeeze.dims, (x, case.dims(x.dim())))


@pytest.mark.parametrize("target", [aten.expand.default, aten.broadcast_to.default])
@cases
def test_expand(target, case):
    x = _tensor(case, high=5)
    sizes = [case.pick([1, 2, 3]) if s == 1 and case.chance(0.6) else case.pick([-1, s]) for s in x.shape]
    lead = [case.pick([0, 1, 2, 3]) for _ in range(case.random.randint(0, 8 - x.dim()))]
    case.check(target, (x, (lead if x.numel() < 500 else []) + sizes))


@cases
def test_expand_as(case):
    x = _tensor(case, high=4)
    case.check(aten.expand_as.default, (x, torch.zeros([2, *(3 if s == 1 else s for s in x.shape)])))


@cases
def test_select(case):
    x = case.tensor(case.shape(1, 8, empty=False), case.pick(ALL))
    dim = case.dim(x.dim())
    case.check(aten.select.int, (x, dim, case.random.randint(-x.shape[dim], x.shape[dim] - 1)))


def _bound(case: Cases, size: int):
    return case.pick([None, 0, 1, size // 2, size - 1, size, size + 5, -1, -size, -size - 3, 2**63 - 1, -(2**63)])


@cases
def test_slice(case):
    x = _tensor(case, low=1)
    dim = case.dim(x.dim())
    size = x.shape[dim]
    case.check(aten.slice.Tensor, (x, dim, _bound(case, size), _bound(case, size), case.pick([1, 2, 3, 7, 300])))


@cases
def test_narrow(case):
    x = _tensor(case, low=1)
    dim = case.dim(x.dim())
    start = case.random.randint(0, x.shape[dim])
    length = case.random.randint(0, x.shape[dim] - start)
    case.check(aten.narrow.default, (x, dim, start - x.shape[dim] if start and case.chance(0.3) else start, length))


@pytest.mark.parametrize("target", [aten.split.Tensor, aten.unsafe_split.Tensor])
@cases
def test_split(target, case):
    x = _tensor(case, low=1)
    dim = case.dim(x.dim())
    fewest = x.shape[dim] // 12 + 1
    case.check(target, (x, case.pick([fewest, fewest + 1, fewest + 2, 100, 300]), dim))


@pytest.mark.parametrize("target", [aten.split_with_sizes.default, aten.split.sizes])
@cases
def test_split_with_sizes(target, case):
    x = _tensor(case, low=1)
    dim = case.dim(x.dim())
    cuts = sorted(case.random.randint(0, x.shape[dim]) for _ in range(case.random.randint(0, 4)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, x.shape[dim]], strict=True)]
    case.check(target, (x, sizes, dim))


@cases
def test_chunk(case):
    x = _tensor(case, low=1)
    case.check(aten.chunk.default, (x, case.pick([1, 2, 3, 12]), case.dim(x.dim())))


@cases
def test_unbind(case):
    x = _tensor(case, low=1)
    dim = case.dim(x.dim())
    if 0 < x.shape[dim] < 34:
        case.check(aten.unbind.int, (x, dim))


@cases
def test_diagonal(case):
    x = _tensor(case, low=2)
    first, second = case.random.sample(range(x.dim()), 2)
    case.check(aten.diagonal.default, (x, case.pick([0, 0, 1, -1, 2, -3, 300, -300]), first, second - x.dim()))


@cases
def test_unfold(case):
    x = _tensor(case, high=7)
    dim = case.dim(x.dim())
    size = case.random.randint(0, min(x.shape[dim] if x.dim() else 1, 5))
    case.check(aten.unfold.default, (x, dim, size, case.pick([1, 2, 3])))


@cases
def test_flip(case):
    x = _tensor(case)
    case.check(aten.flip.default, (x, case.dims(x.dim())))


@pytest.mark.parametrize("target", [aten.alias.default, aten.detach.default, aten.ravel.default])
@cases
def test_same_elements(target, case):
    case.check(target, (_tensor(case),))


@cases
def test_computed_sizes(case):
    """x is [n, 3, 2]."""
    target, draw = case.pick(
        [
            (aten.view.default, lambda x, n: (x, [n * 3, 2])),
            (aten.reshape.default, lambda x, n: (x, [2, n, -1])),
            (aten.expand.default, lambda x, n: (x, [n + 1, n, 3, 2])),
            (aten.slice.Tensor, lambda x, n: (x, 0, n // 3, n // 2 + 1)),
            (aten.slice.Tensor, lambda x, n: (x, 0, -(n // 2), n - 1, 2)),
            (aten.narrow.default, lambda x, n: (x, 0, n // 2, n - n // 2)),
            (aten.select.int, lambda x, n: (x, 0, n // 2)),
            (aten.repeat.default, lambda x, n: (x, [1, n % 3 + 1, 2])),
            (aten.roll.default, lambda x, n: (x, [n // 2], [0])),
            (aten.add.Tensor, lambda x, n: (x, n)),
            (aten.mul.Scalar, lambda x, n: (x, n / 2)),
            (aten.tril.default, lambda x, n: (x, n - 3)),
        ]
    )
    case.check_computed(target, draw)


@cases
def test_as_strided(case):
    # Contiguous tensors only: the memory around a view is unknown.
    x = case.tensor([257], case.pick(ALL))
    sizes, strides = [], []
    start = last = case.pick([0, 0, 1, 7])
    for _ in range(case.random.randint(0, 8)):
        stride = case.pick([0, 1, 1, 2, 5, 31])
        size = case.pick([s for s in (0, 1, 2, 3, 5, 33) if last + (s - 1) * stride < 257 and (s or case.chance(0.1))])
        last += max(size - 1, 0) * stride
        sizes.append(size)
        strides.append(stride)
    args = (x, sizes, strides) if start == 0 else (x, sizes, strides, start)
    check_op(aten.as_strided.default, args)


@pytest.mark.parametrize(("target", "argument", "count"), [(aten.chunk.default, 2**40, 2**40), (aten.split.Tensor, 2**62, 1)], ids=str)
def test_more_or_fewer_views_than_the_program_takes(target, argument, count):
    """PyTorch does not trace one: a damaged program may ask for more views than fit into memory."""

    class Net(torch.nn.Module):
        def forward(self, x):
            return target(x, 2)

    rows = 0 if target is aten.chunk.default else 4
    program = torch.export.export(Net(), (torch.ones(rows, 4),))
    (node,) = (n for n in program.graph.nodes if n.target is target)
    node.args = (node.args[0], argument)
    with pytest.raises(graft.InvalidArgument, match=f"gives {count} tensors here, but the program takes 2"):
        run_blob(serialize(program).data, [torch.ones(rows, 4)])
