"""States of a loaded model: buffers that the module updates with plain ATen operators."""

import pytest
import torch

import graft


class Memory(torch.nn.Module):
    """A buffer for each way of writing one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("copied", torch.zeros(3))
        self.register_buffer("added", torch.zeros(3))
        self.register_buffer("rows", torch.zeros(6, 3))
        self.register_buffer("put", torch.zeros(6, 3))
        self.register_buffer("sliced", torch.zeros(6, 3))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        before = self.rows.sum()
        self.rows.index_copy_(0, at, x)
        self.put.index_put_((at,), x, accumulate=True)
        self.sliced[:1] = x[:1]
        self.copied.copy_(x[0])
        self.added.add_(x.sum(0))
        return before + self.rows.sum() * 2 + self.put.sum() + self.sliced.sum() + self.copied.sum() + self.added.sum()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "memory.pte"
    n = torch.export.Dim("n", min=1, max=6)
    graft.export(Memory(), (torch.ones(2, 3), torch.tensor([0, 1])), dynamic_shapes=({0: n}, {0: n}), path=path)
    return path


def steps(seed: int):
    generator = torch.Generator().manual_seed(seed)
    for n in (2, 1, 4, 6, 1):
        yield torch.randn(n, 3, generator=generator), torch.randperm(6, generator=generator)[:n]


def test_every_way_of_writing_a_buffer_as_eager_does(package):
    eager, model = Memory(), graft.load(package)
    for x, at in steps(1):
        torch.testing.assert_close(model(x, at), eager(x, at))
        for name, value in model.states().items():
            torch.testing.assert_close(value, dict(eager.named_buffers())[name], msg=name)


def test_rows_are_written_in_place(package):
    model = graft.load(package)
    x, at = torch.ones(2, 3), torch.tensor([4, 1])
    model(x, at)
    row = 3 * 4
    # Two rows each of `rows` and `put`, one of `sliced`, and the two small buffers.
    assert model.counters()["state_bytes_written"] == (2 + 2 + 1 + 1 + 1) * row


def test_reset_fork_save_restore_close(package, tmp_path):
    model = graft.load(package)
    for x, at in steps(2):
        model(x, at)
    copy = model.fork()
    model.save(tmp_path / "states")
    kept = model.states()
    model.reset()
    assert all(not bool(value.any()) for value in model.states().values())
    later = graft.load(package)
    later.restore(tmp_path / "states")
    eager_next = next(iter(steps(3)))
    torch.testing.assert_close(later(*eager_next), copy(*eager_next), rtol=0, atol=0)
    assert any(bool((value != kept[name]).any()) for name, value in later.states().items())
    (tmp_path / "states").write_bytes(b"no states")
    with pytest.raises(graft.InvalidProgram, match="not a file of states"):
        later.restore(tmp_path / "states")
    later.close()
    with pytest.raises(graft.InvalidArgument, match="closed"):
        later(*eager_next)


def test_an_index_out_of_range_leaves_every_state_as_it_was(package):
    model = graft.load(package)
    model(torch.ones(2, 3), torch.tensor([0, 1]))
    before = model.states()
    with pytest.raises(graft.ExecutionError, match="out of range"):
        model(torch.ones(2, 3), torch.tensor([2, 6]))
    for name, value in model.states().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, msg=name)
