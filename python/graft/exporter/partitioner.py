"""Decides, without knowing any operator, which nodes of an edge program graft runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from graft.exporter import exir  # noqa: F401  isort: skip  (before executorch.exir)
from executorch.exir.backend.backend_details import CompileSpec, ExportedProgram
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data

from graft.errors import ExportError
from graft.exporter import specs, targets
from graft.exporter.backend import GraftBackend
from graft.exporter.predicate import Predicate, engine, has_delegate, refused_nodes
from graft.exporter.serialize import Signature, declared_lower_bounds, serialize

_SCALARS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


class GraftPartitioner(Partitioner):
    """Delegates to graft every node that the engine accepts.

    compile_specs: handed to the backend besides its own. method: name of the method, for messages and the package.
    external_weights: name of a .ptd that takes the weights; by default they lie in the .pte. leave_out: when
    given, parameters and persistent buffers lie in neither, but in files given at load; it maps names to the names that
    files have instead. quantize: types to write weights as, by name. content_keys: weights to be keyed by content because
    another method of the package gives their names to other bytes. states: buffers that a method of the package writes,
    which all its methods share.
    """

    def __init__(
        self,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        method: str = "forward",
        signature: Signature | None = None,
        external_weights: str | None = None,
        leave_out: Mapping[str, str] | None = None,
        quantize: Mapping[str, str] | None = None,
        content_keys: Iterable[str] = (),
        states: Iterable[str] = (),
        predicate: Predicate | None = None,
    ) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(GraftBackend.__name__, list(compile_specs))
        self._method = method
        self._signature = signature
        self._external_weights = external_weights
        self._leave_out = leave_out
        self._quantize = dict(quantize or {})
        self._content_keys = sorted(content_keys)
        self._states = sorted(states)
        self._predicate = predicate
        self._lower_bounds: dict[str, int] = {}
        # Node name -> (target, reason) of the nodes that the last partition() did not delegate.
        self.refused: dict[str, tuple[str, str]] = {}

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[torch.fx.Node], bool] | None]:
        """Operators to keep whole: those whose every instance the engine accepts. ExecuTorch fails a program when an
        operator kept whole is not delegated, so one refused instance means that all of its kind are decomposed."""
        if has_delegate(ep.graph):
            return [], None  # queried again after lowering
        self._lower_bounds = declared_lower_bounds(ep)
        predicate = self._predicate or engine()
        wanted = set(predicate.preserved_targets())
        instances: dict[torch._ops.OpOverload, list[str]] = defaultdict(list)
        for node in ep.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload) and targets.op_name(node.target) in wanted:
                instances[node.target].append(node.name)
        if not instances:
            return [], None
        refused = refused_nodes(predicate, serialize(ep, strict=False, content=False))
        return [op for op, names in instances.items() if not refused.keys() & set(names)], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        blob = serialize(exported_program, strict=False, content=False, lower_bounds=self._lower_bounds)
        self.refused = refused_nodes(self._predicate or engine(), blob)
        signature = exported_program.graph_signature
        states = {*signature.buffers_to_mutate.values(), *self._states}
        inputs = {name for name, fqn in signature.inputs_to_buffers.items() if fqn in states}
        graph = exported_program.graph
        tags = _assign(graph, self.refused, inputs.union(signature.user_inputs))
        for node in _drop_lone_numbers(graph, tags):
            self.refused[node.name] = (
                targets.resolve(node.target).name,
                "ExecuTorch takes no delegate whose only result is a number",
            )
        for node, part in tags.items():
            node.meta["delegation_tag"] = f"graft_{part}"
        tag_constant_data(exported_program)
        _leave_shared_constants(exported_program)
        _tag_states(exported_program)
        self._check_shared_states(exported_program)
        spec = DelegationSpec(GraftBackend.__name__, self._specs(exported_program))
        return PartitionResult(
            tagged_exported_program=exported_program,
            partition_tags={f"graft_{part}": spec for part in sorted(set(tags.values()))},
        )

    def _check_shared_states(self, program: ExportedProgram) -> None:
        """Methods share what graft keeps. What stays ExecuTorch's, each method would have for itself."""
        nodes = {node.name: node for node in program.graph.nodes}
        for placeholder, fqn in program.graph_signature.inputs_to_buffers.items():
            users = nodes[placeholder].users if fqn in self._states else ()
            tags = {user.meta.get("delegation_tag") for user in users}
            if len(tags) > 1 or None in tags:
                raise ExportError(
                    f"method '{self._method}': expected all nodes that use the buffer '{fqn}' in one part of graft, since "
                    f"methods share it, found {', '.join(repr(user.name) for user in users)} in several or left to "
                    "ExecuTorch"
                )

    def _specs(self, program: ExportedProgram) -> list[CompileSpec]:
        own = [specs.signature_spec(self._signature or Signature.of(program)), specs.Spec(specs.METHOD, self._method.encode())]
        if self._external_weights is not None:
            own.append(specs.Spec(specs.EXTERNAL, self._external_weights.encode()))
        if self._leave_out is not None:
            own.append(specs.Spec(specs.LEAVE_OUT, json.dumps(self._leave_out).encode()))
        for key, value in (
            (specs.QUANTIZE, self._quantize),
            (specs.LOWER_BOUNDS, self._lower_bounds),
            (specs.STATES, self._states),
            (specs.CONTENT_KEYS, self._content_keys),
        ):
            if value:
                own.append(specs.Spec(key, json.dumps(value).encode()))
        return [*self.delegation_spec.compile_specs, *(CompileSpec(*spec) for spec in own)]


