"""Complex tensors inside a program become two real ones, since the engine has no dtype for them.

What rotary embeddings and their like use: made of real tensors or kept as constants, multiplied, moved, and taken apart
again. A complex argument or result of the program, and an operator that is not listed here, stay; they are refused later by name.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from graft.exporter import targets

_aten = torch.ops.aten
_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def without_complex(program: ExportedProgram) -> ExportedProgram:
    """The program that is given stays as it is; one without complex values is given back."""
    if not any(_is_complex(node) for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    state, constants = dict(program.state_dict), dict(program.constants)
    found = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=state,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=program.verifiers,
    )
    return found if _Pairs(found).rewrite() else program


def _is_complex(node: torch.fx.Node) -> bool:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in leaves)


class _Unknown(Exception):
    """An operator, argument or result that cannot be a pair."""


Pair = tuple[Any, Any]
_GONE: Pair = (None, None)  # of a node whose result is real, or that gives none


class _Pairs:
    def __init__(self, program: ExportedProgram) -> None:
        self._program, self._graph = program, program.graph
        self._pairs: dict[torch.fx.Node, Pair] = {}
        self._at: torch.fx.Node | None = None

    def rewrite(self) -> bool:
        """Whether all complex values are gone; the program is of no use otherwise."""
        try:
            for node in list(self._graph.nodes):
                if _is_complex(node) or any(arg in self._pairs for arg in node.all_input_nodes):
                    self._node(node)
        except _Unknown:
            return False
        for node in reversed(list(self._pairs)):
            if node.op == "call_function":
                self._graph.erase_node(node)
        self._graph.eliminate_dead_code()
        self._graph.lint()
        self._program.graph_module.recompile()
        return True

    def _node(self, node: torch.fx.Node) -> None:
        self._at = node
        if node.op == "placeholder":
            self._pairs[node] = self._constant(node)
            return
        if node.op != "call_function":
            raise _Unknown
        if (rule := _RULES.get(node.target)) is not None:
            made = rule(self, *node.args, **node.kwargs)
        elif node.target in _PARTWISE:
            made = self._partwise(node)
        elif targets.is_getitem(node):
            made = tuple(self.call(node.target, part, node.args[1]) for part in self._pairs[node.args[0]])
        elif (target := targets.resolve(node.target)) is not None and target.is_assertion:
            self._pairs[node] = _GONE
            return
        elif node.target is _aten.sym_size.int:
            made = self.call(node.target, self._pairs[node.args[0]][0], node.args[1])
        else:
            raise _Unknown
        if isinstance(made, tuple):
            self._pairs[node] = made
        else:
            node.replace_all_uses_with(made)
            self._program.graph_signature.replace_all_uses(node.name, made.name)
            self._pairs[node] = _GONE

    def _constant(self, node: torch.fx.Node) -> Pair:
        """Of a buffer or constant, which is stored as its view of real numbers from now on."""
        spec = next(spec for spec in self._program.graph_signature.input_specs if spec.arg.name == node.name)
        if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise _Unknown
        for held in (self._program.state_dict, self._program.constants):
            if spec.target in held:
                held[spec.target] = torch.view_as_real(held[spec.target].resolve_conj()).contiguous()
        node.meta["val"] = torch.view_as_real(node.meta["val"])
        return self.halves(node)

    def halves(self, node: Any) -> Pair:
        return self.call(_aten.select.int, node, -1, 0), self.call(_aten.select.int, node, -1, 1)

    def _partwise(self, node: torch.fx.Node) -> Pair:
        """An operator that moves elements: the same on both parts."""
        args, kwargs = self.real(node.args), self.real(dict(node.kwargs))

        def part(i: int) -> Any:
            def pick(value: Any) -> Any:
                if isinstance(value, torch.fx.Node) and value in self._pairs:
                    return self.pair(value)[i]
                found = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
                if isinstance(value, complex) or (isinstance(found, torch.Tensor) and found.is_floating_point()):
                    raise _Unknown  # real elements among complex ones
                return value

            return self.call(node.target, *pytree.tree_map(pick, args), **pytree.tree_map(pick, kwargs))

        return part(0), part(1)

    def real(self, value: Any) -> Any:
        """Arguments with the dtypes of the parts."""
        return pytree.tree_map(lambda one: _REAL.get(one, one) if isinstance(one, torch.dtype) else one, value)

    # --- what rules use ---

    def pair(self, value: Any) -> Pair:
        """Real numbers have an imaginary part of None."""
        if isinstance(value, tuple):
            return value
        if isinstance(value, torch.fx.Node):
            found = self._pairs.get(value, (value, None))
            if found is _GONE:
                raise _Unknown
            return found
        return (value.real, value.imag) if isinstance(value, complex) else (value, None)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        assert self._at is not None
        # A placeholder's parts come behind all placeholders, where the graph expects the first operator.
        before = self._at
        while before.op == "placeholder":
            before = before.next
        with self._graph.inserting_before(before):
            node = self._graph.call_function(target, args, kwargs)
        values = torch.fx.map_arg((args, kwargs), lambda one: one.meta["val"])
        meta = {key: value for key, value in self._at.meta.items() if key not in ("val", "tensor_meta", "eager_input_vals")}
        node.meta.update(meta)
        leaves = pytree.tree_leaves((values, self._at.meta.get("val")))  # of sizes alone, what is made is of the node's kind
        mode = next((v.fake_mode for v in leaves if hasattr(v, "fake_mode")), None)
        if mode is None:
            node.meta["val"] = target(*values[0], **values[1])
        else:
            with mode:
                node.meta["val"] = target(*values[0], **values[1])
        return node

    def __getattr__(self, name: str) -> Callable[..., torch.fx.Node]:
        """`pairs.mul(a, b)`: a node of aten.mul.Tensor."""
        packet = getattr(_aten, name)
        return lambda *args, **kwargs: self.call(getattr(packet, "Tensor", None) or packet.default, *args, **kwargs)


def _add(p: _Pairs, a: Any, b: Any, *, alpha: Any = 1, sign: int = 1) -> Pair:
    (ar, ai), (br, bi) = p.pair(a), p.pair(b)
    combine = p.add if sign > 0 else p.sub
    if isinstance(alpha, complex) or not isinstance(ar, torch.fx.Node):
        raise _Unknown
    real = combine(ar, br, alpha=alpha)
    if ai is not None and bi is not None:
        return real, combine(ai, bi, alpha=alpha)
    nothing = p.zeros_like(real)  # the sum may be larger than the summand that has an imaginary part
    return real, p.add(ai, nothing) if bi is None else combine(nothing, bi, alpha=alpha)


def _mul(p: _Pairs, a: Any, b: Any) -> Pair:
    (ar, ai), (br, bi) = p.pair(a), p.pair(b)
    if bi is None:
        return p.mul(ar, br), p.mul(ai, br)
    if ai is None:
        return p.mul(ar, br), p.mul(ar, bi)
    return p.sub(p.mul(ar, br), p.mul(ai, bi)), p.add(p.mul(ar, bi), p.mul(ai, br))


def _div(p: _Pairs, a: Any, b: Any) -> Pair:
    (ar, ai), (br, bi) = p.pair(a), p.pair(b)
    if bi is None:
        return p.div(ar, br), p.div(ai, br)
    if not isinstance(br, torch.fx.Node):
        raise _Unknown
    norm = p.add(p.mul(br, br), p.mul(bi, bi))
    if ai is None:
        return p.div(p.mul(br, ar), norm), p.div(p.neg(p.mul(bi, ar)), norm)
    real = p.add(p.mul(ar, br), p.mul(ai, bi))
    imaginary = p.sub(p.mul(ai, br), p.mul(ar, bi))
    return p.div(real, norm), p.div(imaginary, norm)


def _polar(p: _Pairs, abs: Any, angle: Any) -> Pair:  # noqa: A002  (as the schema names it)
    return p.mul(abs, p.cos(angle)), p.mul(abs, p.sin(angle))


def _exp(p: _Pairs, a: Any) -> Pair:
    real, imaginary = p.pair(a)
    return _polar(p, p.exp(real), imaginary)


def _matmul(target: Any) -> Callable[..., Pair]:
    def rule(p: _Pairs, a: Any, b: Any) -> Pair:
        (ar, ai), (br, bi) = p.pair(a), p.pair(b)
        if bi is None:
            return p.call(target, ar, br), p.call(target, ai, br)
        if ai is None:
            return p.call(target, ar, br), p.call(target, ar, bi)
        real = p.sub(p.call(target, ar, br), p.call(target, ai, bi))
        return real, p.add(p.call(target, ar, bi), p.call(target, ai, br))

    return rule


def _to(target: Any) -> Callable[..., Any]:
    def rule(p: _Pairs, a: Any, *args: Any, **kwargs: Any) -> Any:
        asked = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.dtype)]
        real, imaginary = p.pair(a)
        args, kwargs = p.real(args), p.real(dict(kwargs))
        made = p.call(target, real, *args, **kwargs)
        if asked and not asked[0].is_complex:
            return made
        if imaginary is None:
            return made, p.zeros_like(made)
        return made, p.call(target, imaginary, *args, **kwargs)

    return rule


def _conj(p: _Pairs, a: Any) -> Pair:
    real, imaginary = p.pair(a)
    return real, p.neg(imaginary)


def _neg(p: _Pairs, a: Any) -> Pair:
    real, imaginary = p.pair(a)
    return p.neg(real), p.neg(imaginary)


def _fourier(inverse: bool, real: bool = False) -> Callable[..., Pair]:
    """A transform of one dimension, as a product with the matrix of its turns. real: without the half that follows from the
    other, since it is of real numbers."""

    def rule(p: _Pairs, a: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Pair:
        a_real, a_imaginary = p.pair(a)
        size = p.call(_aten.sym_size.int, a_real, dim)
        if n is not None and n != size.meta["val"]:
            raise _Unknown  # cut, or with zeros behind it
        place = p.call(_aten.arange.default, size)
        kept = place
        if real:
            half = p.call(operator.add, p.call(operator.floordiv, size, 2), 1)
            kept = p.call(_aten.arange.default, half)
        # Turns below one: cosines of large angles are not exact in float32.
        turns = p.call(_aten.remainder.Scalar, p.mul(p.unsqueeze(place, 1), p.unsqueeze(kept, 0)), size)
        angles = p.call(_aten.mul.Scalar, p.call(_aten.div.Scalar, turns, size), 2 * math.pi * (1 if inverse else -1))
        angles = p.call(_aten.to.dtype, angles, a_real.meta["val"].dtype)
        cos, sin = p.cos(angles), p.sin(angles)
        if (norm or "backward") != ("forward" if inverse else "backward"):
            by = p.call(_aten.rsqrt.default, p.call(_aten.full.default, [], size)) if norm == "ortho" else None
            cos, sin = (p.mul(one, by) if by is not None else p.call(_aten.div.Scalar, one, size) for one in (cos, sin))

        def turned(part: Any, matrix: Any) -> Any:
            moved = p.call(_aten.matmul.default, p.call(_aten.transpose.int, part, dim, -1), matrix)
            return p.call(_aten.transpose.int, moved, dim, -1)

        if a_imaginary is None:
            return turned(a_real, cos), turned(a_real, sin)
        return (
            p.sub(turned(a_real, cos), turned(a_imaginary, sin)),
            p.add(turned(a_real, sin), turned(a_imaginary, cos)),
        )

    return rule


def _fouriers(inverse: bool) -> Callable[..., Pair]:
    def rule(p: _Pairs, a: Any, s: Any = None, dim: Any = None, norm: str | None = None) -> Pair:
        if s is not None:
            raise _Unknown
        made: Any = a
        for one in dim if dim is not None else range(p.pair(a)[0].meta["val"].dim()):
            made = _fourier(inverse)(p, made, None, one, norm)
        return made

    return rule


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.view_as_complex.default: lambda p, a: p.halves(a),
    _aten.view_as_real.default: lambda p, a: p.call(_aten.stack.default, list(p.pair(a)), -1),
    _aten.complex.default: lambda p, real, imag: (real, imag),
    _aten.polar.default: _polar,
    _aten.real.default: lambda p, a: p.pair(a)[0],
    _aten.imag.default: lambda p, a: p.pair(a)[1],
    _aten.abs.default: lambda p, a: p.hypot(*p.pair(a)),
    _aten.angle.default: lambda p, a: p.atan2(*reversed(p.pair(a))),
    _aten.exp.default: _exp,
    _aten.neg.default: _neg,
    _aten.conj.default: _conj,
    _aten._conj.default: _conj,
    _aten.conj_physical.default: _conj,
    _aten.resolve_conj.default: lambda p, a: p.pair(a),
    _aten.resolve_neg.default: lambda p, a: p.pair(a),
    _aten.add.Tensor: _add,
    _aten.sub.Tensor: lambda p, a, b, **kwargs: _add(p, a, b, sign=-1, **kwargs),
    _aten.mul.Tensor: _mul,
    _aten.multiply.Tensor: _mul,
    _aten.div.Tensor: _div,
    _aten.reciprocal.default: lambda p, a: _div(p, 1.0, a),
    _aten.mm.default: _matmul(_aten.mm.default),
    _aten.bmm.default: _matmul(_aten.bmm.default),
    _aten.matmul.default: _matmul(_aten.matmul.default),
    _aten.fft_fft.default: _fourier(inverse=False),
    _aten.fft_ifft.default: _fourier(inverse=True),
    _aten.fft_rfft.default: _fourier(inverse=False, real=True),
    _aten.fft_fftn.default: _fouriers(inverse=False),
    _aten.fft_ifftn.default: _fouriers(inverse=True),
    _aten.fft_fft2.default: lambda p, a, s=None, dim=(-2, -1), norm=None: _fouriers(inverse=False)(p, a, s, dim, norm),
    _aten.fft_ifft2.default: lambda p, a, s=None, dim=(-2, -1), norm=None: _fouriers(inverse=True)(p, a, s, dim, norm),
    **{target: _to(target) for target in (_aten.to.dtype, _aten.to.device, _aten.to.dtype_layout, _aten._to_copy.default)},
}
_PARTWISE = {
    getattr(getattr(_aten, name), overload)
    for name, overload in (
        *((name, "default") for name in (
            "view", "reshape", "_unsafe_view", "permute", "unsqueeze", "squeeze", "expand", "repeat", "clone", "contiguous",
            "alias", "detach", "lift_fresh_copy", "cat", "stack", "index_select", "gather", "flip", "roll", "t", "sum", "mean",
            "chunk", "split_with_sizes", "narrow", "zeros_like", "cumsum", "expand_as", "view_as", "ravel", "concat",
        )),
        ("transpose", "int"), ("squeeze", "dim"), ("squeeze", "dims"), ("slice", "Tensor"), ("select", "int"),
        ("index", "Tensor"), ("flatten", "using_ints"), ("unflatten", "int"), ("split", "Tensor"), ("split", "sizes"),
        ("unbind", "int"), ("where", "self"), ("sum", "dim_IntList"), ("mean", "dim"), ("movedim", "int"),
        ("movedim", "intlist"), ("repeat_interleave", "self_int"),
    )
}  # fmt: skip


__all__ = ["without_complex"]
