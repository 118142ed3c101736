"""Unmerged LoRA of peft in a compiled model: its layers stay where they are, with the base layers in them, and what is
active in them at a call is what the engine adds to the base program."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from graft import _C
from graft._dtypes import NUMBER_OF
from graft.adapters import DEFAULT_RANK
from graft.errors import InvalidArgument, Unsupported

_ADVICE = "; call merge_and_unload() and compile what it returns"
_NO_ADAPTER = "__base__"  # peft's name, in adapter_names
_KEPT = 16  # adapters made of what was active


def of_peft(part: Any) -> bool:
    return type(part).__module__.split(".")[0] == "peft"


def base_of(model: Any) -> Any:
    """The model of transformers in one of peft, which may be the model itself."""
    if not of_peft(model):
        return model
    configs = getattr(model, "peft_config", {})
    for name, config in configs.items():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind != "LORA":
            raise Unsupported(f"graft.compile: expected adapters of LoRA, found '{name}' of {kind}{_ADVICE}")
    return model.get_base_model()


def unmerged(model: Any) -> Any:
    """A part of peft's in a model, or None."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    return next((part for part in parts if of_peft(part)), None)


def refuse_unmerged(model: Any) -> None:
    """For routes that run no adapters, and for what is left when those that run are hidden."""
    if (part := unmerged(model)) is not None:
        raise Unsupported(
            "graft.compile: expected a model without separate adapters, or a causal language model with LoRA of linear "
            f"layers, found unmerged ones of peft ({type(part).__name__}){_ADVICE}"
        )


class Lora:
    """The LoRA layers of one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._places: list[tuple[dict[str, Any], str]] = []  # of the modules' dictionaries, and the names in them
        self._layers: list[tuple[str, Any]] = []  # by path
        self._made: dict[Any, tuple[Any, Any]] = {}  # adapters by what was active, with the state of its numbers
        self._lock = threading.RLock()  # held while the model is another one
        self.find()

    def __bool__(self) -> bool:
        return bool(self._layers)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lora:
        """Of the model's copy, which calls find()."""
        made = memo[id(self)] = Lora.__new__(Lora)
        made._model, made._made, made._places, made._layers = memo[id(self._model)], {}, [], []
        made._lock = threading.RLock()
        return made

    def find(self) -> None:
        """Layers may have come since."""
        places, layers = [], []
        with self._lock:
            for path, module in self._model.named_modules():
                for name, child in module._modules.items():
                    if child is not None and of_peft(child) and not of_peft(module) and hasattr(child, "lora_A"):
                        where = f"{path}.{name}" if path else name
                        self._check(where, child)
                        places.append((module._modules, name))
                        layers.append((where, child))
            self._places, self._layers = places, layers

    @staticmethod
    def _check(path: str, layer: Any) -> None:
        what = None
        if type(layer).__name__ != "Linear" or not hasattr(layer, "base_layer"):
            what = f"a {type(layer).__name__}"
        elif variants := getattr(layer, "lora_variant", None):
            what = ", ".join(sorted({type(variant).__name__ for variant in variants.values()}))
        elif any(getattr(layer, "use_dora", {}).values()):
            what = "DoRA"
        elif any(getattr(layer, "lora_bias", {}).values()):
            what = "a bias of LoRA"
        if what is not None:
            raise Unsupported(f"graft.compile: expected plain LoRA of linear layers, found {what} at '{path}'{_ADVICE}")

    @property
    def rank(self) -> int:
        """Of a program that has room for these adapters and for others."""
        ranks = [rank for _, layer in self._layers for rank in layer.r.values()]
        return max([DEFAULT_RANK, *ranks])

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Within it, the model is the base model; other threads wait."""
        with self._lock:
            held = list(zip(self._places, self._layers))
            for (modules, name), (_, layer) in held:
                modules[name] = layer.base_layer
            try:
                yield
            finally:
                for (modules, name), (_, layer) in held:
                    modules[name] = layer

    def chosen(self, program: _C.Program, rows: int, thorough: bool) -> list[Any]:
        """Those of a call: none, one for all rows, or one per row. thorough: looks whether their numbers are others
        now."""
        names = self._names_by_row()
        if names is None:
            key = tuple(
                () if layer.disable_adapters or layer.merged else tuple(layer.active_adapters)
                for _, layer in self._layers
            )
            adapter = self._adapter(program, key, thorough)
            return [] if adapter is None else [adapter]
        if any(layer.merged for _, layer in self._layers):
            raise InvalidArgument("adapter_names: expected a model without merged adapters; call unmerge_adapter()")
        if len(names) != rows:
            raise InvalidArgument(f"adapter_names: expected one of each of the {rows} rows, found {len(names)}")
        made = {
            name: None if name == _NO_ADAPTER else self._adapter(program, ((name,),) * len(self._layers), thorough)
            for name in set(names)
        }
        return [made[name] for name in names]

    def _names_by_row(self) -> Sequence[str] | None:
        """peft hands adapter_names on as arguments of hooks, of which the last one counts."""
        for hook in reversed(self._layers[0][1]._forward_pre_hooks.values()) if self._layers else ():
            if not isinstance(hook, functools.partial):
                continue
            if hook.keywords.get("alora_offsets") is not None:
                raise Unsupported("alora_offsets: a compiled model runs adapters for whole sequences")
            if (names := hook.keywords.get("adapter_names")) is not None:
                return list(names)
        return None

    def _adapter(self, program: _C.Program, key: Any, thorough: bool) -> Any:
        """The sum of those that are active. key: their names by layer."""
        held = self._made.get((id(program), key))
        if held is not None and not thorough:
            return held[1]
        parts = [
            (path, [_matrices(layer, name) for name in names if name in layer.lora_A])
            for (path, layer), names in zip(self._layers, key)
        ]
        state = [(_state(a), _state(b), scale) for _, summands in parts for a, b, scale in summands]
        if held is None or held[0] != state:
            held = (state, _made(program, [(path, summands) for path, summands in parts if summands]))
            self._made.pop((id(program), key), None)
            while len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[id(program), key] = held
        return held[1]


def _matrices(layer: Any, name: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    return layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]


def _state(tensor: torch.Tensor) -> Any:
    """Changes when the numbers do: writes through `.data` leave no trace but the numbers."""
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // 8)].float().tolist()
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version, sample


def _made(program: _C.Program, parts: Sequence[tuple[str, Sequence[tuple[Any, Any, float]]]]) -> Any:
    """Their sum; None for none."""
    if not parts:
        return None
    keep, layers = [], []
    for path, summands in parts:
        if len(summands) == 1:
            a, b, scale = summands[0]
        else:
            a = torch.cat([a.detach().float() for a, _, _ in summands])
            b = torch.cat([b.detach().float() * scale for _, b, scale in summands], 1)
            scale = 1.0
        pair = [matrix.detach().to("cpu").contiguous() for matrix in (a, b)]
        if pair[0].dtype != pair[1].dtype or pair[0].dtype not in (torch.float32, torch.float16, torch.bfloat16):
            found = f"{pair[0].dtype} and {pair[1].dtype}"
            raise Unsupported(f"expected LoRA matrices of one type of at most 32 bits at '{path}', found {found}")
        keep += pair
        layers.append((path, *((m.data_ptr(), NUMBER_OF[m.dtype], tuple(m.shape)) for m in pair), float(scale)))
    return _C.Adapter.of(program, layers)


__all__ = ["Lora", "base_of", "of_peft", "refuse_unmerged", "unmerged"]
