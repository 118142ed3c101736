"""Methods with a cache of keys and values that run in segments: their caches, plans in packages, and failures in the middle."""

from pathlib import Path

import pytest
import torch
from torch.export import Dim

import graft
import graft.llm.ops  # noqa: F401  (torch.ops.graft.attention)

WORDS, SIZE, HEADS = 31, 32, 2


class Decoder(torch.nn.Module):
    """Two layers of attention; between them, some tokens go through a network of their own, which takes as many rows as
    there are such tokens (`cut`), or is computed for all of them."""

    def __init__(self, *, cut: bool, window: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.window = cut, window
        self.words = torch.nn.Embedding(WORDS, SIZE)
        self.inputs = torch.nn.ModuleList(torch.nn.Linear(SIZE, 3 * SIZE) for _ in range(2))
        self.outputs = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE) for _ in range(2))
        self.extra = torch.nn.Sequential(torch.nn.Linear(SIZE, 48), torch.nn.GELU(), torch.nn.Linear(48, SIZE))
        self.head = torch.nn.Linear(SIZE, WORDS)
        self.names = torch.nn.Parameter(torch.randn(7, WORDS))

    def attend(self, h, position, layer):
        q, k, v = (x.unflatten(-1, (HEADS, SIZE // HEADS)).transpose(1, 2) for x in self.inputs[layer](h).chunk(3, -1))
        window = self.window if layer == 1 else 0
        mixed = torch.ops.graft.attention(q, k, v, position, layer=layer, scale=0.25, window=window)
        return h + self.outputs[layer](mixed.flatten(2))

    def route(self, h):
        flat = h.reshape(-1, SIZE)
        chosen = flat.sum(-1) > 0
        if not self.cut:
            return torch.where(chosen[:, None], flat + self.extra(flat), flat).reshape(h.shape)
        rows = chosen.nonzero().squeeze(1)
        return flat.index_put((rows,), flat[rows] + self.extra(flat[rows])).reshape(h.shape)

    def forward(self, ids, position, name):
        h = self.attend(self.words(ids), position, 0)
        h = self.attend(self.route(h), position, 1)
        return self.head(h) + self.names[name]


def call(ids, start, name=0):
    tokens = ids.shape[1]
    return ids, torch.arange(start, start + tokens).expand(ids.shape[0], tokens).contiguous(), torch.tensor([name])


def words(tokens, batch=1, seed=0):
    return torch.randint(0, WORDS, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def export(model: Decoder, path: Path, **options) -> Path:
    batch, tokens = Dim("batch", min=1, max=8), Dim("tokens", min=1, max=256)
    shapes = ({0: batch, 1: tokens}, {0: batch, 1: tokens}, None)
    return graft.export(model.eval(), call(words(5, 2), 0), dynamic_shapes=shapes, path=path, **options)


@pytest.fixture(scope="module", params=[0, 4], ids=["all tokens", "window"])
def packages(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    models = {cut: Decoder(cut=cut, window=request.param).eval() for cut in (True, False)}
    return models[True], {cut: export(model, folder / f"{cut}.pte") for cut, model in models.items()}


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def decoded(model, ids, chunks):
    """Logits of all tokens, computed in calls of these sizes."""
    out, at = [], 0
    for n in chunks:
        out.append(model(*call(ids[:, at : at + n], at)))
        at += n
    return torch.cat(out, 1)


@pytest.mark.parametrize("chunks", [[1] * 12, [7, 1, 1, 3], [12], [1, 11]])
def test_step_by_step_is_eager_at_once(packages, chunks):
    eager, paths = packages
    ids = words(12)
    with torch.no_grad():
        expected = eager(*call(ids, 0))
    cut, whole = (graft.load(paths[kind], kv_length=64) for kind in (True, False))
    assert cut.forward.info["segments"] > 1 and whole.forward.info["segments"] == 1
    same(decoded(cut, ids, chunks), expected)
    same(decoded(whole, ids, chunks), expected)
    assert cut.kv_lengths() == whole.kv_lengths() == [12]


def test_repeated_sizes_plan_nothing_anew(packages):
    _, paths = packages
    model = graft.load(paths[True], kv_length=64)
    for i in range(40):
        model(*call(torch.full((1, 1), 3), i))
    counters = model.counters()
    # One plan for each segment and count of chosen tokens (0 or 1).
    assert counters["plan_misses"] <= 4 and counters["graphs_built"] <= 4, counters


def test_truncation_rows_fork_and_reset(packages):
    eager, paths = packages
    model = graft.load(paths[True], kv_length=64, kv_rows=3)
    both = words(9, 2, seed=3)
    with torch.no_grad():
        expected = eager(*call(both, 0))
    rows = [2, 0]
    same(model(*call(both[:, :6], 0), kv_rows=rows), expected[:, :6])
    assert model.kv_lengths() == [6, 0, 6]
    fork = model.fork()
    same(model(*call(both[:, 6:], 6), kv_rows=rows), expected[:, 6:])
    same(fork(*call(both[:, 6:], 6), kv_rows=rows), expected[:, 6:])
    model.kv_truncate(8)
    same(model(*call(both[:, 8:], 8), kv_rows=rows), expected[:, 8:])
    model.reset()
    assert model.kv_lengths() == [0, 0, 0]
    same(model(*call(both, 0)), expected)


def test_a_failure_behind_the_cut_leaves_the_cache_as_it_was(packages):
    eager, paths = packages
    model = graft.load(paths[True], kv_length=256)
    ids = words(200, seed=5)
    with torch.no_grad():
        expected = eager(*call(ids, 0))
    same(model(*call(ids[:, :60], 0)), expected[:, :60])
    with pytest.raises(graft.ExecutionError, match="index 9 is out of range"):
        model(*call(words(100, seed=6), 60, name=9))
    assert model.kv_lengths() == [60]
    same(model(*call(ids[:, 60:], 60)), expected[:, 60:])
    with pytest.raises(graft.ExecutionError, match="leaves a gap"):
        model(*call(ids[:, :1], 230))
    model.kv_truncate(150)
    same(model(*call(ids[:, 150:], 150)), expected[:, 150:])


def test_a_method_that_is_cut_and_one_that_is_not_share_a_cache(tmp_path):
    batch, tokens = Dim("batch", min=1, max=8), Dim("tokens", min=1, max=256)
    shapes = ({0: batch, 1: tokens}, {0: batch, 1: tokens}, None)
    models = {name: Decoder(cut=name == "routed", window=4).eval() for name in ("routed", "dense")}
    methods = {
        name: {"model": model, "args": call(words(5, 2), 0), "dynamic_shapes": shapes} for name, model in models.items()
    }
    model = graft.load(graft.export(methods=methods, path=tmp_path / "both.pte"), kv_length=64)
    ids = words(20)
    with torch.no_grad():
        expected = models["dense"](*call(ids, 0))
    same(model.dense(*call(ids[:, :8], 0)), expected[:, :8])
    same(model.routed(*call(ids[:, 8:15], 8)), expected[:, 8:15])
    same(model.dense(*call(ids[:, 15:], 15)), expected[:, 15:])


def test_caches_are_saved_and_restored(packages, tmp_path):
    eager, paths = packages
    ids = words(11, seed=8)
    with torch.no_grad():
        expected = eager(*call(ids, 0))
    first = graft.load(paths[True], kv_length=64)
    first(*call(ids[:, :7], 0))
    first.save(tmp_path / "state")
    second = graft.load(paths[True], kv_length=64)
    second.restore(tmp_path / "state")
    same(second(*call(ids[:, 7:], 7)), expected[:, 7:])


def test_attention_inside_of_a_branch_is_refused(tmp_path):
    class Branch(Decoder):
        def forward(self, ids, position, name):
            h = self.words(ids)
            h = torch.cond(name.sum() > 0, lambda h: self.attend(h, position, 0), lambda h: h * 2, (h,))
            return self.head(h)

    with pytest.raises((graft.Unsupported, graft.ExportError), match="attention|cond"):
        graft.load(export(Branch(cut=False), tmp_path / "branch.pte"))


# --- plans in the package ---


def test_plans_of_segments_are_stored(tmp_path):
    ids = words(12)
    eager = Decoder(cut=True).eval()
    with torch.no_grad():
        expected = eager(*call(ids, 0))
    path = export(eager, tmp_path / "planned.pte", plans=[call(ids[:, :7], 0), call(ids[:, :1], 0)])
    model = graft.load(path, kv_length=64)
    same(model(*call(ids[:, :7], 0)), expected[:, :7])
    stats = model.stats()
    assert stats["plans_made"] == 0 and stats["plans_stale"] == 0 and stats["plans_loaded"] >= 2, stats
    for i in range(7, 12):
        same(model(*call(ids[:, i : i + 1], i)), expected[:, i : i + 1])
    anew = graft.load(path, options=graft.LoadOptions(stored_plans=False))
    same(anew(*call(ids[:, :7], 0)), expected[:, :7])
    assert anew.stats()["plans_loaded"] == 0 and anew.stats()["plans_made"] >= 2


class Branches(torch.nn.Module):
    """One sub-graph that two nodes call, and sizes that depend on data behind them."""

    def forward(self, x):
        def double(v):
            return v.cumsum(0) * 2

        y = torch.cond(x.sum() > 0, double, lambda v: v - 1, (x,))
        y = torch.cond(y.sum() > 50, double, lambda v: v - 1, (y,))
        return y[y > 0].cumsum(0)


def test_plans_of_branches_are_stored_apart(tmp_path):
    x = torch.rand(9, 3)
    path = graft.export(Branches(), (x,), path=tmp_path / "branches.pte", plans=[(x,), (x * 100,)])
    model = graft.load(path)
    for given in (x, x * 100):
        same(model(given), Branches()(given))
    stats = model.stats()
    assert stats["plans_made"] == 0 and stats["plans_stale"] == 0 and stats["plans_loaded"] >= 4, stats
    same(model(-x), Branches()(-x))
    assert model.stats()["plans_made"] > 0, "a branch that no stored call took"
    with pytest.raises(graft.InvalidArgument, match=r"segments, each with a plan of its own: see stored_plans\(\)"):
        model.forward.stored_plan(x)
    assert len(model.forward.stored_plans(x)) >= 3
