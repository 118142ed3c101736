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

    def __init__(self, *, cut: bool, window: int = 0, windowed_layer: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.window, self.windowed_layer = cut, window, windowed_layer
        self.words = torch.nn.Embedding(WORDS, SIZE)
        self.inputs = torch.nn.ModuleList(torch.nn.Linear(SIZE, 3 * SIZE) for _ in range(2))
        self.outputs = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE) for _ in range(2))
        self.extra = torch.nn.Sequential(torch.nn.Linear(SIZE, 48), torch.nn.GELU(), torch.nn.Linear(48, SIZE))
        self.head = torch.nn.Linear(SIZE, WORDS)
        self.names = torch.nn.Parameter(torch.randn(7, WORDS))

    def attend(self, h, position, layer):
        q, k, v = (x.unflatten(-1, (HEADS, SIZE // HEADS)).transpose(1, 2) for x in self.inputs[layer](h).chunk(3, -1))
        window = self.window if layer == self.windowed_layer else 0
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


# --- layers with a window ---


def with_rings(path):
    return graft.load(path, kv_length=200, options=graft.LoadOptions(kv_window_slack=6))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windowed")
    models = {cut: Decoder(cut=cut, window=4).eval() for cut in (True, False)}
    return models[True], {cut: export(model, folder / f"{cut}.pte") for cut, model in models.items()}


@pytest.mark.parametrize("chunks", [[1] * 40, [25, 1, 6, 8], [7] * 5 + [5], [40]])
def test_a_window_is_all_that_is_held(windowed, chunks):
    eager, paths = windowed
    cut, whole = (with_rings(paths[kind]) for kind in (True, False))
    ids = words(40, seed=2)
    with torch.no_grad():
        expected = eager(*call(ids, 0))
    same(decoded(cut, ids, chunks), expected)
    same(decoded(whole, ids, chunks), expected)
    sizes = {name: state.shape for name, state in cut.states().items()}
    assert sizes == {name: state.shape for name, state in whole.states().items()}
    assert sizes["kv.0.key"][2] == 200 and sizes["kv.1.key"][2] == sizes["kv.1.value"][2] == 4 - 1 + 6
    assert cut.counters()["state_bytes"] == whole.counters()["state_bytes"]
    assert cut.kv_shortest(0) == whole.kv_shortest(0) > 1
    with pytest.raises(graft.InvalidArgument, match="layers with a window hold enough"):
        cut.kv_truncate(10)


@pytest.fixture(scope="module", params=[0, 1], ids=["ring before the cut", "ring behind it"])
def ring(request, tmp_path_factory):
    model = Decoder(cut=True, window=4, windowed_layer=request.param).eval()
    return model, export(model, tmp_path_factory.mktemp("ring") / "cut.pte")


@pytest.mark.parametrize("tokens", [1, 6, 30])
def test_a_failure_behind_the_cut_leaves_the_ring_as_it_was(ring, tokens):
    """Within the slack nothing that counts is overwritten; more tokens enter the ring before the part that fails."""
    eager, path = ring
    model = with_rings(path)
    ids = words(90, seed=4)
    with torch.no_grad():
        expected = eager(*call(ids, 0))
    same(model(*call(ids[:, :50], 0)), expected[:, :50])
    held = model.kv_shortest(0)
    for _ in range(3):
        with pytest.raises(graft.ExecutionError, match="index 9 is out of range"):
            model(*call(words(tokens, seed=9), 50, name=9))
        assert model.kv_lengths() == [50]
    if tokens == 30:
        assert model.kv_shortest(0) == held
        model.kv_truncate(held)  # the window before the last token is there too
        same(model(*call(ids[:, held:55], held)), expected[:, held:55])
    else:
        same(model(*call(ids[:, 50:55], 50)), expected[:, 50:55])
    same(model(*call(ids[:, 55:], 55)), expected[:, 55:])


def test_a_ring_of_some_rows_is_as_it_was(ring):
    eager, path = ring
    options = graft.LoadOptions(kv_window_slack=6)
    model = graft.load(path, kv_length=200, kv_rows=3, options=options)
    both = words(60, 2, seed=7)
    with torch.no_grad():
        expected = eager(*call(both, 0))
    same(model(*call(both[:, :30], 0), kv_rows=[2, 0]), expected[:, :30])
    with pytest.raises(graft.ExecutionError, match="index 9 is out of range"):
        model(*call(words(20, 2), 30, name=9), kv_rows=[2, 0])
    with pytest.raises(graft.InvalidArgument, match="kv_rows: the cache has 3 rows, got row 7"):
        model(*call(words(20, 2), 30), kv_rows=[2, 7])
    with pytest.raises(graft.ExecutionError, match="a batch of 2 got 1 kv_rows"):
        model(*call(words(20, 2), 30), kv_rows=[2])
    same(model(*call(both[:, 30:], 30), kv_rows=[2, 0]), expected[:, 30:])


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


# --- attention in branches ---


class Branching(Decoder):
    """Layer 1 is in both branches, with a branch inside of the one; layer 2 in one of them alone."""

    def __init__(self, **options) -> None:
        super().__init__(cut=False, **options)
        self.inputs.append(torch.nn.Linear(SIZE, 3 * SIZE))
        self.outputs.append(torch.nn.Linear(SIZE, SIZE))

    def forward(self, ids, position, name):
        def deep(h, position, name):
            h = self.attend(h, position, 1)
            return torch.cond(
                name.sum() > 1,
                lambda h, position: self.attend(h, position, 2),
                lambda h, position: h * 2,
                (h, position),
            )

        h = self.attend(self.words(ids), position, 0)
        h = torch.cond(
            name.sum() > 0, deep, lambda h, position, name: self.attend(h * 0.5, position, 1), (h, position, name)
        )
        return self.head(h) + self.names[name]


@pytest.fixture(scope="module", params=[0, 4], ids=["all tokens", "window"])
def branching(request, tmp_path_factory):
    model = Branching(window=request.param).eval()
    return model, export(model, tmp_path_factory.mktemp("branching") / "branching.pte")


@pytest.mark.parametrize("name", [0, 1, 2])
@pytest.mark.parametrize("chunks", [[1] * 20, [9, 1, 10], [20]])
def test_attention_in_branches_step_by_step(branching, name, chunks):
    eager, path = branching
    ids = words(20, seed=name)
    with torch.no_grad():
        expected = eager(*call(ids, 0, name))
    model, at = with_rings(path), 0
    for n in chunks:
        same(model(*call(ids[:, at : at + n], at, name)), expected[:, at : at + n])
        at += n
    assert model.kv_lengths() == [20]


def test_one_layer_serves_both_branches_in_turns(branching):
    """What either branch wrote, the other one sees."""
    eager, path = branching
    model, other = with_rings(path), with_rings(path)
    ids = words(11, seed=5)
    model(*call(ids[:, :5], 0, 0))
    found = model(*call(ids[:, 5:], 5, 1))
    other(*call(ids[:, :5], 0, 1))
    assert not torch.allclose(found, other(*call(ids[:, 5:], 5, 1)), atol=1e-3)
    model.kv_truncate(5)
    assert torch.equal(found, model(*call(ids[:, 5:], 5, 1))), "the tokens of the first call are still there"


def test_a_layer_that_was_skipped_has_no_tokens(branching):
    eager, path = branching
    model = with_rings(path)
    ids = words(24, seed=6)
    with torch.no_grad():
        expected = eager(*call(ids, 0, 2))
    same(model(*call(ids[:, :6], 0, 2)), expected[:, :6])
    model(*call(ids[:, 6:8], 6, 1))  # without layer 2
    with pytest.raises(graft.ExecutionError, match=r"submodule_0.submodule_0\..*: row 0: layer 2 has no keys and "
                       "values of the tokens from 6 to 7: the branch of torch.cond that it is in was not taken for them"):
        model(*call(ids[:, 8:10], 8, 2))
    assert model.kv_lengths() == [8]
    fork = model.fork()
    for again in (model, fork):
        again.kv_truncate(6)
        same(again(*call(ids[:, 6:], 6, 2)), expected[:, 6:])


def test_a_run_that_fails_adds_no_tokens_to_a_branch(branching, tmp_path):
    eager, path = branching
    model = graft.load(path, kv_length=200, kv_rows=2, options=graft.LoadOptions(kv_window_slack=6))
    ids = words(30, seed=8)
    with torch.no_grad():
        expected = eager(*call(ids, 0, 2))
    same(model(*call(ids[:, :10], 0, 2), kv_rows=[1]), expected[:, :10])
    failing = (*call(words(12, seed=1), 10, 9),)  # takes all branches, then there is no name 9
    with pytest.raises(graft.ExecutionError, match="index 9 is out of range"):
        model(*failing, kv_rows=[1])
    model(*call(ids[:, 10:12], 10, 1), kv_rows=[1])
    with pytest.raises(graft.ExecutionError, match="layer 2 has no keys and values of the tokens from 10 to 11"):
        model(*call(ids[:, 12:], 12, 2), kv_rows=[1])
    model.kv_truncate(10)
    model.save(tmp_path / "states")
    model.kv_select([1])  # now row 0
    same(model(*call(ids[:, 10:], 10, 2)), expected[:, 10:])
    other = graft.load(path, kv_length=200, kv_rows=2, options=graft.LoadOptions(kv_window_slack=6))
    other.restore(tmp_path / "states")
    other.kv_resize(3, 180)
    same(other(*call(ids[:, 10:], 10, 2), kv_rows=[1]), expected[:, 10:])


class Looping(Decoder):
    def forward(self, ids, position, name):
        def body(i, h, position):
            return i + 1, self.attend(h, position, 0), position.clone()

        h = self.words(ids)
        _, h, _ = torch.while_loop(lambda i, h, p: i.sum() < 3, body, (torch.zeros(1), h, position))
        return self.head(h)


class OwnPositions(Decoder):
    def forward(self, ids, position, name):
        h = self.words(ids)
        h = torch.cond(
            name.sum() > 0, lambda h, p: self.attend(h, p + 0, 0), lambda h, p: self.attend(h, p, 0), (h, position)
        )
        return self.head(h)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Looping, "graph 'forward.submodule_1': node .*attention.*: attention over the cache inside of "
         "torch.while_loop: each round would replace the keys and values of the round before"),
        (OwnPositions, "graph 'forward.submodule_0': node .*: its cache_position is computed inside of the branch"),
    ],
)  # fmt: skip
def test_what_attention_in_control_flow_cannot_do(tmp_path, model, message):
    with pytest.raises(graft.Unsupported, match=message):
        graft.load(export(model(cut=False), tmp_path / "model.pte"))


