import torch

from graft.hf import general
from graft.hf.structure import flatten


class _Counting(torch.nn.Module):
    def compute_3d_position_ids(self, input_ids, attention_mask=None):
        return input_ids.cumsum(-1) if attention_mask is None else None


class _CountingBySizes(torch.nn.Module):
    def compute_3d_position_ids(self, input_ids, inputs_embeds):
        assert inputs_embeds.shape[:2] == input_ids.shape
        return input_ids + 1


def test_positions_that_the_model_counts():
    """Its method gets what it takes alone: not all take inputs_embeds (HunYuan-VL)."""
    given = {"input_ids": torch.tensor([[1, 2, 3]])}
    found = general._with_positions(torch.nn.Sequential(_Counting()), given)
    assert torch.equal(found["position_ids"], torch.tensor([[1, 3, 6]]))
    found = general._with_positions(torch.nn.Sequential(_CountingBySizes()), given)
    assert torch.equal(found["position_ids"], torch.tensor([[2, 3, 4]]))
    masked = {**given, "attention_mask": torch.ones(1, 3)}
    assert general._with_positions(torch.nn.Sequential(_Counting()), masked) is masked


class _Layer:
    def __init__(self, count, entries, name):
        self.count, self.entries, self.name, self.open = count, entries, name, True


def test_integers_that_a_call_changes():
    """Counts are attributes of the cache's objects, and entries of their dicts (DeepSeek V4's `entry_count`)."""
    layer = _Layer(1, {"short": 4, "long": [1, 2]}, "a")
    before = flatten({"layer": layer})
    origins = {id(layer): 1, id(layer.entries): 2, id(layer.entries["long"]): 3}

    def changed(**values):
        vars(layer).update(values)
        return general._changed_numbers(before.structure, flatten({"layer": layer}, origins=origins).structure)

    assert changed(open=False) == set() and changed(name="b") == set()
    assert changed(count=2) == {(_Layer, "count")}
    assert changed(count=1, entries={"short": 4, "long": [1, 3]}) == {(_Layer, "entries")}
    assert changed(count=2) == {(_Layer, "count"), (_Layer, "entries")}
