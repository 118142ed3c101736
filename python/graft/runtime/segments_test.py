"""Methods that run in segments: sizes that depend on data, torch.cond, torch.while_loop."""

from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime
from torch.export import Dim

import graft
import graft.executorch

ANCHORS = 64


def exported(model, args, path: Path, **options) -> Path:
    return graft.export(model.eval(), args, path=path, **options)


class Detector(torch.nn.Module):
    """A detection head: boxes and scores of all anchors, then those above a threshold, the best class of each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = torch.nn.Conv1d(8, 16, 3, padding=1)
        self.boxes = torch.nn.Linear(16, 4)
        self.classes = torch.nn.Linear(16, 5)

    def forward(self, image, threshold):
        hidden = torch.relu(self.features(image)).squeeze(0).transpose(0, 1)
        corners = self.boxes(hidden).sigmoid()
        scores, labels = self.classes(hidden).softmax(-1).max(-1)
        kept = (scores > threshold).nonzero().squeeze(1)
        boxes = corners[kept]
        area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1)
        return boxes, scores[kept], labels[kept], area


IMAGE = torch.randn(1, 8, ANCHORS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    path = tmp_path_factory.mktemp("detector") / "detector.pte"
    return exported(Detector(), (IMAGE, torch.tensor(0.3)), path)


def thresholds(counts):
    """By count: a threshold that so many anchors pass."""
    everything = Detector().eval()(IMAGE, torch.tensor(0.0))[1].sort(descending=True).values
    edges = torch.cat([torch.tensor([1.0]), everything, torch.tensor([0.0])])
    return {n: (edges[n] + edges[n + 1]) / 2 for n in counts}


def test_detector_with_twenty_counts(detector):
    eager, model = Detector().eval(), graft.load(detector)
    counts = [0, ANCHORS, *range(1, 55, 3)]
    assert len(set(counts)) == 20
    for count, threshold in thresholds(counts).items():
        expected = eager(IMAGE, threshold)
        found = model(IMAGE, threshold)
        assert len(found[0]) == count
        torch.testing.assert_close(found, expected)
    (head, host, tail) = model.describe()["methods"][0]["steps"]
    assert [step["kind"] for step in (head, host, tail)] == ["plan", "host", "plan"]
    assert host["parts"][0]["name"] == "aten.nonzero.default"
    assert len(head["parts"][0]["plans"]) == 1
    assert len(tail["parts"][0]["plans"]) == 20
    assert model.counters()["plan_misses"] == 21
    misses, arenas = model.counters()["plan_misses"], model.counters()["arena_allocations"]
    for threshold in thresholds([0, ANCHORS, 7]).values():
        model(IMAGE, threshold)
    assert model.counters()["plan_misses"] == misses
    assert model.counters()["arena_allocations"] == arenas


def test_detector_in_executorch(detector):
    method = Runtime.get().load_program(str(detector)).load_method("forward")
    for threshold in thresholds([3, 0, ANCHORS, 17]).values():
        expected = Detector().eval()(IMAGE, threshold)
        for found, wanted in zip(method.execute([IMAGE, threshold]), expected, strict=True):
            torch.testing.assert_close(found, wanted)


def test_detector_after_shrink_and_into_memory_of_the_caller(detector):
    model = graft.load(detector)
    few, many = thresholds([2, 9]).values()
    model(IMAGE, few)
    model.shrink()
    expected = Detector().eval()(IMAGE, many)
    torch.testing.assert_close(model(IMAGE, many), expected)
    out = tuple(torch.empty_like(t) for t in expected)
    model(IMAGE, many, out=out)
    torch.testing.assert_close(out, expected)
    with pytest.raises(graft.InvalidArgument, match="out\\[0\\]"):
        model(IMAGE, few, out=out)


class Masks(torch.nn.Module):
    def forward(self, x, rows):
        y = x.clone()
        y[y < -1] = 0  # sizes do not depend on data
        z = x.clone()
        z[rows] = z[rows] * 3
        return x[x > 0] * 2, torch.masked_select(x, x > 1), x[rows], y, z


class Numbers(torch.nn.Module):
    def forward(self, x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= x.shape[0])
        return x[:k] + 1, torch.zeros(k) + x.sum()


class Uniques(torch.nn.Module):
    def forward(self, x, y, n):
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        rows = torch.unique(y, dim=0)
        runs = torch.unique_consecutive(x)
        return values, inverse, counts, rows, runs, torch.repeat_interleave(n), torch.unique(y.flatten()).sum()


def drawn(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("merge", [0, 4, 1000])
def test_masks_as_indices(tmp_path, merge):
    args = lambda seed: (torch.randn(9, 4, generator=drawn(seed)), torch.randn(9, generator=drawn(seed)) > 0.4)  # noqa: E731
    model = graft.load(exported(Masks(), args(0), tmp_path / "m.pte"), options=graft.LoadOptions(merge_segments=merge))
    for seed in range(5):
        torch.testing.assert_close(model(*args(seed)), Masks()(*args(seed)))
    nothing = (torch.full((9, 4), -0.5), torch.zeros(9, dtype=torch.bool))
    torch.testing.assert_close(model(*nothing), Masks()(*nothing))


def test_numbers_read_from_tensors(tmp_path):
    model = graft.load(exported(Numbers(), (torch.randn(6), torch.tensor(2)), tmp_path / "n.pte"))
    x = torch.randn(6)
    for n in (0, 6, 3, 1, 3):
        torch.testing.assert_close(model(x, torch.tensor(n)), Numbers()(x, torch.tensor(n)))
    for n in (-1, 7):
        with pytest.raises(graft.InvalidArgument, match=f"gives {n}, but the program declares"):
            model(x, torch.tensor(n))
    torch.testing.assert_close(model(x, torch.tensor(2)), Numbers()(x, torch.tensor(2)))


def test_unique_and_repeat_interleave(tmp_path):
    def args(seed):
        g = drawn(seed)
        return (
            torch.randint(-3, 3, (4, 5), generator=g),
            torch.randint(0, 2, (8, 2), generator=g).float(),
            torch.randint(0, 4, (5,), generator=g),
        )

    model = graft.load(exported(Uniques(), args(0), tmp_path / "u.pte"))
    for seed in range(6):
        torch.testing.assert_close(model(*args(seed)), Uniques()(*args(seed)))


def test_dynamic_sizes_beside_those_that_depend_on_data(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            kept = x[x.sum(-1) > 0]
            return (kept @ kept.T).sum(-1), x.mean(0)

    path = exported(Model(), (torch.randn(5, 3),), tmp_path / "d.pte", dynamic_shapes=({0: Dim("n", min=2, max=40)},))
    model = graft.load(path)
    for n in (2, 11, 40, 11):
        x = torch.randn(n, 3, generator=drawn(n))
        torch.testing.assert_close(model(x), Model()(x))


def test_sizes_that_executorch_cannot_order(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            kept = x[x > 0]
            return kept[:, None] * kept

    with pytest.raises(graft.ExportError, match="in their first dimension alone"):
        exported(Model(), (torch.randn(5),), tmp_path / "o.pte")


def test_small_segments_merge(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            aside = (x * 2 + 1).tanh()  # needed only after the cut
            places = x.nonzero().squeeze(1)
            return aside[places]

    path = exported(Model(), (torch.randn(7),), tmp_path / "s.pte")
    x = torch.tensor([0.0, 1, 0, 2, 3, 0, 4])
    for merge, steps in ((4, ["host", "plan"]), (2, ["plan", "host", "plan"])):
        model = graft.load(path, options=graft.LoadOptions(merge_segments=merge))
        torch.testing.assert_close(model(x), Model()(x))
        assert [s["kind"] for s in model.describe()["methods"][0]["steps"]] == steps
        assert model.forward.info["segments"] == len(steps)


class Kept(torch.nn.Module):
    """Writes a buffer before the number that may be refused is known."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x, n):
        self.total.add_(x)
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 3)
        return self.total[:k] * 2


