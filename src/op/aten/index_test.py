"""Indexing against eager; indices out of range fail the run and touch nothing."""

import operator

import graft
import pytest
import torch
from graft import Error, testing
from graft.exporter.serialize import serialize_graph
from graft.testing import check_op, check_results, run_blob, run_op
from op_cases import ALL, FLOATS, Cases, cases

aten = torch.ops.aten


@cases
def test_embedding(case):
    weight = case.tensor([case.pick([1, 31, 257]), case.pick([0, 1, 3, 32, 33])], case.pick(ALL))
    case.check(aten.embedding.default, (weight, case.indices(case.shape(0, 7, 300), weight.shape[0]), case.pick([-1, 0])))


@cases
def test_index_select(case):
    x = case.tensor(case.shape(0, empty=False), case.pick(ALL))
    dim = case.dim(x.dim())
    shape = case.pick([[], [1], [5], [33], [0]]) if x.dim() else case.pick([[], [1]])
    case.check(aten.index_select.default, (x, dim, case.indices(shape, x.shape[dim] if x.dim() else 1)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_any_size(dtype):
    """Devices read halves in pairs, or not at all."""
    for size in (1, 2, 3, 33, 64):
        weight, indices = torch.randn(40, size).to(dtype), torch.arange(39, -1, -3)
        check_op(aten.embedding.default, (weight, indices))
        check_op(aten.index_select.default, (weight, 0, indices))
        check_op(aten.index.Tensor, (weight[None], [None, indices - 40]))


@cases
def test_masked_scatter(case):
    x = case.tensor(case.shape(0, most=2000), case.pick(ALL))
    shape = [1 if case.chance(0.2) else n for n in x.shape][case.pick([0, 0, x.dim() // 2]) :]
    mask = case.tensor(shape, torch.bool)
    count = int(mask.expand(torch.broadcast_shapes(x.shape, mask.shape)).sum())
    source = case.tensor([count + case.pick([0, 3])], x.dtype)
    if case.chance(0.2) and source.numel() % 2 == 0:
        source = source.view(2, -1)
    case.check(aten.masked_scatter.default, (x, mask, source))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_masked_scatter_by_threads(threads):
    mask = torch.rand(9, 5000, generator=torch.Generator().manual_seed(1)) < 0.3
    source = torch.arange(int(mask.sum()))
    check_op(aten.masked_scatter.default, (torch.full((5000,), -1), mask, source), threads=threads)


def test_masked_scatter_with_too_few_elements():
    x, source = torch.full((9,), -1.0), torch.arange(3.0)
    good, bad = [torch.arange(9) < n for n in (3, 4)]
    target = aten.masked_scatter.default
    _fails(target, (x, bad, source), (x, good, source), "the mask selects 4 elements, but source has 3")


def _bags(case: Cases, target, args):
    """The first result: graft computes no other."""
    graph = torch.fx.Graph()
    nodes, tensors = [], []
    for value in args:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"input_{len(tensors)}")
            base = value
            if case.chance(0.5):  # on views
                base = torch.stack([value, value + 1], -1)
                node.meta["val"] = base
                node = graph.call_function(aten.select.int, (node, -1, 0))
            node.meta["val"] = value
            tensors.append(base)
            value = node
        nodes.append(value)
    call = graph.call_function(target, tuple(nodes))
    call.meta["val"] = target(*args)
    first = graph.call_function(operator.getitem, (call, 0))
    first.meta["val"] = call.meta["val"][0]
    graph.output((first,))
    return run_blob(serialize_graph(graph).data, tensors, threads=case.pick([1, 2]), target=target)


@pytest.mark.parametrize("target", [aten._embedding_bag.default, aten._embedding_bag_forward_only.default])
def test_embedding_bag(target):
    @cases
    def check(case):
        mode = case.pick([0, 0, 1, 2])
        table = case.tensor([case.pick([1, 31, 257]), case.pick([1, 3, 32, 33])], case.pick(FLOATS), False)
        indices = case.indices([case.pick([0, 1, 5, 33])], table.shape[0])
        last = case.chance(0.3)
        bags = case.pick([1, 2, 5])
        offsets = [0, *sorted(case.random.randint(0, indices.numel()) for _ in range(bags - 1))]
        end = case.pick([indices.numel(), case.random.randint(offsets[-1], indices.numel())])
        offsets = torch.tensor(offsets + [end] * last, dtype=indices.dtype)
        weights = case.tensor([indices.numel()], table.dtype, False) if mode == 0 and case.chance(0.5) else None
        padding = case.pick([-1, -1, 0, table.shape[0] - 1])
        args = (table, indices, offsets, False, mode, False, weights, last, padding)
        # PyTorch takes what follows the last offset by dtype, so no result of f64 stands for one of f32.
        after = last and end < indices.numel()
        exact = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() and not after else a for a in args]
        expected = target(*exact)[0].to(table.dtype)
        limits = {"atol": 1e-5} if table.dtype == torch.float32 else {}
        check_results(target, args, {}, _bags(case, target, args), expected, **limits)

    check()


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([0, 5, 1], [0, 2], "index 5 is out of range for a table of 5 rows"),
        ([0, -1, 1], [0, 2], "index -1 is out of range for a table of 5 rows"),
        ([0, 1, 2], [1, 2], r"bag 0 is \[1, 2\) of 3 indices"),
        ([0, 1, 2], [0, 4], r"bag 0 is \[0, 4\) of 3 indices"),
        ([0, 1, 2], [0, -1], r"bag 0 is \[0, -1\) of 3 indices"),
    ],
)
def test_embedding_bag_checks(tmp_path, indices, offsets, message):
    net = torch.nn.EmbeddingBag(5, 3, mode="mean").requires_grad_(False)
    good = torch.tensor([0, 4, 2]), torch.tensor([0, 2])
    model = graft.load(graft.export(net, good, path=tmp_path / "bag.pte"))
    assert torch.allclose(model(*good), net(*good))
    with pytest.raises(Error, match=message):
        model(torch.tensor(indices), torch.tensor(offsets))
    assert torch.allclose(model(*good), net(*good))


def _within(case: Cases, shape, dim: int) -> list[int]:
    """Sizes of an index tensor: no larger than `shape` but along `dim`."""
    sizes = [case.pick([s, max(s - 1, 0), 1 if s else 0]) for s in shape]
    if sizes:
        sizes[dim] = case.pick([0, 1, 3, 33])
    return sizes


@cases
def test_gather(case):
    x = case.tensor(case.shape(0, most=2000, empty=False), case.pick(ALL))
    dim = case.dim(x.dim())
    index = case.indices(_within(case, x.shape, dim), x.shape[dim] if x.dim() else 1)
    case.check(aten.gather.default, (x, dim, index))


def _unique(case: Cases, shape, dim: int, size: int) -> torch.Tensor:
    """Indices of which no two along `dim` are equal."""
    order = torch.stack([torch.randperm(size, generator=case._torch)[: shape[dim]] for _ in range(64)])
    index = torch.zeros(shape, dtype=torch.int64)
    lines = index.movedim(dim, -1)
    pick = torch.randint(0, 64, lines.shape[:-1], generator=case._torch)
    lines.copy_(order[pick])
    return index


@cases
def test_scatter(case):
    x = case.tensor(case.shape(0, most=2000, empty=False), case.pick(ALL))
    dim = case.dim(x.dim())
    sizes = [case.pick([s, max(s - 1, 1), 1]) for s in x.shape]
    index = _unique(case, sizes, dim, x.shape[dim]) if x.dim() else torch.tensor(0)
    src = case.tensor([s + case.pick([0, 2]) for s in sizes], x.dtype)
    case.check(aten.scatter.src, (x, dim, index, src))
    case.check(aten.scatter.value, (x, dim, index, case.pick([0, 1, 3])))


@cases
def test_scatter_combines(case):
    dtype = case.pick([*FLOATS[:2], torch.float64, torch.int64, torch.int32, torch.uint8])
    x = case.tensor(case.shape(0, most=2000, empty=False), dtype, False)
    dim = case.dim(x.dim())
    sizes = _within(case, x.shape, dim)
    index = case.indices(sizes, x.shape[dim] if x.dim() else 1).long()
    src = case.tensor(sizes, dtype, False)
    limits = {"atol": 0.05, "rtol": 0.02} if dtype == torch.float16 else {"atol": 1e-5} if dtype.is_floating_point else {}
    case.check(aten.scatter_add.default, (x, dim, index, src), **limits)
    case.check(aten.scatter.reduce, (x, dim, index, src), {"reduce": "add"}, **limits)
    case.check(aten.scatter.value_reduce, (x, dim, index, 2), {"reduce": case.pick(["add", "multiply"])}, **limits)
    for reduce in ("sum", "amax", "amin"):
        case.check(aten.scatter_reduce.two, (x, dim, index, src, reduce), **limits)
    if dtype != torch.float16:
        case.check(aten.scatter_reduce.two, (x, dim, index, src, "prod"), **limits)
    reduce = case.pick(["sum", "amax", "amin", "mean", *["prod"] * (dtype != torch.float16)])
    case.check(aten.scatter_reduce.two, (x, dim, index, src, reduce), {"include_self": False}, **limits)
    case.check(aten.scatter_reduce.two, (x, dim, index, src, "mean"), **limits)


def _index_list(case: Cases, x: torch.Tensor, unique: bool = False) -> list:
    common = case.shape(0, 3, 40, empty=case.chance(0.2))
    chosen = case.random.sample(range(x.dim()), case.random.randint(1, min(x.dim(), 3)))
    indices: list = [None] * (max(chosen) + 1 + (case.chance(0.3) and max(chosen) + 1 < x.dim()))
    for dim in chosen:
        shape = [1 if case.chance(0.3) else s for s in common][case.random.randint(0, len(common)) :]
        indices[dim] = case.indices(shape, x.shape[dim], negative=True)
    if unique:
        indices = [None] * len(indices)
        indices[chosen[0]] = torch.randperm(x.shape[chosen[0]], generator=case._torch)[: case.pick([1, 3, 33])]
    return indices


@cases
def test_index(case):
    x = case.tensor(case.shape(1, 5, 2000, empty=False), case.pick(ALL))
    case.check_or_fail(aten.index.Tensor, (x, _index_list(case, x)))


@cases
def test_index_put(case):
    x = case.tensor(case.shape(1, 5, 2000, empty=False), case.pick(ALL))
    indices = _index_list(case, x, unique=True)
    values = case.tensor(aten.index.Tensor(x, indices).shape, x.dtype)
    case.check(aten.index_put.default, (x, indices, values))
    case.check(aten.index_put.default, (x, indices, values.flatten()[:1].reshape([])))


@cases
def test_index_put_by_a_mask(case):
    x = case.tensor(case.shape(1, most=2000), case.pick(ALL))
    rank = case.random.randint(1, x.dim())
    mask, rest = case.tensor(x.shape[:rank], torch.bool), list(x.shape[rank:])
    one = [n if case.chance(0.7) else 1 for n in rest][case.pick([0, 0, len(rest) // 2]) :]
    for shape in ([], one, [1, *rest], [int(mask.sum()), *rest]):
        case.check(aten.index_put.default, (x, [mask], case.tensor(shape, x.dtype)))


def test_index_put_by_a_mask_with_the_wrong_number_of_values():
    x, values = torch.zeros(9, 2), torch.ones(3, 2)
    good = torch.arange(9) < 3
    for count in (2, 4, 0):
        bad = torch.arange(9) < count
        message = f"the mask selects {2 * count} elements, but source has 6"
        _fails(aten.index_put.default, (x, [bad], values), (x, [good], values), message)


@cases
def test_index_put_accumulates(case):
    x = case.tensor(case.shape(1, 5, 2000, empty=False), case.pick([torch.float32, torch.float64, torch.int64]), False)
    indices = [None if i is None else i.long() for i in _index_list(case, x)]
    try:
        part = aten.index.Tensor(x, indices)
    except IndexError:  # the index tensors do not broadcast
        return
    case.check(aten.index_put.default, (x, indices, case.tensor(part.shape, x.dtype, False), True), atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_last_of_duplicates_stays(threads):
    for width in (1, 5, 4096):
        index = torch.randint(0, 7, (1000,))
        values = torch.arange(1000.0)[:, None].expand(1000, width).contiguous()
        expected = torch.zeros(7, width)
        for i, row in zip(index.tolist(), values, strict=True):
            expected[i] = row
        (actual,) = run_op(aten.index_put.default, (torch.zeros(7, width), [index], values), threads=threads)
        assert torch.equal(actual, expected)
        check_op(aten.index_put.default, (torch.zeros(7, width).double(), [index], values.double(), True), threads=threads)


_OUT = r"index {} is out of range for dimension {} of size 5"


def _fails(target, bad, good, message: str) -> None:
    """`good` runs; `bad`, the same shapes with one index out of range, fails with the message; then `good` runs again."""
    from graft import _C
    from graft.exporter.serialize import serialize_op
    from torch.utils import _pytree as pytree

    program = _C.Program.from_ir(serialize_op(target, good), {})
    session = _C.Session(program, threads=2)
    (name,) = program.method_names()

    def run(args):
        tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
        return testing.run_session(session, name, tensors)[0]

    expected = target(*good)
    assert torch.equal(run(good), expected)
    with pytest.raises(Error, match=message):
        run(bad)
    assert torch.equal(run(good), expected)



@pytest.mark.parametrize("index", [5, -1, 2**40, -(2**63)])
def test_out_of_range_without_wrapping(index):
    x, ok, bad = torch.arange(10.0).view(5, 2), torch.tensor([1, 4]), torch.tensor([1, index])
    _fails(aten.embedding.default, (x, bad), (x, ok), _OUT.format(index, 0))
    _fails(aten.index_select.default, (x, 0, bad), (x, 0, ok), _OUT.format(index, 0))
    _fails(aten.gather.default, (x, 0, bad[:, None]), (x, 0, ok[:, None]), _OUT.format(index, 0))
    _fails(aten.scatter.src, (x, 0, bad[:, None], x), (x, 0, ok[:, None], x), _OUT.format(index, 0))


@pytest.mark.parametrize("index", [5, -6, 2**40, -(2**63)])
def test_out_of_range_with_wrapping(index):
    x, ok, bad = torch.arange(10.0).view(2, 5), torch.tensor([1, -5]), torch.tensor([1, index])
    _fails(aten.index.Tensor, (x, [None, bad]), (x, [None, ok]), _OUT.format(index, 1))
    value = torch.tensor(1.0)
    _fails(aten.index_put.default, (x, [None, bad], value), (x, [None, ok], value), _OUT.format(index, 1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_masks(dtype, monkeypatch, tmp_path):  # python/graft/runtime/segments_test.py has more
    monkeypatch.setattr(testing, "_REPORT", str(tmp_path))  # `make ops-report` meets a program without a plan of its own
    x, mask = torch.arange(12.0).view(3, 4), torch.tensor([True, False, True]).to(dtype)
    (found,) = run_op(aten.index.Tensor, (x, [mask]))
    assert torch.equal(found, x[mask.bool()])
    (found,) = run_op(aten.index_put.default, (x, [mask], torch.ones(2, 4)))
    assert torch.equal(found, x.index_put((mask.bool(),), torch.ones(2, 4)))
