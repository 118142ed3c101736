"""What a model keeps in attributes of its modules: found, handed in and out, and put back."""

import pytest
import torch

from graft.hf import module_state


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.state, self.name = 0, None, "counts"
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        self.seen += 1
        self.state = x if self.state is None else self.state + x
        return self.state * self.weight


def model():
    return torch.nn.Sequential(Counts(), torch.nn.ReLU())


def test_what_a_call_changes():
    net = model()
    before = module_state.Attributes(net)
    assert before.changed(net) == {}
    net(torch.ones(2))
    assert before.changed(net) == {"0.seen": 0, "0.state": None}  # as they were
    after = module_state.Attributes(net)
    net(torch.ones(2))
    assert after.changed(net).keys() == {"0.seen", "0.state"}
    net[0].weight = torch.nn.Parameter(torch.zeros(2))  # parameters are no state
    net[0].hook = print  # nor is what no program can hold
    assert after.changed(net).keys() == {"0.seen", "0.state"}


def test_values_of_the_same_type():
    assert module_state.same(1, 1) and module_state.same(None, None)
    assert not module_state.same(1, True) and not module_state.same(1, 1.0)
    assert not module_state.same(torch.ones(1), torch.ones(1))  # never seen through


def test_state_among_the_arguments():
    net = model()
    net(torch.ones(2))
    own = net[0].state
    held = {"0.seen": 5, "0.state": torch.full((2,), 7.0)}
    arguments = {"x": torch.ones(2), module_state.NAME: held}
    with module_state.as_argument(net, arguments):
        assert arguments.keys() == {"x"}
        assert torch.equal(net(arguments["x"]), torch.full((2,), 8.0))
    assert arguments[module_state.NAME] is held
    assert held["0.seen"] == 6 and torch.equal(held["0.state"], torch.full((2,), 8.0))
    assert net[0].seen == 1 and net[0].state is own


def test_its_own_is_back_after_an_error():
    net = model()
    held = {"0.seen": 5, "0.state": torch.zeros(2)}
    with pytest.raises(ZeroDivisionError):
        with module_state.as_argument(net, {module_state.NAME: held}):
            1 / 0
    assert net[0].seen == 0 and net[0].state is None


def test_nothing_kept():
    arguments = {"x": 1}
    with module_state.as_argument(model(), arguments):
        assert arguments == {"x": 1}
    assert arguments == {"x": 1}
