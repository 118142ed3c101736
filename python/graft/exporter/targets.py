"""Names of operators and the order of their arguments: what a node of torch.fx calls, in words of the IR.

Nothing here knows an operator: names follow from PyTorch's own registry by rule.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

# Assertions: they hold for every input within the exported ranges, and planning checks sizes again.
_ASSERTIONS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._functional_assert_async.msg",
        "aten._functional_assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._functional_sym_constrain_range.default",
        "aten._functional_sym_constrain_range_for_size.default",
        "aten._make_dep_token.default",
    }
)

# ExecuTorch's operators that take a dimension order where ATen has a memory format.
_DIM_ORDER_TWINS = {
    "dim_order_ops._to_dim_order_copy.default": ("_to_copy", "default"),
    "dim_order_ops._clone_dim_order.default": ("clone", "default"),
    "dim_order_ops._empty_dim_order.default": ("empty", "memory_format"),
}

# Enumerations of c10 by number: schema defaults of these types come as integers.
_ENUMS: dict[str, dict[int, Any]] = {
    "MemoryFormat": dict(
        enumerate((torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d))
    ),
    "ScalarType": {
        0: torch.uint8,
        1: torch.int8,
        2: torch.int16,
        3: torch.int32,
        4: torch.int64,
        5: torch.float16,
        6: torch.float32,
        7: torch.float64,
        11: torch.bool,
        15: torch.bfloat16,
    },
    "Layout": {0: torch.strided},
}

_PYTHON_ARG_NAMES = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Param:
    """One argument of an operator's schema."""

    name: str
    required: bool
    default: Any
    is_float: bool  # an int given for it is stored as a float
    list_size: int | None  # a single number given for it is repeated so often (0: a list of unknown length)
    enum: str  # "MemoryFormat", "ScalarType" or "Layout" where the schema writes a default as a number; else ""
    kind: str  # type of an item or of the argument itself: "int", "float", "bool", "str", "Tensor", ...


@dataclass(frozen=True)
class Target:
    name: str
    params: tuple[Param, ...] | None  # None: Python function, arguments by position
    mutates: bool = False
    # Node arguments by name -> arguments of `params` by name; None when the instance cannot be renamed.
    adapt: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    original: "Target | None" = None  # what the node is called when `adapt` gives None
    own_params: tuple[Param, ...] = field(default=())  # of the node's own target, when `adapt` is set

    @property
    def is_assertion(self) -> bool:
        return self.name in _ASSERTIONS


def _param(argument: torch._C.Argument) -> Param:
    plain = argument.type
    if isinstance(plain, torch._C.OptionalType):
        plain = plain.getElementType()
    list_size = None
    if isinstance(plain, torch._C.ListType):
        plain = plain.getElementType()
        if isinstance(plain, (torch._C.IntType, torch._C.FloatType, torch._C.BoolType)):
            list_size = argument.N or 0
    real = argument.real_type
    if isinstance(real, torch._C.OptionalType):
        real = real.getElementType()
    return Param(
        name=argument.name,
        required=not argument.has_default_value(),
        default=argument.default_value if argument.has_default_value() else None,
        is_float=isinstance(plain, torch._C.FloatType),
        list_size=list_size,
        enum=str(real) if str(real) in _ENUMS else "",
        kind=str(real.getElementType() if isinstance(real, torch._C.ListType) else real),
    )


def _params(op: OpOverload) -> tuple[Param, ...]:
    return tuple(_param(argument) for argument in op._schema.arguments)


def op_name(op: OpOverload) -> str:
    return f"{op.namespace}.{op._schema.name.split('::', 1)[1]}.{op._schema.overload_name or 'default'}"


def _view_twin(op: OpOverload) -> OpOverload | None:
    """`aten.view` for `aten.view_copy`: same schema, no copy. A functional graph cannot tell them apart."""
    name = op._schema.name.split("::", 1)[1]
    if op.namespace != "aten" or name.startswith("_") or not name.endswith("_copy"):
        return None
    packet = getattr(torch.ops.aten, name[: -len("_copy")], None)
    twin = getattr(packet, op._schema.overload_name or "default", None)
    if twin is None or [a.name for a in twin._schema.arguments] != [a.name for a in op._schema.arguments]:
        return None
    return twin


