"""Layers that are alike but for their weights: three of them are traced, however many there are.

torch.export takes time for each operator of each layer. Of layers that are alike the first, the second and the last are traced. Where
the second and the last then have the same nodes, but for weights and the layer's number, those between are copies of the second.
Otherwise (`Unlike`) the model has to be traced as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from graft.llm import interface

FEWEST = 5  # layers that are worth it: two more than are traced

torch.library.define("graft::layer_like", "(Tensor hidden, *, int group, int place) -> Tensor")


@torch.library.impl("graft::layer_like", "default")
def _layer_like(hidden: torch.Tensor, *, group: int, place: int) -> torch.Tensor:
    """Stands for a layer while a model is traced: hidden states of the same sizes. It is in no finished program."""
    raise NotImplementedError("graft::layer_like stands for a layer in a trace; it computes nothing")


@torch.library.register_fake("graft::layer_like")
def _(hidden: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.empty_like(hidden)


class Unlike(Exception):
    """Layers turned out to differ; the text says how."""


@dataclass(frozen=True)
class Group:
    """Layers of one list that are alike."""

    path: str  # of the list in the model
    places: tuple[int, ...]  # in the list, ascending

    @property
    def traced(self) -> tuple[int, int, int]:
        return self.places[0], self.places[1], self.places[-1]

    def path_of(self, place: int) -> str:
        return f"{self.path}.{place}"


# What is compared by itself.
_OF_MODULES = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}


def groups_of(model: torch.nn.Module) -> list[Group]:
    """Of all lists of layers, those that are alike, where there are enough. No parameter of theirs is another one's too."""
    seen: set[int] = set()
    twice: set[int] = set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        (twice if id(parameter) in seen else seen).add(id(parameter))
    found: list[Group] = []
    lists = {path: layers for path, layers in model.named_modules() if isinstance(layers, torch.nn.ModuleList)}
    for path, layers in lists.items():
        if any(path.startswith(outer + ".") for outer in lists):
            continue
        left = [i for i, layer in enumerate(layers) if not any(id(p) in twice for p in layer.parameters())]
        while len(left) >= FEWEST:
            alike = [i for i in left if _alike(layers, left[0], i)]
            if len(alike) >= FEWEST:
                found.append(Group(path, tuple(alike)))
            left = [i for i in left[1:] if i not in alike]
    return found


def _alike(layers: torch.nn.ModuleList, a: int, b: int) -> bool:
    ours, theirs = dict(layers[a].named_modules()), dict(layers[b].named_modules())
    if ours.keys() != theirs.keys():
        return False
    if a == b:
        return not any(_has_hooks(module) for module in ours.values())
    return all(
        type(x) is type(theirs[name])
        and not _has_hooks(theirs[name])
        and _same_tensors(x, theirs[name])
        and _same(_attributes(x), _attributes(theirs[name]), a, b)
        and _same_by_layer(getattr(x, "config", None), len(layers), a, b)
        for name, x in ours.items()
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    return any(value for name, value in vars(module).items() if name.endswith("_hooks")) or "forward" in vars(module)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_MODULES and not name.endswith("_hooks")}


def _same_tensors(x: torch.nn.Module, y: torch.nn.Module) -> bool:
    def described(module: torch.nn.Module) -> list[Any]:
        held = {**module._parameters, **module._buffers}
        return [(name, None if t is None else (t.shape, t.dtype)) for name, t in held.items()]

    return described(x) == described(y)


def _same(x: Any, y: Any, a: int, b: int) -> bool:
    """Whether attributes of layers a and b are the same, or are the numbers of these layers."""
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_same(value, y[name], a, b) for name, value in x.items())
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(_same(i, j, a, b) for i, j in zip(x, y))
    if isinstance(x, (bool, float, complex, str, bytes, set, frozenset, torch.dtype, torch.device)):
        return x == y
    if isinstance(x, int):
        return x == y or (x, y) == (a, b)
    if isinstance(x, functools.partial):
        return _same((x.func, x.args, x.keywords), (y.func, y.args, y.keywords), a, b)
    if isinstance(x, types.MethodType):  # of the layer itself
        return x.__func__ is y.__func__ and isinstance(x.__self__, torch.nn.Module)
    return False


