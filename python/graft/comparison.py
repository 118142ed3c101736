"""`graft.compare`: a package beside eager PyTorch, node by node."""

from __future__ import annotations

import inspect
import math
import os
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from graft.errors import Error, InvalidArgument, Unsupported, typed
from graft.exporter import torch_export
from graft.runtime.model import Method, Model, load

__all__ = ["Comparison", "Difference", "compare"]

# (atol, rtol): rounding that adds up over the layers of a network, and no more than that.
_TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-3),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (5e-2, 5e-2),
}
_UNBOUNDED = 2**62
_CONTROL_FLOW = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Difference:
    """One value of graft beside the same of eager PyTorch."""

    node: str  #: name of the node; "output 1", "state cache" or "input 0" for what the method hands back or writes
    result: int  #: which of the node's results
    op: str  #: "aten.linear.default"; "" for what the method hands back or writes
    source: str  #: last line of the model's code that made the node, as "file:line, in forward: code"; "" if not known
    dtype: torch.dtype
    shape: tuple[int, ...]
    max_abs_error: float  #: infinity where one of the two is NaN or another infinity
    index: tuple[int, ...]  #: of the element with that error
    found: float  #: this element of graft
    expected: float  #: and of eager PyTorch
    found_range: tuple[float, float]  #: least and greatest number that is not NaN
    expected_range: tuple[float, float]
    within: bool  #: the tolerance, everywhere
    fused: tuple[str, ...] = ()  #: nodes before it that were not seen since the last ones that were: part of the cause

    def __str__(self) -> str:
        name = f"node '{self.node}' ({self.op})" if self.op else self.node
        where = f" at {self.source}" if self.source else ""
        result = f", result {self.result}" if self.result else ""
        also = f"; computed together with {', '.join(self.fused)}" if self.fused else ""
        return (
            f"{name}{where}{result}, {_type(self.dtype, self.shape)}: element {list(self.index)} is {self.found!r}, eager "
            f"has {self.expected!r} (error {self.max_abs_error:.3g}); ranges {_range(self.found_range)} and "
            f"{_range(self.expected_range)}{also}"
        )


@dataclass(frozen=True)
class Comparison:
    """What `graft.compare` found."""

    first: Difference | None  #: in the order of the graph; None: all values are within the tolerance
    largest: Difference | None  #: of those within the tolerance, the one with the largest error; None: nothing differs
    compared: tuple[str, ...]  #: names of nodes whose values were compared
    differing: tuple[str, ...]  #: those of them, and outputs, states and inputs, beyond the tolerance
    skipped: Mapping[str, str] = field(default_factory=dict)  #: names of other nodes, and why nothing was seen of them

    @property
    def equal(self) -> bool:
        """Whether all values are within the tolerance."""
        return self.first is None

    def __str__(self) -> str:
        count = f"{len(self.compared)} nodes compared, {len(self.skipped)} not seen"
        if self.first is not None:
            return f"{count}; {len(self.differing)} values differ, the first: {self.first}"
        return f"{count}; none differs" + (f", the largest error: {self.largest}" if self.largest else "")


