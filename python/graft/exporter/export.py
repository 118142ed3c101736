"""`graft.export`: from a PyTorch model to a package."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from graft.exporter import exir  # noqa: F401  isort: skip  (before executorch.exir)
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._serialize import serialize_for_executorch
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.sym_util import eval_expr, eval_upper_bound
from executorch.exir.tensor import TensorSpec
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils import _pytree as pytree

from graft._files import unfinished
from graft.errors import ExportError, raised_by, typed
from graft.exporter import control_flow, parts, quiet, stored_plans, targets, torch_export
from graft.exporter.complex_pairs import without_complex
from graft.exporter.options import ExportOptions
from graft.exporter.partitioner import GraftPartitioner, Undelegated
from graft.exporter.predicate import Predicate
from graft.exporter.quantization import stored_types
from graft.exporter.serialize import Signature, weight_digests
from graft.exporter.specs import option_specs

_METHOD_FIELDS = {"model", "args", "kwargs", "dynamic_shapes"}
_WEIGHTS = ("package", "ptd", "external")
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@typed
def export(
    model: torch.nn.Module | ExportedProgram | str | os.PathLike[str] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    path: str | os.PathLike[str],
    methods: Mapping[str, Any] | None = None,
    allow_fallback: bool = False,
    weights: str = "package",
    quantize: str | Mapping[str, str] | None = None,
    plans: Sequence[Any] | Mapping[str, Sequence[Any]] = (),
    options: ExportOptions | None = None,
) -> Path:
    """Writes a model as a package (.pte) for `graft.load` and ExecuTorch's runtime.

        graft.export(net, (torch.randn(2, 16),), path="net.pte")
        rows = torch.export.Dim("rows", min=1, max=512)
        graft.export(net, (torch.randn(2, 16),), dynamic_shapes=({0: rows},), path="net.pte", quantize="q8_0")
        graft.export(methods={"encode": {"model": encoder, "args": (x,)}, "decode": exported}, path="both.pte")

    model: a module in evaluation mode, an ExportedProgram, or the path of a .pt2 file. Becomes the method "forward".
    args, kwargs: example arguments of a module, as torch.export.export takes them. Their dtypes, and their sizes where
        `dynamic_shapes` says nothing, become the program's.
    dynamic_shapes: which sizes may change, and within which bounds, as torch.export.export takes it. None: no size.
        ExecuTorch's runtime takes no size above the example's where there is no upper bound, of which a RuntimeWarning
        tells; `graft.load` takes any.
    path: of the package, ending in .pte. A file there is replaced; a failed export leaves it as it was.
    methods: instead of `model`, several by name: each an ExportedProgram, the path of a .pt2 file, or a dict with "model"
        and optionally "args", "kwargs" and "dynamic_shapes". Weights that they share are stored once.
    allow_fallback: leave nodes that graft does not run to ExecuTorch's kernels: such a package takes ExecuTorch's runtime,
        also in `graft.load`. A RuntimeWarning names operators that have no kernel there either. By default such nodes are a
        `graft.ExportError` that lists them.
    weights: where parameters and buffers go. "package": into the .pte. "ptd": beside it, into a .ptd of the same stem.
        "external": nowhere; `graft.load(path, weights=[...])` finds parameters and persistent buffers by their names in
        safetensors, GGUF or .ptd files, and what the exporter made (constants, other buffers) is in the .pte.
    quantize: a type to store f32 matrices as that linear layers and embeddings alone read: "f16", "bf16" or a block format
        of ggml ("q8_0", "q4_0", "q4_k", "q6_k", ...); or types by patterns of names, {"*": "q8_0", "head": "q6_k"}, of
        which the last that fits counts. A RuntimeWarning names weights whose rows do not divide into blocks, and the type
        that they got instead. Not with weights="external".
    plans: calls whose plans the package holds, so that their first run is not planned: tuples of example arguments, or
        pairs of a tuple and a dict of keyword arguments; of other methods than "forward", lists of them by method. They
        serve the version, device, instruction set and number of threads that they were made with; elsewhere a call is
        planned as without. Not with weights="external".
    options: what is rarely set; see `graft.ExportOptions`.

    Returns the path. Raises `graft.ExportError`, which names the node or argument, what was expected and what was found,
    and whatever torch.export raises for a module that it cannot trace.
    """
    with raised_by("export"):
        return _export(
            Path(path),
            lambda: _programs(model, args, kwargs, dynamic_shapes, methods),
            allow_fallback,
            weights,
            quantize,
            plans if isinstance(plans, Mapping) else {"forward": plans} if plans else {},
            options or ExportOptions(),
        )


def export_for_load(
    program: ExportedProgram,
    path: Path,
    *,
    quantize: str | Mapping[str, str] | None = None,
    weights: str = "package",
    data: Mapping[str, bytes] | None = None,
) -> Path:
    """`export` of a program that graft alone runs: nothing is said of what ExecuTorch's runtime would not do. data: more that
    the package holds, by name."""
    with raised_by("export"):
        return _export(
            path,
            lambda: {"forward": _borrow(program)},
            False,
            weights,
            quantize,
            {},
            ExportOptions(),
            warn=False,
            data=data,
        )


def lower(program: ExportedProgram) -> ExportedProgram:
    """The program with the nodes, and names of nodes, that its package has: decomposed as far as graft needs it."""
    with torch.no_grad(), quiet.lowering(), torch_export.tracing():
        prepared = _prepared(_borrow(program))
        manager = to_edge_transform_and_lower(prepared, partitioner=[Undelegated()], compile_config=_edge_config())
    return manager.exported_program()


def _prepared(program: ExportedProgram) -> ExportedProgram:
    """What graft runs only in parts, for which ExecuTorch's compiler has no rule, is in parts."""
    return parts.without_antialiased(without_complex(control_flow.without_writes(program)))