def test_states_change_at_the_end_or_not_at_all(tmp_path):
    eager, model = Kept(), graft.load(exported(Kept(), (torch.ones(3), torch.tensor(1)), tmp_path / "k.pte"))
    for n in (2, 0, 3):
        x = torch.randn(3)
        torch.testing.assert_close(model(x, torch.tensor(n)), eager(x, torch.tensor(n)))
        torch.testing.assert_close(model.states()["total"], eager.total)
    before = model.states()["total"]
    with pytest.raises(graft.InvalidArgument):
        model(torch.ones(3), torch.tensor(5))
    assert torch.equal(model.states()["total"], before)


# --- control flow ---


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(8, 8), torch.nn.Tanh())])

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: self.layers(x), lambda x: x.log(), (x,))
        return y + 1


def test_cond_runs_the_taken_branch_alone(tmp_path):
    path = exported(Branches(), (torch.randn(3, 8),), tmp_path / "c.pte")
    eager, model = Branches().eval(), graft.load(path)

    def launched(x):
        before = model.counters()["kernels_launched"]
        torch.testing.assert_close(model(x), eager(x), equal_nan=True)
        return model.counters()["kernels_launched"] - before

    full, short = launched(torch.ones(3, 8)), launched(-torch.ones(3, 8))
    (_, cond, _) = model.describe()["methods"][0]["steps"]
    launches = [part["plans"][0]["launches"] for part in cond["parts"]]
    assert cond["kind"] == "cond" and launches[1] == 1 and launches[0] > 6
    assert full - short == launches[0] - launches[1]
    # log of negative numbers is NaN; the branch that is not taken does not matter.
    mixed = torch.ones(3, 8)
    mixed[0, 0] = -0.5
    assert model(mixed).isfinite().all()
    method = Runtime.get().load_program(str(path)).load_method("forward")
    for x in (torch.ones(3, 8), -torch.ones(3, 8), mixed):
        torch.testing.assert_close(method.execute([x])[0], eager(x), equal_nan=True)