# --- buckets ---


class Kept(Decoder):
    """Logits of some tokens, as packages of language models have them."""

    def forward(self, ids, position, kept):
        h = self.attend(self.words(ids), position, 0)
        h = self.attend(self.route(h), position, 1)
        return self.head(h[:, kept]), h


def kept_call(ids, start, kept):
    return (*call(ids, start)[:2], torch.tensor(kept))


@pytest.mark.parametrize("window", [0, 4])
def test_lengths_share_plans_over_a_cache(tmp_path, window):
    eager = Kept(cut=False, window=window).eval()
    batch, tokens = Dim("batch", min=1, max=8), Dim("tokens", min=1, max=256)
    shapes = ({0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: Dim("kept", min=1, max=256)})
    path = graft.export(eager, kept_call(words(5, 2), 0, [3, 4]), dynamic_shapes=shapes, path=tmp_path / "m.pte")
    options = graft.LoadOptions(kv_window_slack=6)
    model = graft.load(path, kv_length=200, kv_rows=3, buckets={"ids.1": [4, 16]}, options=options)
    ids = words(60, 2, seed=3)
    with torch.no_grad():
        _, hidden = eager(*kept_call(ids, 0, [0]))
        logits = eager.head(hidden)
    at = 0
    for n in (3, 1, 9, 16, 4, 2, 7, 18):
        kept = [0, -1, n // 2]
        found, h = model(*kept_call(ids[:, at : at + n], at, kept), kv_rows=[2, 0])
        same(h, hidden[:, at : at + n])
        same(found, logits[:, at : at + n][:, kept])
        at += n
        assert model.kv_lengths() == [at, 0, at]
    assert model.counters()["plan_misses"] == 3, "4 and 16 tokens, and 18"


@pytest.mark.parametrize("name", [0, 1, 2])
def test_branches_that_attend_are_padded(branching, name):
    eager, path = branching
    ids = words(40, 2, seed=name)
    with torch.no_grad():
        expected = eager(*call(ids, 0, name))
    options = graft.LoadOptions(kv_window_slack=6)
    model, at = graft.load(path, kv_length=200, kv_rows=2, buckets={"ids.1": [4, 16]}, options=options), 0
    for n in (3, 1, 9, 16, 2, 7):
        same(model(*call(ids[:, at : at + n], at, name)), expected[:, at : at + n])
        at += n


def test_buckets_that_a_cache_does_not_take(tmp_path, packages):
    _, paths = packages
    with pytest.raises(graft.InvalidArgument, match="nonzero.*, which runs between segments, takes a"):
        graft.load(paths[True], buckets={"ids.1": [4]})
    with pytest.raises(graft.InvalidArgument, match="method 'forward'.*no other dimension of a method with a cache can be padded"):
        graft.load(paths[False], buckets={"ids.0": [4]})

    class Counting(Decoder):
        def forward(self, ids, start, name):
            position = (start + torch.arange(ids.shape[1])).expand(ids.shape)
            return self.head(self.attend(self.words(ids), position, 0))

    shapes = ({1: Dim("tokens", min=1, max=256)}, None, None)
    args = (words(5), torch.tensor([0]), torch.tensor([0]))
    path = graft.export(Counting(cut=False).eval(), args, dynamic_shapes=shapes, path=tmp_path / "m.pte")
    with pytest.raises(graft.InvalidArgument, match="positions in the cache are computed in the method; it must take them "
                       "as an input, where those of padding are -1 .*TextGenerator"):
        graft.load(path, buckets={"ids.1": [8]})


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