def _edge_config() -> EdgeCompileConfig:
    return EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False)


def _export(
    target: Path,
    make_programs: Callable[[], dict[str, ExportedProgram]],
    allow_fallback: bool,
    weights: str,
    quantize: str | Mapping[str, str] | None,
    plans: Mapping[str, Sequence[Any]],
    options: ExportOptions,
    warn: bool = True,
    data: Mapping[str, bytes] | None = None,  # more that the package holds, by name
) -> Path:
    if target.suffix != ".pte":
        raise ExportError(f"expected a path that ends in .pte, found '{target}'")
    if weights not in _WEIGHTS:
        raise ExportError(f"expected weights to be one of {', '.join(map(repr, _WEIGHTS))}, found {weights!r}")
    if quantize is not None and weights == "external":
        raise ExportError("expected weights in the package or a .ptd with quantize: quantized weights are new ones")
    if plans and weights == "external":
        raise ExportError("expected weights in the package or a .ptd with plans: planning loads the package")
    planned_shapes = _PlannedShapes()
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=options.plan_inputs, alloc_graph_output=options.plan_outputs
        ),
        sym_shape_eval_pass=planned_shapes,
    )
    with torch.no_grad(), quiet.lowering(), torch_export.tracing():
        programs = {name: _prepared(one) for name, one in make_programs().items()}
        specs = [CompileSpec(*spec) for spec in option_specs(options.delegate_options or {})]
        partitioners = _partitioners(programs, weights, target.stem, options.predicate, quantize, specs)
        manager = to_edge_transform_and_lower(
            programs,
            partitioner={name: [partitioner] for name, partitioner in partitioners.items()},
            constant_methods=dict(options.constant_methods or {}),
            compile_config=_edge_config(),
        )
        if not allow_fallback:
            _require_delegated(manager, partitioners)
        else:
            _require_bounds({name: manager.exported_program(name) for name in programs})
        if not options.plan_outputs:
            _require_own_outputs({name: manager.exported_program(name) for name in programs})
        try:
            program = manager.to_executorch(config)
        except GuardOnDataDependentSymNode as e:
            raise ExportError(
                "expected results whose sizes depend on data in their first dimension alone, which is what "
                f"ExecuTorch can order: {str(e).splitlines()[0]}"
            ) from e
    if warn:
        planned_shapes.warn()
    if allow_fallback:
        _warn_of_missing_kernels(program.executorch_program, partitioners)
    if data:
        _add_data(program, config, data)
    if plans:
        _add_plans(program, config, target, plans, options.plan_threads)
    _write(program, target)
    return target