class Constants(torch.nn.Module):
    """Each branch has constants of its own, which torch.export calls alike."""

    def forward(self, x):
        def deeper(x):
            return x.relu() * 2 + torch.cond(x[0] > 1, lambda x: x * 3, lambda x: x - 0.5, (x,))

        return torch.cond(x.sum() > 0, deeper, lambda x: x - 1.5, (x,)) * 2


def test_branches_with_constants_of_the_same_name(tmp_path):
    path = exported(Constants(), (torch.randn(2),), tmp_path / "c.pte")
    model = graft.load(path)
    method = Runtime.get().load_program(str(path)).load_method("forward")
    for values in ([1.0, 2.0], [-1.0, -2.0], [3.0, -2.0]):
        x = torch.tensor(values)
        assert torch.equal(model(x), Constants()(x))
        assert torch.equal(method.execute((x,))[0], Constants()(x))


class Loop(torch.nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = torch.nn.Linear(4, 4)
        self.steps = steps

    def forward(self, x):
        start = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(
            lambda i, x: i < self.steps, lambda i, x: (i + 1, torch.tanh(self.step(x))), (start, x)
        )


class Remembering(torch.nn.Module):
    """Branches, one in the other, and a loop write buffers; what they wrote is read behind them and in later rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 3))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("rounds", torch.zeros(1))

    def forward(self, x, at, last):
        def store(x, at):
            self.rows.index_copy_(0, at, x[None])
            self.rows[:, 0].add_(1)  # through a view
            return torch.cond(x[0] > 2, add, lambda x: x * 0.5, (x,))

        def add(x):
            self.total.add_(x)
            return self.total * 2

        def body(i, x):
            self.rounds.add_(1)
            self.total.mul_(0.5).add_(x)
            return i + 1, x + self.total

        y = torch.cond(x.sum() > 0, store, lambda x, at: x - self.rows.sum(0), (x, at))
        _, z = torch.while_loop(lambda i, x: i.sum() < 3, body, (torch.zeros(1), y))
        return y, z + self.rows.sum(0), self.rows[last]


@pytest.fixture(scope="module")
def remembering(tmp_path_factory):
    given = (torch.ones(3), torch.tensor([1]), torch.tensor([0]))
    path = graft.export(Remembering(), given, path=tmp_path_factory.mktemp("remembering") / "m.pte")
    assert graft.compare(path, Remembering().eval(), given).equal
    return path


def test_branches_and_loops_write_buffers(remembering):
    eager, model = Remembering(), graft.load(remembering)
    for i, first in enumerate((1.0, -9.0, 3.0, 2.5, -9.0, 0.25, 4.0)):
        given = (torch.tensor([first, 0.5, i / 7]), torch.tensor([i % 3]), torch.tensor([2]))
        with torch.no_grad():
            expected = eager(*given)
        for j, (found, wanted) in enumerate(zip(model(*given), expected, strict=True)):
            assert torch.equal(found, wanted), f"result {j} of call {i}: {found} and {wanted}"
        for name, state in model.states().items():
            assert torch.equal(state, getattr(eager, name)), f"{name} after call {i}"
    before = model.states()
    with pytest.raises(graft.ExecutionError, match="index 9 is out of range"):
        model(torch.tensor([3.0, 1.0, 1.0]), torch.tensor([1]), torch.tensor([9]))
    assert all(torch.equal(state, before[name]) for name, state in model.states().items())


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("carried", "the body of torch.while_loop writes what the loop carries"),
        ("condition", "the condition of torch.while_loop writes a tensor"),
    ],
)
def test_writes_of_loops_that_make_no_sense(tmp_path, write, message):
    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            def more(i, x):
                if write == "condition":
                    self.seen.add_(1)
                return i.sum() < 3

            def body(i, x):
                if write == "carried":
                    x.add_(1)
                return i + 1, x * 2

            return torch.while_loop(more, body, (torch.zeros(1), x))[1]

    with torch.no_grad():
        try:
            program = torch.export.export(Loop(), (torch.ones(3),))
        except Exception:
            pytest.skip("torch.export refuses it")
    with pytest.raises(graft.ExportError, match=message):
        graft.export(program, path=tmp_path / "m.pte")


def test_while_loop_of_a_hundred_steps_plans_once(tmp_path):
    model = graft.load(exported(Loop(100), (torch.randn(2, 4),), tmp_path / "l.pte"))
    x = torch.randn(2, 4)
    torch.testing.assert_close(model(x), Loop(100).eval()(x))
    loop = next(s for s in model.describe()["methods"][0]["steps"] if s["kind"] == "loop")
    assert [len(part["plans"]) for part in loop["parts"]] == [1, 1]
    assert model.counters()["plan_misses"] == 3  # the start, the condition, the body
    assert model.counters()["runs"] == 1
    torch.testing.assert_close(model(x), Loop(100).eval()(x))
    assert model.counters()["plan_misses"] == 3


def test_a_loop_without_a_round(tmp_path):
    model = graft.load(exported(Loop(0), (torch.randn(2, 4),), tmp_path / "l.pte"))
    x = torch.randn(2, 4)
    found = model(x)
    torch.testing.assert_close(found, (torch.tensor(0), x))
    assert found[1].data_ptr() != x.data_ptr()


def test_a_loop_without_an_end_meets_the_deadline(tmp_path):
    model = graft.load(exported(Loop(2**62), (torch.randn(2, 4),), tmp_path / "e.pte"))
    for _ in range(2):  # the session stays usable
        with pytest.raises(graft.Cancelled, match="the deadline passed"):
            model(torch.randn(2, 4), timeout=0.1)
    token = graft.CancelToken()
    token.cancel()
    with pytest.raises(graft.Cancelled):
        model(torch.randn(2, 4), cancel=token)


class Nested(torch.nn.Module):
    """A branch inside a loop, and a size that depends on data behind both."""

    def forward(self, x):
        def body(i, x):
            return i + 1, torch.cond(i % 2 == 0, lambda x: x + 1, lambda x: x * 2, (x,))

        _, y = torch.while_loop(lambda i, x: i < 5, body, (torch.zeros((), dtype=torch.int64), x))
        return y[y > 10]


def test_branches_in_loops(tmp_path):
    model = graft.load(exported(Nested(), (torch.randn(6),), tmp_path / "b.pte"))
    for seed in range(3):
        x = torch.randn(6, generator=drawn(seed)) * 4
        torch.testing.assert_close(model(x), Nested()(x))


# --- buckets ---

LONGEST = 300


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 32)
        self.layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
        self.eval()

    def forward(self, ids, mask):
        hidden = self.words(ids)
        for_all = torch.where(mask[:, None, None, :] > 0, 0.0, -1e9)
        q = hidden.unflatten(-1, (2, 16)).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=for_all)
        hidden = self.layer.norm1(hidden + mixed.transpose(1, 2).flatten(2))
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        return hidden, (hidden * weight).sum(1) / weight.sum(1)


def text(n):
    return torch.randint(0, 50, (1, n), generator=drawn(n)), torch.ones(1, n, dtype=torch.int64)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    sizes = {1: Dim("seq", min=2, max=LONGEST)}
    path = tmp_path_factory.mktemp("encoder") / "encoder.pte"
    return exported(Encoder(), text(9), path, dynamic_shapes=(sizes, sizes))


def test_five_hundred_lengths_in_three_plans(encoder):
    exact, model = graft.load(encoder), graft.load(encoder, buckets={"ids.1": [64, 128, 256]})
    lengths = torch.randint(2, 257, (500,), generator=drawn(0)).tolist()
    for i, n in enumerate(lengths):
        found = model(*text(n))
        if i % 10 == 0 or n in (64, 128, 256):
            torch.testing.assert_close(found, exact(*text(n)), atol=1e-6, rtol=0)
    assert model.counters()["plan_misses"] <= 3
    model(*text(257))  # above the largest: a plan of its own
    torch.testing.assert_close(model(*text(270)), exact(*text(270)), atol=1e-6, rtol=0)
    assert model.counters()["plan_misses"] <= 5
    symbol = model.forward.info["inputs"][0]["dims"][1][2]
    by_symbol = graft.load(encoder, buckets={symbol: [300]})
    torch.testing.assert_close(by_symbol(*text(5)), exact(*text(5)), atol=1e-6, rtol=0)
    with pytest.raises(graft.InvalidArgument, match="size of dimension 1 must be 5"):
        by_symbol(text(5)[0], text(6)[1])


def test_padding_with_another_number(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, bias):
            return (x + bias).softmax(-1)

    sizes = {0: Dim("n", min=2, max=16)}
    x = torch.randn(5)
    path = exported(Model(), (x, torch.zeros(5)), tmp_path / "p.pte", dynamic_shapes=(sizes, sizes))
    model = graft.load(path, buckets={"x.0": [8]}, padding={"bias": float("-inf")})
    torch.testing.assert_close(model(x, torch.zeros(5)), x.softmax(-1))


@pytest.mark.parametrize(
    "buckets, message",
    [
        ({"ids.1": []}, "at least one size"),
        ({"ids.1": [64, 64]}, "must ascend, got 64 before 64"),
        ({"ids.1": [128, 64]}, "must ascend, got 128 before 64"),
        ({"ids.1": [0, 64]}, "must be positive, got 0"),
        ({"ids.1": [64, 301]}, "sizes must be in 0..300, got 301|sizes must be in 2..300, got 301"),
        ({"ids.0": [64]}, "fixes that size to 1"),
        ({"length": [64]}, "no input has a dimension of that name"),
        ({"ids.1": [64], "mask.1": [64]}, "has buckets already"),
    ],
)
def test_buckets_that_make_no_sense(encoder, buckets, message):
    with pytest.raises(graft.InvalidArgument, match=message):
        graft.load(encoder, buckets=buckets)


class Masked(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]


def test_buckets_where_padding_cannot_be_undone(tmp_path, detector):
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x, x])

    path = exported(Doubled(), (torch.randn(5),), tmp_path / "d.pte", dynamic_shapes=({0: Dim("n", min=2, max=16)},))
    with pytest.raises(graft.InvalidArgument, match="cannot be cut back"):
        graft.load(path, buckets={"x.0": [8]})
    class Same(torch.nn.Module):
        def forward(self, x):
            return x.relu()

    path = exported(Same(), (torch.randn(5),), tmp_path / "r.pte", dynamic_shapes=({0: Dim("n", min=2, max=16)},))
    with pytest.raises(graft.InvalidArgument, match="no input 'y' to pad"):
        graft.load(path, buckets={"x.0": [8]}, padding={"y": 1.0})
    class Crossing(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x, x]).nonzero().squeeze(1)

    path = exported(Crossing(), (torch.randn(5),), tmp_path / "c.pte", dynamic_shapes=({0: Dim("n", min=2, max=16)},))
    with pytest.raises(graft.InvalidArgument, match=r"node .*nonzero.*, which runs between segments, takes a value of size "
                       r"'2\*s\d+', which cannot be cut back"):
        graft.load(path, buckets={"x.0": [8]}, options=graft.LoadOptions(merge_segments=0))


# --- buckets of methods in segments ---

ROWS = ({0: Dim("n", min=2, max=64)},)


def test_sizes_that_depend_on_data_are_those_of_the_data(tmp_path):
    path = exported(Masked(), (torch.randn(5),), tmp_path / "m.pte", dynamic_shapes=ROWS)
    model = graft.load(path, buckets={"x.0": [8, 64]}, padding={"x": 1.0})  # what is padded would be chosen
    for n in (2, 5, 8, 9, 33, 64):
        x = torch.randn(n, generator=drawn(n))
        assert torch.equal(model(x), x[x > 0])


class Chosen(torch.nn.Module):
    """A masked encoder, whose best tokens go on: sizes of the input in both segments, sizes of the data in the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.score, self.out = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 1), torch.nn.Linear(32, 4)

    def forward(self, ids, mask):
        hidden = self.words(ids)
        bias = torch.where(mask > 0, 0.0, -1e9)
        mixed = hidden + ((hidden @ hidden.T + bias) * 0.2).softmax(-1) @ hidden
        chosen = ((self.score(mixed).squeeze(1) > 0) & (mask > 0)).nonzero().squeeze(1)
        # Every chosen token attends to all others again: the bias, computed before the cut, hides the padding.
        again = (mixed[chosen] @ mixed.T + bias).softmax(-1) @ mixed
        return self.out(again), mixed, ids.shape[0]


