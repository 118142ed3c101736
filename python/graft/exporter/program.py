"""Builds the tables of a blob from torch.fx graphs. Knows no operator."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind as _In
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from graft._dtypes import NUMBER_OF
from graft._fb.ArgKind import ArgKind
from graft._fb.InputKind import InputKind
from graft._fb.OutputKind import OutputKind
from graft._fb.Storage import Storage
from graft._fb.ValueKind import ValueKind
from graft.errors import ExportError
from graft.exporter import targets
from graft.exporter.quantization import HALVES, quantize
from graft.exporter.writer import Writer

FORMAT_MAJOR, FORMAT_MINOR = 1, 0
UNBOUNDED = 2**63 - 1
MAX_RANK = 8
_INT_MIN = -(2**63)


class SerializeError(ExportError):
    """A program that the format cannot hold; the message names the node, what was expected and what was found."""


def _name_return_types() -> None:
    """PyTorch registers the classes that its operators return (torch.max, torch.sort, ...), but without the name that
    writing a spec to a file needs."""
    for cls in torch.return_types.all_return_types:
        known = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
        if known is None or known.serialized_type_name != pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            continue
        name = f"torch.return_types.{cls.__name__}"
        pytree.SUPPORTED_SERIALIZED_TYPES[cls] = known._replace(serialized_type_name=name)
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls


_name_return_types()


@dataclass(frozen=True)
class Signature:
    """How a caller sees a method: pytree specs as `treespec_dumps` writes them and the names of the flat inputs."""

    in_spec: str = ""
    out_spec: str = ""
    user_input_names: tuple[str, ...] = ()

    @staticmethod
    def of(program: ExportedProgram) -> "Signature":
        """A spec stays empty when a class in it has no serialized name."""
        call = program.call_spec
        return Signature(_dumps(call.in_spec), _dumps(call.out_spec), tuple(user_input_names(program)))


@dataclass(frozen=True)
class StoredWeight:
    """Where a weight without data in the program lies, and how."""

    key: str  # of the package's data, or the name in files given at load
    byte_size: int  # as stored
    dtype: torch.dtype  # as stored; of the program's own tensor for blocks
    block_type: str = ""  # of ggml ("q8_0") when it is stored in blocks
    packed: bool = False  # these packed for graft's kernels
    sha256: bytes = b""  # of the stored bytes; empty when not known


@dataclass
class Blob:
    data: bytes
    # Key -> the bytes, as an array of u8 that may borrow the tensor's memory. Empty when made without content; without
    # the named ones when these are left out.
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    # (method index, node name) -> (target, reason) for nodes that the format cannot hold (only when not strict).
    problems: dict[tuple[int, str], tuple[str, str]] = field(default_factory=dict)


def user_input_names(program: ExportedProgram) -> list[str]:
    """Names of the flat user inputs, constants included, in the order of the caller's pytree."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == _In.USER_INPUT]
    return [spec.arg.name for spec in specs]


