"""Cuts the program of a language model into stages that run one after the other, in processes of their own.

The cut is found in the graph. A value is one of three kinds:

    given       computed of weights alone: each stage that needs it computes it when it is loaded
    light       computed of the inputs without a weight (positions, masks, tables of rotary embeddings): each stage that
                needs it computes it again, since the inputs are a few numbers per token
    carried     all others: where they are used behind a cut, they cross it

Between two layers with a cache there is a place where the carried values are narrowest, in bytes per token. Cuts may be made
wherever no more crosses than at the widest of these, and are made where the largest stage reads the fewest bytes in a
step: its weights, and keys and values of a few texts. A stage has the states of the layers that it runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from graft.errors import ExportError
from graft.exporter.serialize import StoredWeight
from graft.llm import ops, recurrence  # noqa: F401  (registers graft::attention)

# Named data of a stage's package: which stage of how many it is, and of which model.
STAGE = "graft.stage.json"
# And what the engine looks at in all layers of a model when it decides how a weight is stored in memory: each stage must
# decide as the whole model would, or its results have other bits.
OTHER_STAGES = "graft.other_stages.json"

_ATTENTION = torch.ops.graft.attention.default
_CACHED = (_ATTENTION, *recurrence.CACHED)  # nodes with a state of a layer
_LINEAR = torch.ops.aten.linear.default
_LOOKUP = torch.ops.aten.embedding.default  # reads some rows of its weight
# Texts of a step, and tokens that each has, for which stages are balanced: half of the server's rows, early in a talk.
_TEXTS, _TOKENS = 4, 256


@dataclass(frozen=True)
class Stage:
    program: ExportedProgram
    carried: int  # bytes per token that it gives to the next one
    others: dict[str, Any]  # the content of OTHER_STAGES


def split(program: ExportedProgram, stages: int, weights: Mapping[str, StoredWeight]) -> list[Stage]:
    """The lowered program `step` (graft.llm.trace) as so many programs. Each takes the inputs of `step`, and behind them what
    crosses the cut before it; the last one gives the logits. weights: by name. Raises ExportError for a program that cannot
    be cut into so many."""
    graph = _Graph(program, {name: weight.byte_size for name, weight in weights.items()})
    cuts = graph.cuts(stages)
    ends = [0, *cuts, len(graph.carried)]
    parts = [graph.part(begin, end) for begin, end in itertools.pairwise(ends)]
    carried = [graph.width(end) or 0 for end in ends[1:-1]] + [0]
    linear, read_so = _readers(program, weights)
    return [
        Stage(part, width, {"linear_bytes": sum((linear - _readers(part, weights)[0]).values()), "read_so": sorted(read_so)})
        for part, width in zip(parts, carried)
    ]


def chunks_are_exact(program: ExportedProgram) -> bool:
    """Whether a prompt that is read in chunks has the bits of one that is read in one run: windows are in rings, whose keys lie
    elsewhere then, and recurrent states are computed chunk by chunk."""
    cached = [node for node in program.graph.nodes if node.target in _CACHED]
    return all(
        node.target is _ATTENTION and not node.kwargs.get("window") and not node.kwargs.get("chunk") for node in cached
    )


def _readers(program: ExportedProgram, weights: Mapping[str, StoredWeight]) -> tuple[Counter[str], set[str]]:
    """Of weights, by key: the bytes of those in f32 that linear layers alone read, and those that something else reads."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target in weights}
    linear: Counter[str] = Counter()
    other = set()
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name not in names:
            continue
        weight = weights[names[node.name]]
        if any(user.target is not _LINEAR or node in (user.args[0], *user.args[2:]) for user in node.users):
            other.add(weight.key)
        elif node.users and weight.dtype == torch.float32 and not weight.block_type:
            linear[weight.key] = weight.byte_size
    return Counter({key: size for key, size in linear.items() if key not in other}), other