def _programs(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, methods: Any
) -> dict[str, ExportedProgram]:
    if (model is None) == (methods is None):
        raise ExportError("expected either a model or methods, found " + ("both" if methods else "neither"))
    if methods is None:
        return {"forward": _program(model, args, kwargs, dynamic_shapes, "forward")}
    if args or kwargs or dynamic_shapes is not None:
        raise ExportError("expected args, kwargs and dynamic_shapes inside each entry of methods")
    if not methods:
        raise ExportError("expected at least one method, found none")
    programs = {}
    for name, entry in methods.items():
        if not isinstance(entry, Mapping):
            entry = {"model": entry}
        if "model" not in entry or not entry.keys() <= _METHOD_FIELDS:
            raise ExportError(
                f"method '{name}': expected 'model' and optionally 'args', 'kwargs', 'dynamic_shapes', "
                f"found {sorted(entry)}"
            )
        programs[name] = _program(
            entry["model"], entry.get("args", ()), entry.get("kwargs"), entry.get("dynamic_shapes"), name
        )
    return programs


def _program(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, method: str
) -> ExportedProgram:
    if isinstance(model, torch.nn.Module):
        args, kwargs = _apart((tuple(args), dict(kwargs or {})))
        return torch_export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)
    if args or kwargs or dynamic_shapes is not None:
        raise ExportError(
            f"method '{method}': expected args, kwargs and dynamic_shapes with a module only; "
            "a program exported before has its own"
        )
    if isinstance(model, ExportedProgram):
        return _borrow(model)
    if isinstance(model, (str, os.PathLike)):
        return torch.export.load(model)
    raise ExportError(
        f"method '{method}': expected a torch.nn.Module, an ExportedProgram or the path of a .pt2 file, "
        f"found {type(model).__name__}"
    )


def _apart(inputs: Any) -> Any:
    """The same inputs where no tensor occurs twice: torch.export takes one tensor given for two arguments as a promise
    that they are always the same, and the program would never look at the second."""
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.clone()

    return pytree.tree_map(own, inputs)


def _borrow(program: ExportedProgram) -> ExportedProgram:
    """The same program with dictionaries of its own: lowering takes entries out of them, and the caller's program must
    stay as it is. The tensors are shared."""
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict=dict(program.state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=[program.verifier],
    )


def _partitioners(
    programs: Mapping[str, ExportedProgram],
    weights: str,
    stem: str,
    predicate: Predicate | None,
    quantize: str | Mapping[str, str] | None,
    compile_specs: Sequence[CompileSpec],
) -> dict[str, GraftPartitioner]:
    content_keys = _ambiguous_names(programs)
    states = set().union(*map(_written_buffers, programs.values())) - content_keys if len(programs) > 1 else set()
    partitioners = {}
    for name, program in programs.items():
        signature = Signature.of(program)
        for what, spec, text in (
            ("arguments", program.call_spec.in_spec, signature.in_spec),
            ("results", program.call_spec.out_spec, signature.out_spec),
        ):
            if not text:
                raise ExportError(
                    f"method '{name}': expected {what} of classes that torch.utils._pytree can name in a "
                    "file (serialized_type_name of torch.export.register_dataclass, or "
                    f"torch.utils._pytree._register_namedtuple), found {spec}"
                )
        partitioners[name] = GraftPartitioner(
            compile_specs,
            method=name,
            signature=signature,
            external_weights=stem if weights == "ptd" else None,
            leave_out=_first_names(program) if weights == "external" else None,
            quantize=stored_types(program, quantize) if quantize is not None else None,
            content_keys=content_keys,
            states=states,
            predicate=predicate,
        )
    return partitioners


def _first_names(program: ExportedProgram) -> dict[str, str]:
    """Of each tied weight, the name that a checkpoint has it under: the first. torch's lowering keeps another one."""
    first: dict[Any, str] = {}
    names = {}
    for name, tensor in program.state_dict.items():
        memory = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() > 0 and first.setdefault(memory, name) != name:
            names[name] = first[memory]
    return names


def _ambiguous_names(programs: Mapping[str, ExportedProgram]) -> set[str]:
    """Names that stand for different weights in different methods."""
    if len(programs) < 2:
        return set()
    seen: dict[str, bytes] = {}
    ambiguous = set()
    for program in programs.values():
        for name, digest in weight_digests(program).items():
            if seen.setdefault(name, digest) != digest:
                ambiguous.add(name)
    return ambiguous