def _without_dim_order(values: dict[str, Any]) -> dict[str, Any] | None:
    order = values.pop("dim_order", None)
    if order is not None and list(order) != list(range(len(order))):
        return None
    return values


def _overload(op: OpOverload) -> Target:
    name = op_name(op)
    twin = _DIM_ORDER_TWINS.get(name)
    if twin is not None:
        aten = getattr(getattr(torch.ops.aten, twin[0]), twin[1])
        own = _params(op)
        return Target(
            name=op_name(aten),
            params=_params(aten),
            adapt=_without_dim_order,
            original=Target(name, own),
            own_params=own,
        )
    op = _view_twin(op) or op
    return Target(op_name(op), _params(op), mutates=op._schema.is_mutable)


@functools.cache
def resolve(target: Any) -> Target | None:
    """What a call_function node calls; None for something that is no operator at all."""
    if not isinstance(target, OpOverload):
        # An edge operator wraps the ATen one.
        target = getattr(target, "_op", target)
    if isinstance(target, OpOverload):
        return _overload(target)
    if isinstance(target, HigherOrderOperator):
        return Target(f"higher_order.{target.name()}", None)
    if callable(target) and getattr(target, "__module__", None) in ("_operator", "operator", "builtins", "math"):
        return Target(f"python.{target.__name__}", None)
    if callable(target) and getattr(target, "__module__", "").split(".")[0] == "torch":
        return Target(f"python.{target.__name__}", None)
    return None


def bind(params: tuple[Param, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, without those left out. Raises TypeError for one the schema lacks."""
    if len(args) > len(params):
        raise TypeError(f"takes {len(params)} arguments, found {len(args)}")
    values = {param.name: arg for param, arg in zip(params, args, strict=False)}
    names = {param.name for param in params}
    for name, value in kwargs.items():
        if name not in names or name in values:
            raise TypeError(f"{'repeated' if name in values else 'unknown'} argument '{name}'")
        values[name] = value
    return values


_KINDS = {
    "int": (int, torch.SymInt),
    "float": (int, float, torch.SymInt, torch.SymFloat),
    "bool": (bool, torch.SymBool),
    "str": (str,),
    "number": (bool, int, float, complex, torch.SymBool, torch.SymInt, torch.SymFloat),
    # `x * 2` has a number where the schema has a tensor.
    "Tensor": (torch.Tensor, bool, int, float, complex, torch.SymBool, torch.SymInt, torch.SymFloat),
}


def _check_kind(param: Param, value: Any) -> None:
    """Raises TypeError for a value of another kind than the schema's: no reader may guess what it means."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_kind(param, item)
        return
    found = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    allowed = _KINDS.get(param.kind)
    if found is None or allowed is None or isinstance(found, allowed):
        return
    if isinstance(found, (list, tuple)):  # a node with several results given for a list
        return
    shown = f"'{value.name}'" if isinstance(value, torch.fx.Node) else repr(value)
    raise TypeError(f"argument '{param.name}' must be of kind {param.kind}, found {type(found).__name__} {shown}")


def complete(params: tuple[Param, ...], values: dict[str, Any]) -> list[Any]:
    """All arguments in schema order, defaults filled in. Raises TypeError when a required one is missing or one is of
    another kind than the schema says."""
    result = []
    for param in params:
        if param.name in values:
            value = values[param.name]
            _check_kind(param, value)
        elif param.required:
            raise TypeError(f"missing argument '{param.name}'")
        else:
            value = param.default
            if param.enum and isinstance(value, int):
                value = _ENUMS[param.enum][value]
        if param.list_size is not None and isinstance(value, (int, float, torch.fx.Node)) and value is not None:
            if not (isinstance(value, torch.fx.Node) and param.list_size == 0):
                value = [value] * max(param.list_size, 1)
        if param.is_float:
            if isinstance(value, (list, tuple)):
                value = [float(v) if isinstance(v, int) else v for v in value]
            elif isinstance(value, int):
                value = float(value)
        result.append(value)
    return result


def python_arg_names(count: int) -> list[str]:
    if count > len(_PYTHON_ARG_NAMES):
        raise TypeError(f"more than {len(_PYTHON_ARG_NAMES)} arguments")
    return list(_PYTHON_ARG_NAMES[:count])


def is_getitem(node: torch.fx.Node) -> bool:
    """Picks one result of a node that has several."""
    return node.op == "call_function" and node.target is operator.getitem