class _Graph:
    """A program whose carried nodes are numbered: cut c lies before node c."""

    def __init__(self, program: ExportedProgram, weight_bytes: Mapping[str, int]) -> None:
        self.program = program
        signature = program.graph_signature
        held = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target is not None}
        parameters = {spec.arg.name for spec in signature.input_specs if spec.kind == InputKind.PARAMETER}
        self.nodes = [node for node in program.graph.nodes if node.op != "output"]
        (self.output,) = program.graph.find_nodes(op="output")
        self.inputs = [node for node in self.nodes if node.op == "placeholder" and node.name not in held]
        self._refuse_changes()
        self.symbols = set().union(*(_symbols(node) for node in self.inputs))

        of_input: set[Node] = set(self.inputs)
        weights: dict[Node, set[str]] = {}  # parameters that a node's value is made of
        self.carried: list[Node] = []
        carried: set[Node] = set()
        self.cost: list[int] = []
        for node in self.nodes:
            if node.op == "placeholder":
                weights[node] = {held[node.name]} if node.name in parameters else set()
                continue
            before = node.all_input_nodes
            # What carried nodes are made of is behind them.
            weights[node] = set().union(*(weights[one] for one in before if one not in carried))
            if not of_input.isdisjoint(before):
                of_input.add(node)
            if not carried.isdisjoint(before) or (node in of_input and weights[node]) or node.target in _CACHED:
                carried.add(node)
                self.carried.append(node)
                read = 0 if node.target is _LOOKUP else sum(weight_bytes.get(name, 0) for name in weights[node])
                self.cost.append(read + _cached_bytes(node))
        self.number = {node: i for i, node in enumerate(self.carried)}
        self.last = [
            max((self.number.get(user, len(self.carried)) for user in node.users), default=i)
            for i, node in enumerate(self.carried)
        ]

    def _refuse_changes(self) -> None:
        for node in self.nodes:
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                raise ExportError(
                    f"expected nodes that change none of their inputs in a model to be cut, found '{node.name}' ({node.target})"
                )

    def alive(self, cut: int) -> list[Node]:
        """The values that cross it."""
        return [node for node, last in zip(self.carried[:cut], self.last) if last >= cut]

    def width(self, cut: int) -> int | None:
        """Bytes per token that cross the cut; none: something does that no message can hold."""
        total = 0
        for node in self.alive(cut):
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor) or not _symbols(node) <= self.symbols:
                return None
            one = dict.fromkeys(self.symbols, 1)
            sizes = [n if isinstance(n, int) else int(n.node.expr.xreplace(one)) for n in value.shape]
            total += math.prod(sizes) * value.dtype.itemsize
        return total

    def cuts(self, stages: int) -> list[int]:
        first = {}  # of each layer, the first node with a state
        for i, node in enumerate(self.carried):
            if node.target in _CACHED:
                first.setdefault(node.kwargs["layer"], i)
        layers = sorted(first.values())
        if stages > len(layers):
            raise ExportError(f"expected at most as many stages as layers with a cache, {len(layers)}, found {stages}")
        if stages == 1:
            return []
        widths = {cut: self.width(cut) for cut in range(layers[0] + 1, layers[-1] + 1)}
        narrowest = []
        for before, after in itertools.pairwise(layers):
            known = [width for cut in range(before + 1, after + 1) if (width := widths[cut]) is not None]
            if known:
                narrowest.append(min(known))
        places = [cut for cut, width in widths.items() if width is not None and width <= max(narrowest, default=-1)]
        found = _balanced(self.cost, places, layers, stages, widths)
        if found is None:
            raise ExportError(
                f"expected a graph with places for {stages - 1} cuts, each between two layers with a cache, found "
                f"{len(places)}: elsewhere values cross that are no tensors of batch and tokens"
            )
        return found

    def part(self, begin: int, end: int) -> ExportedProgram:
        """What lies between two cuts, as a program of its own."""
        last = end == len(self.carried)
        given, results = self.alive(begin), self.alive(end)
        if last:
            results = list(pytree.tree_leaves(self.output.args[0]))
        needed: set[Node] = set()
        waiting = [node for node in results if node not in given]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting.extend(one for one in node.all_input_nodes if one not in given)
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}

        def place(name: str, like: Node) -> None:
            copies[like] = graph.placeholder(name)
            copies[like].meta = dict(like.meta)

        specs: list[InputSpec] = []
        by_name = {node.name: node for node in self.nodes if node.op == "placeholder"}
        for spec in self.program.graph_signature.input_specs:
            node = by_name[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT or node in needed:
                specs.append(spec)
                place(node.name, node)
        for i, node in enumerate(given):
            place(f"carried_{i}", node)
            specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(name=copies[node].name), None))
        for node in self.nodes:
            if node in needed and node.op != "placeholder":
                copies[node] = graph.node_copy(node, copies.__getitem__)
        outputs = [copies[node] for node in results]
        graph.output(tuple(outputs))
        graph.lint()

        top = self.program.module_call_graph[0]
        in_spec = pytree.tree_structure(((0,) * (len(self.inputs) + len(given)), {}))
        out_spec = top.signature.out_spec if last else pytree.tree_structure((0,) * len(results))
        signature = dataclasses.replace(top.signature, in_spec=in_spec, out_spec=out_spec)
        out_specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None) for node in outputs]
        return ExportedProgram(
            root=self.program.graph_module,
            graph=graph,
            graph_signature=ExportGraphSignature(specs, out_specs),
            state_dict=self.program.state_dict,
            range_constraints=self.program.range_constraints,
            module_call_graph=[dataclasses.replace(top, signature=signature)],
            example_inputs=None,
            constants=self.program.constants,
            verifiers=[self.program.verifier],
        )


