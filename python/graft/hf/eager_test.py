"""Calls that go through a model together have the outputs of calls alone, and leave the model as it was."""

import threading

import pytest
import torch

from graft.errors import ExportError
from graft.hf.eager import run_eagerly


class Gated(torch.nn.Module):
    """With parameters of its own around linear layers, a layer that is called twice and one that some calls skip."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.table = torch.nn.Embedding(50, 32)
        self.scale = torch.nn.Parameter(torch.randn(48))
        self.first = torch.nn.Linear(32, 48)
        self.second = torch.nn.Linear(48, 48, bias=False)
        self.third = torch.nn.Linear(48, 20)
        self.to(dtype).requires_grad_(False)

    def forward(self, input_ids, skip=False, fail_after=None):
        hidden = self.first(self.table(input_ids)) * self.scale
        assert hidden.dtype == torch.float32 and self.scale.dtype == torch.float32
        for time in range(2):
            if time == fail_after:
                raise ValueError("not in the mood")
            hidden = hidden if skip else torch.tanh(self.second(hidden))
        return self.third(hidden)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Gated()


def ids(*sizes):
    return torch.randint(0, 50, sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def runner(model, together):
    return run_eagerly(model, type(model), lambda _, tensor: tensor, together=together)


def running():
    return [thread for thread in threading.enumerate() if thread.name.startswith("graft eager")]


@pytest.mark.parametrize("together", [True, False])
def test_each_call_is_that_of_the_model_in_f32(model, together):
    calls = [dict(input_ids=ids(1, 6)), dict(input_ids=ids(2, 6), skip=True), dict(input_ids=ids(3, 1))]
    found = runner(model, together)(calls)
    whole = Gated(torch.float32)
    whole.load_state_dict(model.state_dict())
    for call, one in zip(calls, found, strict=True):
        torch.testing.assert_close(one, whole(**call), atol=1e-5, rtol=1e-5)


def test_each_weight_is_asked_for_once(model):
    asked = []

    def values(name, tensor):
        asked.append(name)
        return tensor

    run_eagerly(model, Gated, values, together=True)([dict(input_ids=ids(1, 6)), dict(input_ids=ids(2, 6))])
    assert [asked.count(f"{name}.weight") for name in ("first", "second", "third")] == [1, 2, 1]


def test_weights_that_the_model_does_not_hold(model):
    weights = model.state_dict()
    expected = runner(model, together=False)([dict(input_ids=ids(2, 6))])
    empty = Gated().to("meta")
    found = run_eagerly(empty, Gated, lambda name, _: weights[name], together=True)([dict(input_ids=ids(2, 6))])
    assert torch.equal(found[0], expected[0])
    assert all(tensor.is_meta for tensor in empty.state_dict().values())


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("fail_after", [0, 1])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_what_the_model_raises_is_named_and_nothing_stays(model, together, fail_after, failing):
    before = {name: (tensor, tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    calls = [dict(input_ids=ids(1, 6)) for _ in range(3)]
    calls[failing]["fail_after"] = fail_after
    with pytest.raises(ExportError, match=r"Gated: eager PyTorch cannot run it on \[1, 6\] tokens: ValueError: not in"):
        runner(model, together)(calls)
    after = model.state_dict(keep_vars=True)
    assert all(after[name] is tensor and torch.equal(tensor, copy) for name, (tensor, copy) in before.items())
    assert all("forward" not in vars(m) and not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())
    assert not running()


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_model_that_goes_on_after_an_exception_ends(model, error):
    class Stubborn(Gated):
        def forward(self, input_ids):
            try:
                return super().forward(input_ids)
            except BaseException:
                return self.third(self.first(self.table(input_ids)))

    def values(name, tensor):
        if name == "second.weight":
            raise error(name)
        return tensor

    model.__class__ = Stubborn
    run = run_eagerly(model, Stubborn, values, together=True)
    calls = [dict(input_ids=ids(1, 6))] * 2
    if error is KeyError:
        assert len(run(calls)) == 2
    else:
        with pytest.raises(KeyboardInterrupt):
            run(calls)
    assert not running() and "forward" not in vars(model.first)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("inference", [True, False])
def test_states_of_the_caller_hold_in_a_call(model, together, inference):
    seen = []

    class Watched(Gated):
        def forward(self, input_ids):
            seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
            return super().forward(input_ids)

    model.__class__ = Watched
    with torch.inference_mode(inference):
        runner(model, together)([dict(input_ids=ids(1, 6)), dict(input_ids=ids(2, 6))])
    assert seen == [(inference, False)] * 2