def chosen_text(n):
    return torch.randint(0, 50, (n,), generator=drawn(n)), torch.ones(n, dtype=torch.int64)


def test_lengths_share_plans_on_both_sides_of_a_cut(tmp_path):
    path = exported(Chosen(), chosen_text(5), tmp_path / "c.pte", dynamic_shapes=ROWS * 2)
    options = graft.LoadOptions(merge_segments=0)
    # Options of its own: programs with the same ones share plans, and this one's many would push the others out.
    exact = graft.load(path, options=graft.LoadOptions(merge_segments=0, max_plans=65))
    model = graft.load(path, options=options, buckets={"ids.0": [16, 64]})
    assert model.forward.info["segments"] > 1
    eager = Chosen().eval()
    first_plans = set()
    for n in range(2, 65):
        with torch.no_grad():
            expected = eager(*chosen_text(n))
        found = model(*chosen_text(n))
        for a, b, c in zip(found, expected, exact(*chosen_text(n)), strict=True):
            if not isinstance(b, torch.Tensor):
                assert a == b == c == n
                continue
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(c, b, atol=1e-5, rtol=1e-5)
    for step in model.describe()["methods"][0]["steps"]:
        for part in step["parts"]:
            for plan in part["plans"]:
                if "ids" in part["name"] or "part 1" in part["name"]:
                    first_plans.add(tuple(plan["sizes"]))
    assert len(first_plans) == 2, first_plans
    assert model.counters()["plan_misses"] < exact.counters()["plan_misses"]


