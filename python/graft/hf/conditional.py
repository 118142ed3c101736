"""Models whose texts go on from more than a text: a source that is encoded first, pictures, sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.hf import causal
from graft.hf.general import GeneralCompiled, GeneralEngine, class_of, take_over

_FEATURES = ("get_image_features", "get_video_features")


def compile_conditional(model: Any, kind: type, device: str | None, threads: int, options: Mapping[str, Any]) -> Any:
    """generate() calls the encoder of a source, and what makes features of pictures, by itself: these parts have engines of
    their own."""

    def engine(kind: type, method: str = "forward") -> GeneralEngine:
        return GeneralEngine(kind, device or "", threads, causal=False, method=method)

    part = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    if part is not None and part is not model:
        plain = getattr(type(part), "_uncompiled", type(part))
        if model.config.is_encoder_decoder:
            take_over(part, class_of(plain, mixin=Part), engine(plain), options)
        elif methods := [name for name in _FEATURES if hasattr(plain, name)]:
            engines = Features({name: engine(plain, name) for name in methods})
            take_over(part, class_of(plain, methods, Part), engines, options)
    return take_over(model, class_of(kind), engine(kind), options)


class Features:
    """`graft` of a part whose features of pictures and videos engines compute."""

    def __init__(self, engines: dict[str, GeneralEngine]) -> None:
        self._engines = engines

    def engine_of(self, method: str) -> GeneralEngine:
        return self._engines[method]

    def forget(self) -> None:
        for engine in self._engines.values():
            engine.forget()

    def stats(self) -> dict[str, Any]:
        return {name: engine.stats() for name, engine in self._engines.items()}


class Part(GeneralCompiled):
    """Mixed into the class of a part of a compiled model. Pickled as it was: the whole is compiled again."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return causal.restored, (self._uncompiled, causal.attributes_of(self))


__all__ = ["Features", "Part", "compile_conditional"]
