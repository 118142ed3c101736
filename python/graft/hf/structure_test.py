"""Values as tensors and a structure."""

import functools
import types

import torch
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from graft.hf.structure import build, flatten


class Counter:
    def __init__(self):
        self.count, self.kept, self.name, self.open = 7, 4, "a", True
        self.tensor = torch.ones(2)


COUNTED = frozenset({(Counter, "count")})


def test_leaves_and_identity():
    shared = torch.arange(3)
    inner = [shared, shared]
    value = {"a": (inner, inner, None, 1.5, float("inf")), "b": {4, 5}, "c": torch.Size([1, 2])}
    flat = flatten(value)
    assert len(flat.tensors) == 1 and flat.paths == [".a[0][0]"]
    made = build(flat.structure, flat.tensors, flat.numbers)
    assert made["a"][0] is made["a"][1] and made["a"][0] is not inner and made["a"][0][0] is shared
    assert made["a"][2:] == (None, 1.5, float("inf")) and made["b"] == {4, 5} and made["c"] == torch.Size([1, 2])


def test_what_tells_structures_apart():
    def structure(change):
        made = Counter()
        change(made)
        return flatten(made, COUNTED).structure

    same = structure(lambda made: None)
    assert same == structure(lambda made: setattr(made, "count", 9))
    assert same == structure(lambda made: setattr(made, "tensor", torch.zeros(5)))
    for change in (
        lambda made: setattr(made, "kept", 5),
        lambda made: setattr(made, "open", 1),
        lambda made: setattr(made, "count", 1),  # code is written for 0 and 1 in particular
        lambda made: setattr(made, "tensor", torch.ones(2, dtype=torch.int32)),
        lambda made: setattr(made, "tensor", torch.ones(2, 1)),
        lambda made: setattr(made, "more", None),
        lambda made: delattr(made, "name"),
    ):
        assert structure(change) != same


def test_counters_in_lists_and_dicts():
    def flat(*counts):
        made = Counter()
        made.counts = {"short": counts[0], "long": [counts[1]]}
        return flatten(made, frozenset({(Counter, "counts")}))

    assert flat(2, 3).structure == flat(5, 9).structure and flat(5, 9).numbers == [5, 9]
    assert flat(2, 3).structure != flat(1, 3).structure
    other = flat(2, 3)
    assert build(other.structure, other.tensors, [6, 7]).counts == {"short": 6, "long": [7]}


def test_methods_and_functions():
    made = Counter()
    made.method = types.MethodType(lambda self: self.count, made)
    made.part = functools.partial(max, 3, key=abs)
    flat = flatten(made, COUNTED)
    other = build(flat.structure, flat.tensors, [8])
    assert other is not made and other.method() == 8 and other.part(-5) == -5


def test_objects_are_changed_in_place():
    cache = DynamicCache()
    before = flatten({"cache": cache})
    objects = []
    own = build(before.structure, [], [], made=objects)
    own["cache"].update(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 0)
    output = CausalLMOutputWithPast(logits=torch.zeros(1), past_key_values=own["cache"])
    after = flatten((own, output), origins={id(one): place for place, one in enumerate(objects)})
    _, found = build(after.structure, after.tensors, after.numbers, into=before.objects)
    assert found.past_key_values is cache and type(found) is CausalLMOutputWithPast
    assert cache.get_seq_length() == 3 and cache.layers[0].keys.shape == (2, 1, 3, 4)