def _same_by_layer(config: Any, count: int, a: int, b: int) -> bool:
    """Whether a configuration says the same of both, in lists that have an entry for each layer or the numbers of some."""

    def same(value: Any) -> bool:
        if not isinstance(value, (list, tuple, set, frozenset)):
            return True
        if isinstance(value, (list, tuple)) and len(value) == count:
            return bool(value[a] == value[b])
        return (a in value) == (b in value)

    return config is None or all(same(value) for value in vars(config).values())


class _Calls:
    """What the layers of a group are called with in a run of the model: one after the other, with the same but for the hidden
    states. Tracers run a model more than once."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._next = 0  # of the group's places
        self._first: tuple[list[Any], Any] = [], None
        self._hidden: int | None = None  # which of the leaves they are
        self.unlike = ""

    def note(self, place: int, args: Any, kwargs: Any) -> torch.Tensor:
        """The hidden states of a call."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        places = self._group.places
        if place == places[0]:
            self._next, self._first, self._hidden = 1, (leaves, tree), None
        elif self._next == len(places) or place != places[self._next]:
            self.unlike = "layers are called in another order"
        else:
            self._next += 1
            before, of_before = self._first
            others = [i for i, (x, y) in enumerate(zip(before, leaves)) if not _same_argument(x, y)]
            if tree == of_before and len(others) == 1 and self._hidden in (None, others[0]):
                self._hidden = others[0]
                return leaves[others[0]]
            self.unlike = "layers are called with other arguments"
        return next(leaf for leaf in leaves if torch.is_tensor(leaf))


def _same_argument(x: Any, y: Any) -> bool:
    if x is y:
        return True
    return not torch.is_tensor(x) and type(x) is type(y) and not isinstance(x, torch.SymInt) and bool(x == y)


@contextlib.contextmanager
def standing_in(model: torch.nn.Module, groups: Sequence[Group]) -> Iterator[None]:
    """Within it, layers that are not to be traced compute nothing. Raises Unlike at its end where calls of layers differ."""
    called: list[_Calls] = []
    changed: list[tuple[torch.nn.Module, type]] = []
    try:
        for number, group in enumerate(groups):
            layers, calls = model.get_submodule(group.path), _Calls(group)
            called.append(calls)
            for place in group.places:
                layer, kind = layers[place], type(layers[place])
                forward = _forward(kind.forward if place in group.traced else None, calls, number, place)
                interface.become(layer, kind, forward)  # of the object alone, tracers would not know its path
                changed.append((layer, kind))
        yield
        if reason := next((calls.unlike for calls in called if calls.unlike), ""):
            raise Unlike(reason)
    finally:
        for layer, kind in changed:
            layer.__class__ = kind


def _forward(own: Any, calls: _Calls, group: int, place: int) -> Any:
    """own: of a layer that is traced."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        hidden = calls.note(place, args, kwargs)
        if own is None:
            return torch.ops.graft.layer_like(hidden, group=group, place=place)
        result = own(self, *args, **kwargs)
        if not torch.is_tensor(result):
            calls.unlike = "layers give back more than hidden states"
        return result

    return forward


def expand(program: ExportedProgram, groups: Sequence[Group]) -> None:
    """Puts copies of traced layers in the place of those that were not."""
    signature = program.graph_signature
    tensors = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    of = {path: nodes[name] for name, path in tensors.items()}
    paths = {nodes[name]: path for name, path in tensors.items()}
    constants = {
        nodes[name]: program.constants[path] for name, path in signature.inputs_to_lifted_tensor_constants.items()
    }
    missing = [node for node in program.graph.nodes if node.target is torch.ops.graft.layer_like.default]
    called = sorted({node.kwargs["group"] for node in missing})  # not those of encoders that the program leaves out
    templates = {number: _template(program.graph, groups[number], paths, constants) for number in called}
    for node in missing:
        number = node.kwargs["group"]
        _copy(program.graph, templates[number], groups[number], node, of)
    program.graph.lint()
    program.graph_module.recompile()


@dataclass(frozen=True)
class _Template:
    nodes: list[Node]
    hidden: Node  # what they begin with
    result: Node
    weights: Mapping[Node, str]  # names within the layer


def _template(graph: Any, group: Group, paths: Mapping[Node, str], constants: Mapping[Node, Any]) -> _Template:
    _, second, last = group.traced
    ours, theirs = _nodes_of(graph, group.path_of(second)), _nodes_of(graph, group.path_of(last))
    if len(ours) != len(theirs):
        raise Unlike(f"layers {second} and {last} of {group.path} have {len(ours)} and {len(theirs)} nodes")
    inside, of_last, outside = dict(zip(ours, theirs)), set(theirs), {}
    for x, y in inside.items():
        _compare(x, y, second, last, inside, of_last, outside)
    hidden, weights = [], {}
    for x, y in outside.items():
        if x is y:
            continue
        name, prefix = paths.get(x, ""), group.path_of(second) + "."
        if name.startswith(prefix) and paths.get(y) == f"{group.path_of(last)}.{name.removeprefix(prefix)}":
            weights[x] = name.removeprefix(prefix)
        elif x in constants and y in constants and torch.equal(constants[x], constants[y]):
            continue
        else:
            hidden.append(x)
    results = [x for x in ours if torch.is_tensor(x.meta.get("val")) and any(user not in inside for user in x.users)]
    begin, end = (found[0].meta["val"] if len(found) == 1 else None for found in (hidden, results))
    if begin is None or end is None or (begin.shape, begin.stride(), begin.dtype) != (end.shape, end.stride(), end.dtype):
        raise Unlike(f"layers of {group.path} have other states beside the hidden ones")
    return _Template(ours, hidden[0], results[0], weights)


def _nodes_of(graph: Any, path: str) -> list[Node]:
    """Those from a module's first to its last one."""
    nodes = list(graph.nodes)
    own = [i for i, node in enumerate(nodes) if any(entry[0] == path for entry in _stack(node).values())]
    if not own:
        raise Unlike(f"{path} has no nodes")
    return nodes[own[0] : own[-1] + 1]