@typed
def compare(
    package: str | os.PathLike[str] | Model | torch.nn.Module | ExportedProgram,
    reference: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    method: str = "forward",
    dynamic_shapes: Any = None,
    atol: float | None = None,
    rtol: float | None = None,
) -> Comparison:
    """Runs a method on graft and the reference in eager PyTorch, node by node on the same arguments, and finds the first
    node whose values differ.

        found = graft.compare("net.pte", net, (x,))
        if not found.equal:
            print(found.first)  # node 'aten_linear_default_3' (aten.linear.default) at net.py:17, in forward: ...

    package: the path of a package, a loaded one (its states are taken as they are, and advance), or a module or an
        ExportedProgram, which is exported.
    reference: a module in evaluation mode, or an ExportedProgram. Its graph must be the package's: the same code, exported
        with the same arguments. Weights may be others.
    args, kwargs: as the method takes them. They are copied: neither side sees what the other one writes.
    method: name of the method of the package.
    dynamic_shapes: of a reference that is a module, as torch.export.export takes it. None: the sizes that the
        package leaves open.
    atol, rtol: values agree where |graft - eager| <= atol + rtol * |eager|, NaN where eager has NaN, and infinities with
        their sign; integers and booleans are equal. By default f64 1e-9 and 1e-9, f32 1e-4 and 1e-3, f16 1e-2 and 1e-2,
        bf16 5e-2 and 5e-2: rounding of a deep network. Weights in block formats differ by more.

    Compared are results of nodes that a kernel of graft wrote, then outputs, mutated buffers and mutated inputs. Nodes of
    the branch that a torch.cond takes, and those of a torch.while_loop in each round, have the name of their graph before
    theirs: "submodule_0.aten_mul_tensor". Nodes that were fused into a later one, folded at load, or are views of inputs
    are in `Comparison.skipped`. Raises `graft.InvalidArgument` when the graphs are not alike,
    `graft.Unsupported` for packages that run on a device or on ggml's kernels, and where eager PyTorch does not run a node.
    """
    kwargs = dict(kwargs or {})
    for name, limit in (("atol", atol), ("rtol", rtol)):
        if limit is not None and not limit >= 0:
            raise InvalidArgument(f"compare: {name} must be 0 or more, got {limit}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model = _loaded(package, args, kwargs, dynamic_shapes, Path(folder))
        if method not in model.methods:
            raise InvalidArgument(f"compare: the package has no method '{method}'; it has {sorted(model.methods)}")
        run = model.methods[method]
        if not isinstance(reference, (torch.nn.Module, ExportedProgram)):
            raise InvalidArgument(
                f"compare: the reference must be a torch.nn.Module or an ExportedProgram, got {type(reference).__name__}"
            )
        states = model.states()
        ours = _copied((tuple(args), kwargs))
        observed: dict[tuple[str, int], deque[torch.Tensor]] = {}

        def see(node: str, result: int, value: torch.Tensor) -> None:
            observed.setdefault((node, result), deque()).append(value)

        outputs = run(*ours[0], observe_results=see, **ours[1])
        lowered = _lowered(reference, args, kwargs, dynamic_shapes, run)
        report = _Report(observed, atol, rtol)
        eager = _Eager(lowered, states, report)
        theirs = pytree.tree_leaves(_copied((tuple(args), kwargs)))
        expected = eager.run(theirs)
        report.finish()
        _compare_effects(report, expected, pytree.tree_leaves(outputs), pytree.tree_leaves(ours), model.states())
    if not report.compared:
        raise InvalidArgument(
            "compare: no node of the package was seen in the reference's graph: export the reference as the package was"
        )
    return report.comparison()


def _loaded(package: Any, args: Sequence[Any], kwargs: dict[str, Any], dynamic_shapes: Any, folder: Path) -> Model:
    if isinstance(package, Model):
        return package
    if isinstance(package, ExportedProgram):
        from graft.exporter.export import export_for_load

        return load(export_for_load(package, folder / "package.pte"))
    if isinstance(package, torch.nn.Module):
        from graft.exporter.export import export

        example = _copied((tuple(args), kwargs))
        path = export(package, *example, dynamic_shapes=dynamic_shapes, path=folder / "package.pte")
        return load(path)
    return load(package)


def _lowered(
    reference: Any, args: Sequence[Any], kwargs: dict[str, Any], dynamic_shapes: Any, method: Method
) -> ExportedProgram:
    """The reference's graph with the nodes, and names of nodes, that its package has."""
    from graft.exporter.export import lower

    if isinstance(reference, torch.nn.Module):
        if reference.training:
            raise InvalidArgument("compare: the reference must be in evaluation mode; call eval() on it")
        if dynamic_shapes is None:
            dynamic_shapes = _open_sizes(reference, args, kwargs, method)
        copied_args, copied_kwargs = _copied((tuple(args), kwargs))
        reference = torch_export.export(reference, copied_args, copied_kwargs, dynamic_shapes=dynamic_shapes)
    elif dynamic_shapes is not None:
        raise InvalidArgument("compare: dynamic_shapes are of a module; an ExportedProgram has its own")
    return lower(reference)


def _open_sizes(module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any], method: Method) -> Any:
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    inputs = method.info["inputs"]
    if len(inputs) != len(leaves):
        return None  # the call says what is wrong
    shapes = []
    names: dict[str, Any] = {}
    for leaf, info in zip(leaves, inputs, strict=True):
        dims = info["dims"] if isinstance(leaf, torch.Tensor) else ()
        shapes.append({d: _open(names, *dim) for d, dim in enumerate(dims) if dim[0] != dim[1]} or None)
    if not any(shapes):
        return None
    by_args, by_kwargs = pytree.tree_unflatten(shapes, spec)
    try:
        return dict(inspect.signature(module.forward).bind(*by_args, **by_kwargs).arguments)
    except TypeError as error:
        raise InvalidArgument(f"compare: the reference does not take these arguments: {error}") from error