def test_branches_and_loops_are_padded(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, scale):
            y = torch.cond(scale.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

            def body(i, y):
                return i + 1, y * 1.5

            y = torch.while_loop(lambda i, y: i < 3, body, (torch.zeros((), dtype=torch.int64), y))[1]
            return y, y.sum()

    path = exported(Model(), (torch.randn(5), torch.ones(1)), tmp_path / "b.pte", dynamic_shapes=(ROWS[0], None))
    model = graft.load(path, buckets={"x.0": [16]})
    for n in (2, 5, 15, 16, 17):
        for scale in (torch.ones(1), -torch.ones(1)):
            x = torch.randn(n, generator=drawn(n))
            found, expected = model(x, scale), Model()(x, scale)
            torch.testing.assert_close(found[0], expected[0])
            if n >= 16 or scale > 0:  # x - 1 of the padding is no 0: sums over it are up to the model
                torch.testing.assert_close(found[1], expected[1])


class Twice(torch.nn.Module):
    """Values of 2 n + 1 rows cross cuts; branches take nothing else of the dimension."""

    def forward(self, x, scale):
        rows = torch.cat([x, torch.ones(1, 3), x * 2])
        chosen = (x.sum(1) > 0).nonzero().squeeze(1)
        picked = rows[chosen] + rows[chosen + x.shape[0] + 1]
        total = torch.cond(scale.sum() > 0, lambda r: (r * 2).sum(0), lambda r: r.cumsum(0)[-1].clone(), (rows,))
        back = torch.cond(scale.sum() > 1, lambda r: r[: r.shape[0] // 2] * 3, lambda r: r[r.shape[0] // 2 + 1 :] - 1, (rows,))
        return picked, total, back[chosen]


def test_values_of_sizes_made_of_the_dimension_cross_cuts(tmp_path):
    shapes = ({0: Dim("n", min=2, max=64)}, None)
    path = exported(Twice(), (torch.randn(5, 3), torch.ones(1)), tmp_path / "t.pte", dynamic_shapes=shapes)
    model = graft.load(path, buckets={"x.0": [16, 40]}, options=graft.LoadOptions(merge_segments=0))
    for n in (2, 5, 16, 17, 39, 40, 41):
        for scale in (-1.0, 1.0, 2.0):
            given = (torch.randn(n, 3, generator=drawn(n)), torch.tensor([scale]))
            for i, (found, expected) in enumerate(zip(model(*given), Twice()(*given), strict=True)):
                torch.testing.assert_close(found, expected, msg=lambda text, i=i, n=n: f"result {i} of {n} rows: {text}")


def test_a_size_that_is_returned_is_not_the_padded_one(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 2, x.shape[0]

    path = exported(Model(), (torch.randn(5),), tmp_path / "s.pte", dynamic_shapes=ROWS)
    found, size = graft.load(path, buckets={"x.0": [16]})(torch.ones(5))
    assert torch.equal(found, torch.full((5,), 2.0)) and size == 5