def _written_buffers(program: ExportedProgram) -> set[str]:
    """Buffers that a program writes: results that it hands back, or the first argument of an operator like `add_` and
    of views of it."""
    signature = program.graph_signature
    roots = dict(signature.inputs_to_buffers)  # node -> the buffer that it is, or views
    written = set(signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema
        for argument, value in zip(schema.arguments, node.args):
            if not isinstance(value, torch.fx.Node) or value.name not in roots or argument.alias_info is None:
                continue
            if argument.alias_info.is_write:
                written.add(roots[value.name])
            roots.setdefault(node.name, roots[value.name])
    return written


def _require_delegated(manager: Any, partitioners: Mapping[str, GraftPartitioner]) -> None:
    refused: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, partitioner in partitioners.items():
        left = _left_over(manager.exported_program(name).graph_module)
        # Nodes that only accompany a refused one (its list items, sizes left to it) are not listed.
        for node in [node for node in left if node.name in partitioner.refused] or left:
            target = targets.resolve(node.target)
            what = target.name if target is not None else str(node.target)
            _, reason = partitioner.refused.get(node.name, (what, "not delegated"))
            refused[name, what, reason].append(node.name)
    if not refused:
        return
    lines = []
    for (name, what, reason), nodes in refused.items():
        shown = ", ".join(f"'{node}'" for node in nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        lines.append(f"  {name}: {what} (node {shown}): {reason}")
    raise ExportError(
        f"expected a model that graft runs whole, found {sum(map(len, refused.values()))} nodes that it does "
        "not run; allow_fallback=True leaves them to ExecuTorch's kernels\n" + "\n".join(lines)
    )


def _require_bounds(programs: Mapping[str, ExportedProgram]) -> None:
    """ExecuTorch's kernels write into memory that is planned."""
    for name, program in programs.items():
        for node in _left_over(program.graph_module):
            for value in pytree.tree_leaves(node.meta.get("val")):
                sizes = value.shape if isinstance(value, torch.Tensor) else ()
                if any(not _has_upper_bound(size) for size in sizes):
                    target = targets.resolve(node.target)
                    raise ExportError(
                        f"method '{name}': node '{node.name}' ({target.name if target else node.target}), which is left to "
                        f"ExecuTorch: expected sizes with an upper bound, found {tuple(sizes)}; torch._check(size <= N) in "
                        "the model gives one"
                    )


def _has_upper_bound(size: int | torch.SymInt) -> bool:
    try:
        eval_upper_bound(size)
    except RuntimeError:
        return False
    return True


def _require_own_outputs(programs: Mapping[str, ExportedProgram]) -> None:
    """ExecuTorch knows an output that is an input as one tensor: memory set for the output would hide the input."""
    for name, program in programs.items():
        inputs = set(program.graph_signature.user_inputs)
        for i, output in enumerate(program.graph_signature.user_outputs):
            if isinstance(output, str) and output in inputs:
                raise ExportError(
                    f"method '{name}': expected outputs of their own with plan_outputs=False, found that output "
                    f"{i} is the input '{output}' itself; return a clone of it"
                )


def _warn_of_missing_kernels(program: Any, partitioners: Mapping[str, GraftPartitioner]) -> None:
    """ExecuTorch finds out only when it loads the method, and says no more than a number."""
    from executorch.runtime import Runtime

    known = Runtime.get().operator_registry.operator_names
    for plan in program.execution_plan:
        for op in plan.operators:
            name = f"{op.name}.{op.overload}" if op.overload else op.name
            if name in known:
                continue
            target = op.name.replace("::", ".") + "."
            refused = partitioners[plan.name].refused if plan.name in partitioners else {}
            reasons = [f"node '{node}': {text}" for node, (of, text) in refused.items() if of.startswith(target)]
            why = f" ({reasons[0]})" if reasons else ""
            warnings.warn(
                f"export: method '{plan.name}': {name} is left to ExecuTorch{why}, "
                "which has no kernel for it here; the method loads only where one is registered",
                RuntimeWarning,
                stacklevel=3,
            )


def _left_over(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Calls outside the delegates."""
    delegates = {n for n in module.graph.nodes if n.op == "call_function" and n.target is executorch_call_delegate}
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function"
        and node not in delegates
        and not (targets.is_getitem(node) and node.args[0] in delegates)
    ]


def _upper_bound(size: int | torch.SymInt) -> int | None:
    """0 for a size that depends on data and has no bound: ExecuTorch refuses to hold such an output when it is made."""
    try:
        return eval_upper_bound(size)
    except RuntimeError:
        return 0


def _admits_more(size: torch.SymInt, given: int) -> bool:
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return upper.is_finite is False or bool(upper > given)


class _PlannedShapes(PassBase):
    """Sizes for ExecuTorch's memory plan: upper bounds, and those of the example where there is none or where the
    upper bound is beyond what its files can hold. graft's own loader plans on real sizes and reads none of this."""

    _LARGEST_SIZE = 2**31 - 1  # sizes are 32-bit in program.fbs
    _LARGEST_TENSOR = 2**40  # bytes; more than any memory, and far from overflow in sums of 64-bit offsets

    def __init__(self) -> None:
        super().__init__()
        self._capped: dict[tuple[str, int], int] = {}  # (input, dimension) -> the example's size

    def warn(self) -> None:
        """Of inputs that ExecuTorch takes no larger than the example's."""
        if not self._capped:
            return
        found = ", ".join(f"dimension {d} of '{name}' ({size})" for (name, d), size in self._capped.items())
        warnings.warn(
            "export: ExecuTorch's runtime reserves memory for the largest sizes and takes none above the example's "
            f"where there is no upper bound, or one beyond any memory: {found}. graft.load takes any. Give the "
            "dimension an upper bound, Dim(..., max=...)",
            RuntimeWarning,
            stacklevel=4,
        )

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        for module in graph_module.modules():
            if not isinstance(module, torch.fx.GraphModule):
                continue
            for node in module.graph.nodes:
                if node.op == "placeholder" and isinstance(node.meta.get("val"), _SYMBOLIC):
                    # By default None, which matches no number. ExecuTorch takes this one value, graft any.
                    node.meta["spec"] = node.meta["val"].node.hint
                for spec in pytree.tree_leaves(node.meta.get("spec")):
                    if isinstance(spec, TensorSpec):
                        self._fix(node, spec)
        return PassResult(graph_module, True)

    def _fix(self, node: torch.fx.Node, spec: TensorSpec) -> None:
        shape = [_upper_bound(size) for size in spec.shape]
        stride = [_upper_bound(step) for step in spec.stride]
        total = spec.dtype.itemsize
        for size in shape:
            total *= size
        if total > self._LARGEST_TENSOR or any(not 0 <= size <= self._LARGEST_SIZE for size in shape):
            shape = [eval_expr(size) for size in spec.shape]
            stride = [eval_expr(step) for step in spec.stride]
        if None in shape or None in stride:
            raise ExportError(
                f"node '{node.name}': expected sizes with an upper bound where they depend on data, "
                f"found {tuple(spec.shape)}"
            )
        if node.op == "placeholder":
            for d, (size, given) in enumerate(zip(spec.shape, shape)):
                if isinstance(size, torch.SymInt) and _admits_more(size, given):
                    self._capped[node.name, d] = given
        spec.shape = shape
        spec.stride = stride


def _add_plans(
    program: Any, config: ExecutorchBackendConfig, target: Path, plans: Mapping[str, Sequence[Any]], threads: int
) -> None:
    with unfinished(target.parent, target.name) as folder:
        first = folder / target.name
        _write(program, first)
        made = stored_plans.of_calls(first, plans, weights=sorted(folder.glob("*.ptd")), threads=threads)
    _add_data(program, config, made)


def _add_data(program: Any, config: ExecutorchBackendConfig, data: Mapping[str, bytes]) -> None:
    named = program._named_data or NamedDataStoreOutput(buffers=[], pte_data={}, external_data={})
    entries = {key: DataEntry(len(named.buffers) + i, 16, None) for i, key in enumerate(data)}
    program._pte_data, program._tensor_data = serialize_for_executorch(
        program._emitter_output,
        config,
        program._data_serializer,
        NamedDataStoreOutput(
            buffers=[*named.buffers, *data.values()],
            pte_data={**named.pte_data, **entries},
            external_data=named.external_data,
        ),
    )


def _write(program: Any, path: Path) -> None:
    """Both files appear whole or not at all; the .ptd first, since the .pte asks for it."""
    with unfinished(path.parent, path.name) as folder:
        made = folder / path.name
        with open(made, "wb") as file:
            program.write_to_file(file)
        data = folder / "data"
        data.mkdir()
        program.write_tensor_data_to_file(str(data))
        extras = list(data.iterdir())
        for file in (made, *extras):
            _flush(file)
        if extras:  # a process that is killed in between must not leave an old program beside new weights
            path.unlink(missing_ok=True)
        for extra in extras:
            os.replace(extra, path.parent / extra.name)
        os.replace(made, path)


def _flush(path: Path) -> None:
    """To the disk: after a crash the name must not stand for lost bytes."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


__all__ = ["export", "export_for_load", "lower"]