def _open(names: dict[str, Any], low: int, high: int, expression: str) -> Any:
    """A size that is open, with the bounds of the package: torch.export simplifies by them."""
    if high >= _UNBOUNDED or not expression.isidentifier():
        return Dim.AUTO
    return names.setdefault(expression, Dim(f"size_{len(names)}", min=low, max=high))


def _copied(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


class _Report:
    def __init__(
        self, observed: dict[tuple[str, int], deque[torch.Tensor]], atol: float | None, rtol: float | None
    ) -> None:
        self._observed = observed  # by node and result, in the order of its runs
        self._names: dict[torch.fx.Node, str] = {}
        self._atol, self._rtol = atol, rtol
        self.compared: dict[str, None] = {}
        self._skipped: dict[str, str] = {}
        self._differing: dict[str, None] = {}
        self._first: Difference | None = None
        self._largest: Difference | None = None

    def node(self, name: str, node: torch.fx.Node, value: Any, reason: str) -> None:
        """A node of the reference has its value. reason: why a kernel may not have written it."""
        self._names[node] = name
        results = list(value) if isinstance(value, (list, tuple)) else [value]
        for i, result in enumerate(results):
            if not isinstance(result, torch.Tensor):
                continue
            seen = self._observed.get((name, i))
            if not seen:
                continue
            found = seen.popleft()
            if tuple(found.shape) != tuple(result.shape):
                raise InvalidArgument(
                    f"compare: node '{name}' ({_op(node)}) gives {_type(found.dtype, found.shape)} in the package and "
                    f"{_type(result.dtype, result.shape)} in the reference: export the reference as the package was"
                )
            if found.dtype != result.dtype:
                self._skipped[name] = f"graft computes it as {_type(found.dtype, found.shape)}"
                continue
            self.compared[name] = None
            self.values(name, found, result, node=node, result=i)
        if name not in self.compared and any(isinstance(r, torch.Tensor) for r in results):
            self._skipped.setdefault(name, reason)

    def values(
        self, name: str, found: torch.Tensor, expected: torch.Tensor, *, node: torch.fx.Node | None = None, result: int = 0
    ) -> None:
        difference = self._difference(name, found, expected.detach(), node, result)
        if difference is None:
            return
        if difference.within:
            if self._largest is None or difference.max_abs_error > self._largest.max_abs_error:
                self._largest = difference
            return
        self._differing[name] = None
        self._first = self._first or difference

    def finish(self) -> None:
        """All nodes of the reference were seen."""
        for (name, _), left in self._observed.items():
            if left and name not in self.compared:
                self._skipped.setdefault(name, "the reference has no such node, or did not run it")

    def comparison(self) -> Comparison:
        return Comparison(
            self._first, self._largest, tuple(self.compared), tuple(self._differing), dict(self._skipped)
        )

    def _difference(
        self, name: str, found: torch.Tensor, expected: torch.Tensor, node: torch.fx.Node | None, result: int
    ) -> Difference | None:
        atol, rtol = _TOLERANCE.get(expected.dtype, (0.0, 0.0))
        atol = atol if self._atol is None or not expected.is_floating_point() else self._atol
        rtol = rtol if self._rtol is None or not expected.is_floating_point() else self._rtol
        same = (found == expected) | (found.isnan() & expected.isnan())
        if same.all():
            return None
        a, e = found.double(), expected.double()
        error = (a - e).abs()
        # NaN beside a number, infinities beside others.
        error = torch.where(error.isnan() | error.isinf(), math.inf, error).masked_fill(same, 0.0)
        wrong = ~same & ~(error <= atol + rtol * e.abs()) | error.isinf()
        worst = error if not wrong.any() else error.masked_fill(~wrong, -1.0)
        index = tuple(int(i) for i in torch.unravel_index(worst.argmax(), worst.shape))
        return Difference(
            node=name,
            result=result,
            op=_op(node) if node is not None else "",
            source=_source(node) if node is not None else "",
            dtype=expected.dtype,
            shape=tuple(expected.shape),
            max_abs_error=float(error[index]),
            index=index,
            found=found[index].item(),
            expected=expected[index].item(),
            found_range=_least_and_greatest(a),
            expected_range=_least_and_greatest(e),
            within=not bool(wrong.any()),
            fused=self._unseen_before(node) if node is not None else (),
        )

    def _unseen_before(self, node: torch.fx.Node) -> tuple[str, ...]:
        """Nodes that the value depends on, up to those that were compared."""
        unseen: dict[str, None] = {}
        left = list(node.all_input_nodes)
        while left:
            before = left.pop()
            name = self._names.get(before, before.name)
            if before.op != "call_function" or name in self.compared or name in unseen:
                continue
            if name in self._skipped:
                unseen[name] = None
            left.extend(before.all_input_nodes)
        return tuple(reversed(unseen))


class _Effects:
    """What a method hands back and writes."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.states: dict[str, torch.Tensor] = {}
        self.inputs: dict[int, torch.Tensor] = {}  # by position


class _Eager:
    """The lowered reference in eager PyTorch."""

    def __init__(self, program: ExportedProgram, states: Mapping[str, torch.Tensor], report: _Report) -> None:
        self._program, self._states, self._report = program, states, report
        self._weights: set[torch.fx.Node] = set()  # nodes that depend on weights alone

    def run(self, leaves: Sequence[Any]) -> _Effects:
        signature = self._program.graph_signature
        given = iter(leaves)
        values = []
        placeholders = [node for node in self._program.graph.nodes if node.op == "placeholder"]
        kinds = torch.export.graph_signature.InputKind
        states = {spec.target for spec in signature.output_specs if spec.kind.name == "BUFFER_MUTATION"}
        positions = {}
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if spec.kind == kinds.USER_INPUT:
                positions[spec.arg.name] = len(positions)
                values.append(next(given))
                continue
            stored = self._program.state_dict.get(spec.target)
            stored = self._program.constants.get(spec.target) if stored is None else stored
            if spec.kind == kinds.BUFFER and spec.target in self._states:
                stored = self._states[spec.target].clone()
            if spec.target not in states and spec.target not in self._states:
                self._weights.add(node)
            values.append(stored.detach() if isinstance(stored, torch.Tensor) else stored)
        results = _Interpreter(self._program.graph_module, self._note, self._enter).run(*values)
        effects = _Effects()
        for spec, result in zip(signature.output_specs, results, strict=True):
            if spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
                effects.states[spec.target] = result
            elif spec.kind.name == "USER_INPUT_MUTATION":
                effects.inputs[positions[spec.target]] = result
            else:
                effects.outputs.append(result)
        return effects

    def _enter(self, module: torch.fx.GraphModule, operands: Sequence[Any]) -> None:
        """A node calls this graph with what these nodes stand for."""
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._weights.update(node for node, given in zip(inputs, operands, strict=True) if given in self._weights)

    def _note(self, path: str, node: torch.fx.Node, value: Any) -> None:
        if node.op != "call_function" or getattr(node.target, "__name__", "") == "getitem":
            return
        if node.all_input_nodes and all(before in self._weights for before in node.all_input_nodes):
            self._weights.add(node)
        self._report.node(path + node.name, node, value, self._reason(node))

    def _reason(self, node: torch.fx.Node) -> str:
        if node.target in _CONTROL_FLOW:
            return "nodes of the graphs that it calls are compared"
        if node in self._weights:
            return "it depends on weights alone and is computed at load"
        target = getattr(node.target, "_op", node.target)  # of ExecuTorch's wrapper
        schema = getattr(target, "_schema", None)
        if schema is not None and any(result.alias_info is not None for result in schema.returns):
            return "it is a view, of an input or of what was fused"
        return "it was fused into a node after it"


class _Interpreter(torch.fx.Interpreter):
    """Runs graphs of control flow node by node too."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        note: Callable[[str, torch.fx.Node, Any], None],
        enter: Callable[[torch.fx.GraphModule, Sequence[Any]], None],
        path: str = "",
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._note, self._enter = note, enter
        self._path = path  # of the graph: "submodule_0."

    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            value = self._control_flow(n) if n.target in _CONTROL_FLOW else super().run_node(n)
        except Unsupported:
            raise  # of a node in a graph that this one calls
        except Exception as error:
            raise Unsupported(
                f"compare: eager PyTorch does not run node '{self._path}{n.name}' ({_op(n)}): "
                f"{type(error).__name__}: {error}"
            ) from error
        self._note(self._path, n, value)
        return value

    def _control_flow(self, n: torch.fx.Node) -> Any:
        args, _ = self.fetch_args_kwargs_from_env(n)

        def call(i: int, values: Sequence[Any], operands: Sequence[Any]) -> Any:
            self._enter(args[i], operands)
            return _Interpreter(args[i], self._note, self._enter, f"{self._path}{n.args[i].target}.").run(*values)

        if n.target is torch.ops.higher_order.cond:
            predicate, _, _, operands = args
            return call(1 if bool(predicate) else 2, operands, n.args[3])
        _, _, carried, others = args
        # What a loop changes is no weight, whatever it begins with.
        nodes = [None] * len(carried) + list(n.args[3])
        while bool(call(0, (*carried, *others), nodes)):
            carried = call(1, (*carried, *others), nodes)
        return tuple(carried)


def _compare_effects(
    report: _Report, expected: _Effects, outputs: list[Any], inputs: list[Any], states: dict[str, torch.Tensor]
) -> None:
    if len(outputs) != len(expected.outputs):
        raise InvalidArgument(
            f"compare: the package has {len(outputs)} outputs, the reference {len(expected.outputs)}: export the reference "
            "as the package was"
        )
    pairs = [(f"output {i}", ours, eager) for i, (ours, eager) in enumerate(zip(outputs, expected.outputs, strict=True))]
    pairs += [(f"state {name}", states[name], eager) for name, eager in expected.states.items() if name in states]
    pairs += [(f"input {i}", inputs[i], eager) for i, eager in expected.inputs.items()]
    for name, ours, eager in pairs:
        if not isinstance(eager, torch.Tensor) or not isinstance(ours, torch.Tensor):
            continue  # a number that follows from sizes
        if ours.shape != eager.shape or ours.dtype != eager.dtype:
            raise InvalidArgument(
                f"compare: {name} is {_type(ours.dtype, ours.shape)} in the package and {_type(eager.dtype, eager.shape)} in "
                "the reference: export the reference as the package was"
            )
        report.values(name, ours, eager)


def _op(node: torch.fx.Node) -> str:
    from graft.exporter import targets

    try:
        target = targets.resolve(node.target)
    except Error:
        target = None
    return target.name if target is not None else str(node.target)


def _source(node: torch.fx.Node) -> str:
    """The innermost line outside of PyTorch."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    found = ""
    for i, line in enumerate(lines):
        if not line.startswith("File ") or (found and _TORCH in line):
            continue
        where = line.removeprefix("File ").replace('"', "").replace(", line ", ":", 1)
        found = f"{where}: {lines[i + 1]}" if i + 1 < len(lines) else where
    return found


def _least_and_greatest(values: torch.Tensor) -> tuple[float, float]:
    numbers = values[~values.isnan()]
    return (float(numbers.min()), float(numbers.max())) if numbers.numel() else (math.nan, math.nan)


def _type(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _range(limits: tuple[float, float]) -> str:
    return f"{limits[0]:.4g} .. {limits[1]:.4g}"