def _stack(node: Node) -> dict[str, Any]:
    return node.meta.get("nn_module_stack") or {}


def _compare(
    x: Node, y: Node, a: int, b: int, inside: Mapping[Node, Node], of_b: set[Node], outside: dict[Node, Node]
) -> None:
    """Nodes of layers a and b. inside: b's by a's. of_b: all of b's. outside: what nodes from before a are for b; it grows."""
    if (x.op, x.target) != (y.op, y.target) or x.op != "call_function":
        raise Unlike(f"layers {a} and {b} differ in {x.format_node()} and {y.format_node()}")
    (ours, tree), (theirs, other) = (pytree.tree_flatten((node.args, _without_layer(node))) for node in (x, y))
    numbers = x.kwargs.get("layer"), y.kwargs.get("layer")
    same = tree == other and numbers in ((None, None), (a, b))
    for i, j in zip(ours, theirs):
        if isinstance(i, Node) and isinstance(j, Node):
            same = same and (inside[i] is j if i in inside else j not in of_b and outside.setdefault(i, j) is j)
        else:
            same = same and type(i) is type(j) and i == j
    if not same:
        raise Unlike(f"layers {a} and {b} differ in {x.format_node()} and {y.format_node()}")


def _without_layer(node: Node) -> dict[str, Any]:
    return {name: value for name, value in node.kwargs.items() if name != "layer"}


def _copy(graph: Any, template: _Template, group: Group, node: Node, of: Mapping[str, Node]) -> None:
    """In the place of `node`. of: placeholders by the names of parameters and buffers."""
    place, path = node.kwargs["place"], group.path_of(group.traced[1])
    given = {x: of[f"{group.path_of(place)}.{name}"] for x, name in template.weights.items()}
    given[template.hidden] = node.args[0]
    with graph.inserting_before(node):
        for x in template.nodes:
            if isinstance(x.meta.get("val"), (int, torch.SymInt)):  # a size: the same in all layers
                continue
            made = given[x] = graph.node_copy(x, lambda n: given.get(n, n))
            if "layer" in made.kwargs:
                made.kwargs = {**made.kwargs, "layer": place}
            made.meta = dict(x.meta)
            if "nn_module_stack" in made.meta:
                made.meta["nn_module_stack"] = {
                    key: (_renamed(entry[0], path, group.path_of(place)), *entry[1:]) for key, entry in _stack(x).items()
                }
    node.replace_all_uses_with(given[template.result])
    graph.erase_node(node)


def _renamed(path: str, old: str, new: str) -> str:
    return new + path.removeprefix(old) if path == old or path.startswith(old + ".") else path


__all__ = ["FEWEST", "Group", "Unlike", "expand", "groups_of", "standing_in"]