def _cached_bytes(node: Node) -> int:
    """What attention reads in a step: keys [B, Hkv, T, D] and values of the tokens that its texts have, of each as many as
    _TOKENS and as the layer sees."""
    if node.target is not _ATTENTION:
        return 0
    seen = min(_TOKENS, node.kwargs.get("window") or _TOKENS, node.kwargs.get("chunk") or _TOKENS)
    values = [one.meta["val"] for one in node.args[1:3]]
    return _TEXTS * seen * sum(int(value.shape[1]) * int(value.shape[3]) * value.dtype.itemsize for value in values)


def _symbols(node: Node) -> set[Any]:
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return set().union(*(size.node.expr.free_symbols for size in sizes if isinstance(size, torch.SymInt)))


def _balanced(
    cost: Sequence[int], places: Sequence[int], layers: Sequence[int], stages: int, widths: Mapping[int, int | None]
) -> list[int] | None:
    """The cuts with the cheapest most expensive stage; of equal ones those that less crosses. Each stage has a layer."""
    sums = [0, *itertools.accumulate(cost)]

    def has_layer(begin: int, end: int) -> bool:
        return any(begin <= layer < end for layer in layers)

    # By the last cut so far: the cost, what crosses, the cuts.
    best: dict[int, tuple[int, int, list[int]]] = {0: (0, 0, [])}
    for _ in range(stages - 1):
        after: dict[int, tuple[int, int, list[int]]] = {}
        for cut in places:
            options = [
                (max(most, sums[cut] - sums[before]), crossed + (widths[cut] or 0), [*cuts, cut])
                for before, (most, crossed, cuts) in best.items()
                if before < cut and has_layer(before, cut)
            ]
            if options:
                after[cut] = min(options)
        best = after
    ended = [
        (max(most, sums[-1] - sums[cut]), crossed, cuts)
        for cut, (most, crossed, cuts) in best.items()
        if has_layer(cut, len(cost))
    ]
    return min(ended)[2] if ended else None


__all__ = ["OTHER_STAGES", "STAGE", "Stage", "chunks_are_exact", "split"]