class Undelegated(GraftPartitioner):
    """Keeps operators whole as for graft, and then delegates nothing: what remains is the graph that graft would get."""

    _lowered = False

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[torch.fx.Node], bool] | None]:
        # ExecuTorch asks again, to find operators that were kept whole and not delegated.
        return ([], None) if self._lowered else super().ops_to_not_decompose(ep)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self._lowered = True
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})


def _assign(graph: torch.fx.Graph, refused: dict[str, Any], inputs: set[str]) -> dict[torch.fx.Node, int]:
    """Node -> number of its part, for the nodes to delegate.

    A part holds the accepted nodes that have the same number of refused stretches before them, so parts are as few as
    the longest alternation of accepted and refused nodes allows, and never depend on each other in a circle.
    inputs: names of the placeholders that a run may change (user inputs and states).
    """
    accepted: set[torch.fx.Node] = set()
    part: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.name not in refused:
            if not targets.is_getitem(node) or node.args[0] in accepted:
                accepted.add(node)
        crossing = node not in accepted
        part[node] = max((part[n] + (crossing and n in accepted) for n in node.all_input_nodes), default=0)
    _move_constants_to_users(graph, accepted, part, inputs)
    _leave_shared_scalars(graph, accepted, part)
    tags = {node: part[node] for node in graph.nodes if node in accepted}
    # Sub-graphs of a control-flow operator belong to its part.
    for node in graph.nodes:
        if node.op == "get_attr" and len({tags.get(user) for user in node.users}) == 1:
            (user, *_) = node.users
            if user in tags and isinstance(user.target, torch._ops.HigherOrderOperator):
                tags[node] = tags[user]
    if any(node.op == "call_function" and node not in accepted for node in graph.nodes):
        useful = {part[node] for node in tags if not _is_scalar(node)}
        tags = {node: number for node, number in tags.items() if number in useful}
    return tags


def _move_constants_to_users(
    graph: torch.fx.Graph, accepted: set[torch.fx.Node], part: dict[torch.fx.Node, int], inputs: set[str]
) -> None:
    """What depends on weights and numbers alone is computed in the first part that needs it, not handed over."""
    constant: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" and node.name not in inputs:
            constant.add(node)
        elif node in accepted and all(n in constant or _is_scalar(n) for n in node.all_input_nodes):
            constant.add(node)
    for node in reversed(graph.nodes):
        if node in constant and node in accepted:
            needed = [part[u] - (u not in accepted) for u in node.users if u.op != "output"]
            part[node] = max(part[node], min(needed, default=0))


def _leave_shared_scalars(graph: torch.fx.Graph, accepted: set[torch.fx.Node], part: dict[torch.fx.Node, int]) -> None:
    """Sizes of inputs, and numbers computed from them, stay outside when something outside their part needs them: as
    inputs of the delegates they cost nothing, as outputs the caller would wait for them."""
    from_inputs: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node in accepted and _is_scalar(node):
            if all(n.op == "placeholder" or n in from_inputs for n in node.all_input_nodes):
                from_inputs.add(node)
    for node in reversed(graph.nodes):
        if node not in from_inputs:
            continue
        users = [user for user in node.users if user.op != "output"]
        if any(user not in accepted or part[user] != part[node] for user in users):
            accepted.discard(node)


def _drop_lone_numbers(graph: torch.fx.Graph, tags: dict[torch.fx.Node, int]) -> list[torch.fx.Node]:
    """Takes nodes out of `tags` until no part's only result is a number, and returns them; and parts without a result."""
    results: dict[int, set[torch.fx.Node]] = defaultdict(set)
    for node, number in tags.items():
        if any(tags.get(user) != number for user in node.users):
            results[number].add(node)
    dropped = []
    for node in reversed(graph.nodes):
        number = tags.get(node)
        if number is None or not _is_scalar(node) or results[number] != {node}:
            continue
        del tags[node]
        dropped.append(node)
        results[number] = {n for n in node.all_input_nodes if tags.get(n) == number}
    # Assertions about what a refused node gave: a part of nothing else has no result, and ExecuTorch makes none of it.
    useful = {tags[node] for node in tags if any(tags.get(user) != tags[node] for user in node.users)}
    for node in [node for node, number in tags.items() if number not in useful]:
        del tags[node]
    return dropped


def _is_scalar(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), _SCALARS)


def _leave_shared_constants(program: ExportedProgram) -> None:
    """A constant that is neither parameter nor buffer, and is used in several places, becomes an input of its
    delegates. ExecuTorch would copy it once for each use, under one name, and then find that name twice in a part."""
    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in constants:
            if len({user.meta.get("delegation_tag") for user in node.users}) > 1:
                node.meta.pop("delegation_tag", None)


def _tag_states(program: ExportedProgram) -> None:
    """Gives a mutated buffer to the part that reads and writes it. One that several parts, or ExecuTorch's kernels,
    touch stays ExecuTorch's."""
    signature = program.graph_signature
    written = {fqn: name for name, fqn in signature.buffers_to_mutate.items()}
    nodes = {node.name: node for node in program.graph.nodes}
    for placeholder, fqn in signature.inputs_to_buffers.items():
        if fqn not in written or placeholder not in nodes:
            continue
        node = nodes[placeholder]
        touching = [*node.users, nodes[written[fqn]]]
        tags = {user.meta.get("delegation_tag") for user in touching}
        if len(tags) == 1 and None not in tags:
            node.meta["delegation_tag"] = tags.pop()


__all__ = ["GraftPartitioner", "Undelegated"]