def _dumps(spec: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError:
        return ""


@functools.cache
def _producers() -> tuple[tuple[str, str], ...]:
    found = [("torch", torch.__version__)]
    for name in ("executorch", "graft"):
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def tensor_bytes(tensor: torch.Tensor, what: str) -> np.ndarray:
    """The elements in row-major order as bytes; borrowed when the tensor is on the CPU and contiguous."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        raise SerializeError(f"{what}: expected a tensor with data, found a {type(tensor).__name__} without")
    if tensor.layout != torch.strided:
        raise SerializeError(f"{what}: expected a dense tensor, found layout {tensor.layout}")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if type(flat) is not torch.Tensor and type(flat) is not torch.nn.Parameter:
        raise SerializeError(f"{what}: expected a plain tensor, found {type(tensor).__name__}")
    if flat.numel() == 0:
        return np.empty(0, np.uint8)
    return flat.view(torch.uint8).numpy()


class ProgramBuilder:
    """What methods share: operators, weights, states."""

    def __init__(
        self,
        *,
        strict: bool,
        content: bool,
        content_keys: frozenset[str] = frozenset(),
        leave_out: Mapping[str, str] | None = None,
        quantize: Mapping[str, str] | None = None,
        stored: Mapping[str, StoredWeight] | None = None,
    ) -> None:
        self.strict = strict
        self.content = content
        self.content_keys = content_keys
        self.leave_out = leave_out
        self.quantize = quantize or {}
        self.stored = stored or {}
        self.writer = Writer()
        self.methods: list[int] = []
        self.subgraphs: list[int] = []
        self.weights: dict[str, np.ndarray] = {}
        self.problems: dict[tuple[int, str], tuple[str, str]] = {}
        self._ops: dict[tuple[str, tuple[str, ...]], int] = {}
        self._weight_index: dict[Any, int] = {}
        self._weight_tables: list[dict[str, Any]] = []
        self._key_of_content: dict[Any, str] = {}
        self._taken: set[str] = set()
        self._states: dict[str, int] = {}
        self._state_tables: list[dict[str, Any]] = []

    def op(self, target: str, arg_names: Sequence[str]) -> int:
        return self._ops.setdefault((target, tuple(arg_names)), len(self._ops))

    def weight(self, fqn: str, tensor: torch.Tensor, *, named: bool) -> int:
        """Index of the weight with this content and shape; equal bytes share a key whatever they are called. Named
        weights that are left out share one only when they are one tensor: what a file holds under two names that are
        equal now may differ."""
        if problem := unheld(tensor):
            raise SerializeError(f"weight '{fqn}': {problem}")
        dtype = NUMBER_OF[tensor.dtype]
        sizes = tuple(int(n) for n in tensor.shape)
        if self.content and fqn in self.stored:
            return self._stored_weight(fqn, self.stored[fqn], dtype, sizes)
        named = named and fqn not in self.content_keys
        left_out = named and self.leave_out is not None
        kind = self.quantize.get(fqn) if self.content else None
        if self.content:
            data = tensor_bytes(tensor, f"weight '{fqn}'") if kind is None else quantize(tensor, kind)
            digest = hashlib.sha256(data).digest()
            content: Any = (tensor.data_ptr(), sizes, tensor.stride()) if left_out and data.nbytes else digest
            key = self._key_of_content.get(content)
            identity: Any = (content, dtype, sizes, kind)
        else:
            data, digest, key = None, bytes(32), fqn
            identity = (fqn, dtype, sizes)
        index = self._weight_index.get(identity)
        if index is not None:
            return index
        if data is not None and key is None:
            key = self.leave_out.get(fqn, fqn) if left_out else fqn
            key = key if named and key not in self._taken else f"graft.const.{digest.hex()}"
            self._key_of_content[content] = key
            self._taken.add(key)
            if not left_out:
                self.weights[key] = data
        index = self._weight_index[identity] = len(self._weight_tables)
        table: dict[str, Any] = dict(key=key, fqn=fqn, dtype=dtype, sizes=sizes, sha256=digest)
        table["byte_size"] = math.prod(sizes) * tensor.dtype.itemsize if data is None else data.nbytes
        if kind in HALVES:
            table["dtype"] = NUMBER_OF[HALVES[kind]]
        elif kind is not None:
            table.update(storage=Storage.ggml_block, block_type=kind)
        self._weight_tables.append(table)
        return index

    def _stored_weight(self, fqn: str, stored: StoredWeight, dtype: int, sizes: tuple[int, ...]) -> int:
        """Tied weights have one key."""
        index = self._weight_index.get((stored.key, dtype, sizes))
        if index is None:
            index = self._weight_index[stored.key, dtype, sizes] = len(self._weight_tables)
            self._taken.add(stored.key)
            storage = Storage.panels16 if stored.packed else Storage.ggml_block
            kind = dict(storage=storage, block_type=stored.block_type) if stored.block_type else {}
            self._weight_tables.append(
                dict(
                    key=stored.key,
                    fqn=fqn,
                    dtype=dtype if stored.block_type else NUMBER_OF[stored.dtype],
                    sizes=sizes,
                    byte_size=stored.byte_size,
                    sha256=stored.sha256,
                    **kind,
                )
            )
        return index

    def state(self, fqn: str, tensor: torch.Tensor, *, persistent: bool) -> int:
        if problem := unheld(tensor):
            raise SerializeError(f"state '{fqn}': {problem}")
        dtype = NUMBER_OF[tensor.dtype]
        initial = -1
        left_out = self.leave_out is not None and persistent  # the file given at load may not hold zeros
        if self.content and (left_out or tensor_bytes(tensor, f"state '{fqn}'").any()):
            initial = self.weight(fqn, tensor, named=persistent)
        table = dict(fqn=fqn, dtype=dtype, sizes=tuple(tensor.shape), initial=initial, persistent=persistent)
        index = self._states.get(fqn)
        if index is None:
            index = self._states[fqn] = len(self._state_tables)
            self._state_tables.append(table)
        elif self._state_tables[index] != table:
            raise SerializeError(
                f"state '{fqn}': expected the same dtype, sizes and initial value in every method, "
                f"found {table} after {self._state_tables[index]}"
            )
        return index

    def finish(self) -> Blob:
        w = self.writer
        ops = w.refs([w.table("Op", target=w.string(t), arg_names=w.strings(names)) for t, names in self._ops])
        weights = []
        for t in self._weight_tables:
            refs = dict(key=w.string(t["key"]), fqn=w.string(t["fqn"]), sizes=w.i64s(t["sizes"]))
            if "block_type" in t:
                refs["block_type"] = w.string(t["block_type"])
            weights.append(w.table("Weight", **{**t, **refs, "sha256": w.u8s(t["sha256"])}))
        states = [
            w.table("State", **{**t, "fqn": w.string(t["fqn"]), "sizes": w.i64s(t["sizes"])})
            for t in self._state_tables
        ]
        producers = [w.table("Producer", name=w.string(n), version=w.string(v)) for n, v in _producers()]
        root = w.table(
            "Program",
            major=FORMAT_MAJOR,
            minor=FORMAT_MINOR,
            producers=w.refs(producers),
            required_features=w.strings(["subgraphs"]) if self.subgraphs else w.refs([]),
            ops=ops,
            weights=w.refs(weights),
            states=w.refs(states),
            methods=w.refs(self.methods),
            **({"subgraphs": w.refs(self.subgraphs)} if self.subgraphs else {}),
        )
        return Blob(w.finish(root), self.weights, self.problems)


def unheld(tensor: torch.Tensor) -> str:
    """Why the format cannot hold such a tensor; empty when it can."""
    if tensor.layout != torch.strided:
        return f"expected a dense tensor, found {tensor.layout}"
    if tensor.dtype not in NUMBER_OF:
        return f"expected one of {_dtype_names()}, found {tensor.dtype}"
    if tensor.dim() > MAX_RANK:
        return f"expected at most {MAX_RANK} dimensions, found {tensor.dim()}"
    return ""


def _dtype_names() -> str:
    return ", ".join(str(d).removeprefix("torch.") for d in NUMBER_OF)


class MethodBuilder:
    """One method: values, nodes, inputs, outputs."""

    def __init__(
        self,
        program: ProgramBuilder,
        name: str,
        module: torch.fx.GraphModule | torch.fx.Graph,
        ranges: Mapping[sympy.Expr, ValueRanges],
        *,
        subgraph: bool = False,
    ) -> None:
        self._program = program
        self._subgraph = subgraph
        self._w = program.writer
        self._name = name
        self._module = module
        self._graph = module if isinstance(module, torch.fx.Graph) else module.graph
        self._ranges = ranges
        self._range_cache: dict[sympy.Expr, tuple[int, int]] = {}
        self._bad_values: dict[int, str] = {}
        self._values: list[int] = []
        self._node_tables: list[int] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        # What a node stands for: a value id or a nested list of them.
        self._results: dict[torch.fx.Node, Any] = {}
        self.output_node = next(node for node in reversed(self._graph.nodes) if node.op == "output")
        self._live = self._liveness()

    # Inputs and outputs ------------------------------------------------------------------------------------------

    def is_live(self, node: torch.fx.Node) -> bool:
        return node in self._live

    def user_input(self, node: torch.fx.Node, position: int) -> None:
        """A constant that is no number gets no value: its position has no Input, only a name."""
        value = node.meta.get("val")
        if value is None or isinstance(value, str):
            return
        self._input(node, InputKind.user, position)

    def weight_input(self, node: torch.fx.Node, index: int) -> None:
        self._input(node, InputKind.weight, index)

    def state_input(self, node: torch.fx.Node, index: int) -> None:
        self._input(node, InputKind.state, index)

    def _input(self, node: torch.fx.Node, kind: int, index: int) -> None:
        value = self._value(node.name, node.meta.get("val"))
        self._results[node] = value
        self._inputs.append(self._w.table("Input", value=value, kind=kind, index=index))

    def output(self, kind: int, arg: Any, index: int) -> None:
        if isinstance(arg, torch.fx.Node) and arg not in self._results:
            # A placeholder specialised to a constant that is no number.
            arg = arg.meta.get("val")
        try:
            encoded = self._arg(arg)
        except _Unsupported as e:
            raise SerializeError(f"output {index} of method '{self._name}': {e}") from None
        self._outputs.append(self._w.table("Output", kind=kind, arg=encoded, index=index))

    def plain(self) -> int:
        """The whole method of a graph whose placeholders are all the user's inputs and whose results are all the user's."""
        names = []
        for node in self._graph.nodes:
            if node.op == "placeholder":
                self.user_input(node, len(names))
                names.append(node.name)
        self.nodes()
        for position, arg in enumerate(pytree.tree_leaves(self.output_node.args[0], is_leaf=lambda x: x is None)):
            self.output(OutputKind.user, arg, position)
        return self.finish(Signature(user_input_names=tuple(names)))

    def finish(self, signature: Signature) -> int:
        w = self._w
        if self._program.strict and self._bad_values:
            raise SerializeError("; ".join(self._bad_values.values()))
        return w.table(
            "Method",
            name=w.string(self._name),
            values=w.refs(self._values),
            nodes=w.refs(self._node_tables),
            inputs=w.refs(self._inputs),
            outputs=w.refs(self._outputs),
            in_spec=w.string(signature.in_spec),
            out_spec=w.string(signature.out_spec),
            user_input_names=w.strings(signature.user_input_names),
        )

    # Nodes -------------------------------------------------------------------------------------------------------

    def _liveness(self) -> set[torch.fx.Node]:
        """Nodes that an output needs, or that change something; assertions are neither."""
        live: set[torch.fx.Node] = set()
        for node in reversed(self._graph.nodes):
            if node.op == "output":
                live.add(node)
            elif node.op in ("call_function", "call_method", "call_module"):
                target = targets.resolve(node.target) if node.op == "call_function" else None
                if target is not None and target.is_assertion:
                    continue
                if node not in live and target is not None and not target.mutates:
                    continue
                live.add(node)
            if node in live:
                live.update(node.all_input_nodes)
        return live

    def nodes(self) -> None:
        """All live nodes in graph order. Placeholders must have been declared before."""
        for node in self._graph.nodes:
            if node not in self._live or node.op in ("placeholder", "output"):
                continue
            if node.op == "get_attr":
                self._attribute(node)
            elif targets.is_getitem(node) and isinstance(self._results.get(node.args[0]), list):
                self._results[node] = self._results[node.args[0]][node.args[1]]
            else:
                self._call(node)

    def _attribute(self, node: torch.fx.Node) -> None:
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.fx.GraphModule):
            self._results[node] = self._call_graph(f"{self._name}.{node.target}", value)
            return
        if not isinstance(value, torch.Tensor):
            return  # nodes that use it find no result
        node.meta.setdefault("val", value)
        # Two graphs of control-flow operators may call different constants alike.
        fqn = f"{self._name}.{node.target}" if self._subgraph else str(node.target)
        self.weight_input(node, self._program.weight(fqn, value, named=False))

    def _call_graph(self, name: str, module: torch.fx.GraphModule) -> _Graph:
        """A graph of a control-flow operator."""
        graph = MethodBuilder(self._program, name, module, self._ranges, subgraph=True)
        self._program.subgraphs.append(graph.plain())
        return _Graph(len(self._program.subgraphs) - 1)

    def _call(self, node: torch.fx.Node) -> None:
        target = targets.resolve(node.target) if node.op == "call_function" else None
        name = target.name if target is not None else f"{node.op}.{node.target}"
        results: list[int] = []
        try:
            if target is None:
                raise _Unsupported("expected a call of an operator or of Python arithmetic")
            name, names, args = self._arguments(node, target)
            encoded = [self._arg(arg) for arg in args]
            for value in self._input_values(node):
                if value in self._bad_values:
                    raise _Unsupported(self._bad_values[value])
            if target.mutates:
                raise _Unsupported("changes its argument in place; expected a functional program")
            bad = len(self._bad_values)
            results = self._declare_results(node)
            if len(self._bad_values) > bad:
                raise _Unsupported(list(self._bad_values.values())[bad])
        except (_Unsupported, TypeError) as e:
            if self._program.strict:
                raise SerializeError(f"node '{node.name}' ({name}): {e}") from None
            if not self._subgraph:  # the engine refuses the node that calls it
                self._program.problems[(len(self._program.methods), node.name)] = (name, str(e))
            if not results and node not in self._results:
                results = self._declare_results(node)
            name, names, encoded = f"unsupported.{name}", [], []
        w = self._w
        self._node_tables.append(
            w.table(
                "Node",
                op=self._program.op(name, names),
                name=w.string(node.name),
                args=w.refs(encoded),
                outputs=w.u32s(results),
                origin=w.string(_origin(node)),
            )
        )

    def _input_values(self, node: torch.fx.Node) -> list[int]:
        leaves = [v for n in node.all_input_nodes for v in pytree.tree_leaves(self._results.get(n))]
        return [v for v in leaves if isinstance(v, int)]

    def _arguments(self, node: torch.fx.Node, target: targets.Target) -> tuple[str, list[str], list[Any]]:
        if target.params is None:
            if node.kwargs:
                raise _Unsupported(f"expected arguments by position, found {sorted(node.kwargs)}")
            return target.name, targets.python_arg_names(len(node.args)), list(node.args)
        params, name = target.params, target.name
        if target.adapt is None:
            values = targets.bind(params, node.args, node.kwargs)
        else:
            values = targets.bind(target.own_params, node.args, node.kwargs)
            adapted = target.adapt(dict(values))
            if adapted is None:
                assert target.original is not None and target.original.params is not None
                params, name = target.original.params, target.original.name
            else:
                values = adapted
        return name, [param.name for param in params], targets.complete(params, values)

    def _declare_results(self, node: torch.fx.Node) -> list[int]:
        """Values for all results; remembers how they nest."""
        flat: list[int] = []
        value = node.meta.get("val")
        picks = {n.args[1]: n.name for n in node.users if targets.is_getitem(n)}
        if isinstance(value, (list, tuple)):
            nested = []
            for i, item in enumerate(value):
                name = picks.get(i, f"{node.name}.{i}")
                if isinstance(item, (list, tuple)):
                    ids = [self._value(f"{name}.{j}", leaf) for j, leaf in enumerate(item)]
                    nested.append(ids)
                    flat.extend(ids)
                else:
                    nested.append(self._value(name, item))
                    flat.append(nested[-1])
            self._results[node] = nested
        else:
            self._results[node] = self._value(node.name, value)
            flat.append(self._results[node])
        return flat

    # Values ------------------------------------------------------------------------------------------------------

    def _value(self, name: str, value: Any) -> int:
        w = self._w
        kind, dtype, dims = ValueKind.tensor, 0, None
        if isinstance(value, torch.Tensor):
            if problem := unheld(value):
                self._bad_values[len(self._values)] = f"'{name}': {problem}"
            dtype = NUMBER_OF.get(value.dtype, 0)
            dims = w.refs([self._dim(size, floor=0) for size in value.shape[:MAX_RANK]])
        elif isinstance(value, (bool, torch.SymBool)):
            kind, dtype = ValueKind.bool_, NUMBER_OF[torch.bool]
            if isinstance(value, bool):
                dims = w.refs([self._dim_table(int(value), int(value), str(value))])
        elif isinstance(value, (int, torch.SymInt)):
            kind, dtype = ValueKind.int_, NUMBER_OF[torch.int64]
            dims = w.refs([self._dim(value, floor=_INT_MIN)])
        elif isinstance(value, (float, torch.SymFloat)):
            kind, dtype = ValueKind.float_, NUMBER_OF[torch.float64]
            if isinstance(value, float) and math.isfinite(value) and abs(value) < 2**62:
                # Specialised by export: the expression is the value, the range its floor and ceiling.
                dims = w.refs([self._dim_table(math.floor(value), math.ceil(value), repr(value))])
        elif value is None:
            # A result that the operator did not produce: it has no uses.
            dims = w.refs([self._dim_table(0, 0, "")])
        else:
            self._bad_values[len(self._values)] = (
                f"'{name}': expected a tensor or a number, found {type(value).__name__}"
            )
        self._values.append(w.table("Value", name=w.string(name), kind=kind, dtype=dtype, dims=dims))
        return len(self._values) - 1

    def _dim(self, size: Any, *, floor: int) -> int:
        if isinstance(size, torch.SymInt):
            expr = size.node.expr
            if not expr.is_number:
                low, high = self._range(expr, size.node.shape_env)
                return self._dim_table(max(low, floor), high, str(expr))
            size = int(expr)
        return self._dim_table(size, size, "")

    def _dim_table(self, low: int, high: int, text: str) -> int:
        w = self._w
        return w.shared(("dim", low, high, text), lambda: self._write_dim(low, high, text))

    def _write_dim(self, low: int, high: int, text: str) -> int:
        expr = self._w.string(text) if text else None
        return self._w.table("Dim", min=low, max=high, expr=expr)

    def _range(self, expr: sympy.Expr, shape_env: Any) -> tuple[int, int]:
        found = self._range_cache.get(expr)
        if found is None:
            found = self._range_cache[expr] = self._bounds(expr, shape_env)
        return found

    def _bounds(self, expr: sympy.Expr, shape_env: Any) -> tuple[int, int]:
        symbols = {}
        for symbol in expr.free_symbols:
            bounds = self._ranges.get(symbol)
            if bounds is None:
                bounds = shape_env.var_to_range.get(symbol, ValueRanges(-int_oo, int_oo))
            symbols[symbol] = _admitted(symbol, bounds)
        if expr in symbols:
            bounds = symbols[expr]
        else:
            try:
                bounds = bound_sympy(expr, symbols)
            except Exception:  # sympy's handlers raise arbitrary exceptions on 0 / 0 and the like
                bounds = ValueRanges(-int_oo, int_oo)
        return _to_int64(bounds.lower, _INT_MIN, math.floor), _to_int64(bounds.upper, UNBOUNDED, math.ceil)

    # Arguments ---------------------------------------------------------------------------------------------------

    def _arg(self, arg: Any) -> int:
        if isinstance(arg, torch.fx.Node):
            result = self._results.get(arg)
            if result is None:
                raise _Unsupported(f"expected tensors and numbers, found '{arg.name}'")
            return self._ids(result)
        if isinstance(arg, (list, tuple)):
            items = [self._arg(item) for item in arg]
            w = self._w
            return w.shared(("list", *items), lambda: w.table("Arg", kind=ArgKind.list, items=w.refs(items)))
        return self._constant(arg)

    def _ids(self, result: Any) -> int:
        w = self._w
        if isinstance(result, _Graph):
            return self._leaf(ArgKind.graph, i=result.index)
        if isinstance(result, list):
            items = [self._ids(item) for item in result]
            return w.shared(("list", *items), lambda: w.table("Arg", kind=ArgKind.list, items=w.refs(items)))
        return self._leaf(ArgKind.value, i=result)

    def _constant(self, arg: Any) -> int:
        if arg is None:
            return self._leaf(ArgKind.none)
        if isinstance(arg, bool):
            return self._leaf(ArgKind.bool_, i=int(arg))
        if isinstance(arg, torch.SymInt) and arg.node.expr.is_number:
            arg = int(arg)
        if isinstance(arg, int):
            if not _INT_MIN <= arg <= UNBOUNDED:
                raise _Unsupported(f"expected a 64-bit integer, found {arg}")
            return self._leaf(ArgKind.int_, i=arg)
        if isinstance(arg, float):
            return self._leaf(ArgKind.float_, f=arg)
        if isinstance(arg, str):
            return self._leaf(ArgKind.string_, s=arg)
        if isinstance(arg, torch.dtype):
            number = NUMBER_OF.get(arg)
            if number is None:
                raise _Unsupported(f"expected one of {_dtype_names()}, found {arg}")
            return self._leaf(ArgKind.dtype, i=number)
        if isinstance(arg, torch.layout):
            return self._leaf(ArgKind.layout, s=str(arg).removeprefix("torch."))
        if isinstance(arg, torch.memory_format):
            return self._leaf(ArgKind.memory_format, s=str(arg).removeprefix("torch."))
        if isinstance(arg, torch.device):
            return self._leaf(ArgKind.device, s=str(arg))
        raise _Unsupported(f"expected a constant of a kind the format has, found {type(arg).__name__} {arg!r}")

    def _leaf(self, kind: int, *, i: int = 0, f: float = 0.0, s: str | None = None) -> int:
        w = self._w
        # The key is repr, which distinguishes -0.0 from 0.0 and matches NaN; a float does neither.
        return w.shared(
            ("arg", kind, i, repr(f), s),
            lambda: w.table("Arg", kind=kind, i=i, f=f, s=None if s is None else w.string(s)),
        )


@dataclass(frozen=True)
class _Graph:
    """What a node stands for that names a graph."""

    index: int  # into Program.subgraphs


class _Unsupported(Exception):
    """A node that the format cannot hold."""


def _admitted(symbol: sympy.Symbol, bounds: ValueRanges) -> ValueRanges:
    """Sizes a program takes at run time. Export never traces sizes 0 and 1 of a dynamic dimension and so writes 2 as
    the lower bound of an input's size, and of a size that depends on data where it follows from these (a row or more of
    each of two texts); PyTorch itself checks lower bounds above 2 only, and so do we."""
    lower = bounds.lower
    if symbol.name.startswith(("s", "u")) and lower == 2:
        lower = 0
    return ValueRanges(lower, bounds.upper)


def _to_int64(bound: Any, infinite: int, rounded: Any) -> int:
    if bound in (int_oo, -int_oo, sympy.oo, -sympy.oo) or bound.is_finite is False or bound is sympy.nan:
        return infinite
    return max(_INT_MIN, min(UNBOUNDED, int(rounded(bound))))


def _origin(node: torch.fx.Node) -> str:
    """Path of the module whose code made the node; empty at the top and when unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    if path.startswith("_empty_nn_module_stack"):
        return ""
    return path.removeprefix("L['self'].").removeprefix("L['self']")
