"""LoRA adapters by name, of everything that runs a program: a loaded package, a generator, a compiled model."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graft import _C
from graft.errors import InvalidArgument, NotFound, typed

DEFAULT_RANK = 64  # of programs that are given adapters when they are loaded, and no rank

#: What a call takes: the name of an adapter for all rows of its batch, or one name or None (no adapter) per row.
Choice = str | Sequence[str | None] | None


class Adapters:
    """The adapters of one program, by name; several threads may use them. A call that runs holds its own: replacing or
    removing one changes nothing for it. No call has a new plan because of them."""

    def __init__(self, program: _C.Program) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._by_name: dict[str, Any] = {}

    def load(self, name: str, path: str | os.PathLike[str]) -> None:
        """From a folder that peft wrote, its adapter_model.safetensors, or a GGUF file, in the place of what has the
        name. Raises what `graft.load_adapter` raises."""
        if not name:
            raise InvalidArgument("an adapter needs a name")
        self._put(name, _C.Adapter.load(self._program, os.fspath(path)))

    def _put(self, name: str, adapter: Any) -> None:
        with self._lock:
            self._by_name[name] = adapter

    def move_to(self, program: _C.Program) -> None:
        """Another program with the same layers."""
        with self._lock:
            self._program = program

    def remove(self, name: str) -> None:
        """Raises `graft.NotFound` for an unknown name."""
        with self._lock:
            self._find(name)
            del self._by_name[name]

    def rank(self, name: str) -> int:
        """The largest of its layers."""
        with self._lock:
            return self._find(name).rank

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(sorted(self._by_name))

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def _find(self, name: str) -> Any:
        if (adapter := self._by_name.get(name)) is None:
            known = ", ".join(f"'{each}'" for each in sorted(self._by_name))
            raise NotFound(f"there is no adapter {name!r}; " + (f"there are {known}" if known else "none is loaded"))
        return adapter

    def chosen(self, choice: Choice) -> list[Any]:
        """As the engine takes them. Raises `graft.NotFound` for an unknown name."""
        if choice is None:
            return []
        names = [choice] if isinstance(choice, str) else list(choice)
        with self._lock:
            return [None if name is None else self._find(name) for name in names]


def rank_for(adapters: Mapping[str, Any], max_rank: int) -> int:
    """What a program is loaded with."""
    return DEFAULT_RANK if adapters and not max_rank else max_rank


def adapters_of(target: Any) -> Adapters:
    """Those of a model or generator."""
    engine = getattr(target, "graft", None)  # of a compiled model
    found = getattr(target if engine is None else engine, "adapters", None)
    if not isinstance(found, Adapters):
        raise InvalidArgument(
            "expected a model of graft.load, a graft.TextGenerator or graft.BatchGenerator, or a model that graft.compile "
            f"was given max_adapter_rank for, found {type(target).__name__}"
        )
    return found


@typed
def load_adapter(target: Any, name: str, path: str | os.PathLike[str]) -> None:
    """Loads a LoRA adapter beside a program, whose weights it leaves as they are, quantized ones too. Calls then choose it
    by name, each row of a batch its own: `adapter="name"`, or `adapter=["name", None]`.

        generator = graft.TextGenerator("model.pte", max_adapter_rank=64)
        graft.load_adapter(generator, "sql", "sql-adapter")
        generator.generate(prompt, adapter="sql")

    target: of `graft.load`, a `graft.TextGenerator` or `graft.BatchGenerator`, loaded with max_adapter_rank.
    name: in the place of what has it; calls that run go on with the old one.
    path: a folder that peft's save_pretrained wrote, its adapter_model.safetensors, or a GGUF file as llama.cpp's
        convert_lora_to_gguf writes it.

    Raises `graft.InvalidArgument` for an adapter that does not fit (layers, shapes, a rank above max_adapter_rank),
    `graft.Unsupported` for what is no plain LoRA (DoRA, biases, whole modules, embeddings), `graft.InvalidProgram` for
    damaged files, `graft.NotFound` for missing ones. Nothing has changed then.
    """
    adapters_of(target).load(name, path)


@typed
def unload_adapter(target: Any, name: str) -> None:
    """Removes it; calls that run go on with it. Raises `graft.NotFound` for an unknown name."""
    adapters_of(target).remove(name)


__all__ = ["Adapters", "load_adapter", "unload_adapter"]
