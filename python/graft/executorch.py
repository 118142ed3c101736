"""The delegate for ExecuTorch's runtime: `GraftBackend`, registered when graft is imported.

    import graft
    from executorch.runtime import Runtime
    Runtime.get().load_program("model.pte").load_method("forward").execute((x,))

C++ programs link the library that `library()` names; see examples/executorch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from graft.errors import Error, InvalidArgument, NotFound, SystemError, Unsupported

__all__ = ["library", "options", "register", "set_options"]

_options: dict[str, int | str] = {}  # as they were set last
_loading = threading.Lock()

# Codes of executorch::runtime::Error.
_INVALID_ARGUMENT, _NOT_FOUND = 0x12, 0x20


def library() -> Path:
    """The shared library with the delegate. Raises graft.NotFound when this build has none."""
    path = Path(__file__).parent / "lib" / "libgraft_executorch.so"
    if not path.exists():
        raise NotFound(f"this build of graft has no ExecuTorch delegate: {path} is missing")
    return path


def available() -> bool:
    """Whether this build has the delegate and ExecuTorch is installed."""
    try:
        library()
    except NotFound:
        return False
    try:
        return importlib.util.find_spec("executorch") is not None
    except ImportError:
        return False


def need(interface: Sequence[Mapping[str, Any]]) -> str:
    """Why graft alone does not run a package. interface: its methods (`_C.package_interface`)."""
    name, refusal = next((info["name"], info["refusal"]) for info in interface if info["refusal"])
    return f"method '{name}' needs ExecuTorch's runtime, graft alone cannot run it: {refusal}"


def require(interface: Sequence[Mapping[str, Any]]) -> None:
    """For a package that graft alone does not run. interface: as of `need`."""
    if not available():
        raise Unsupported(
            f"{need(interface)}; here it is not there: it takes the package executorch (pip install 'graft[export]'), and a "
            "build with the delegate"
        )


@functools.cache
def register() -> ctypes.CDLL:
    """Makes ExecuTorch's runtime, in this process, run packages of graft. `import graft` does it: a few milliseconds,
    and ExecuTorch's Python modules are not imported."""
    path = library()
    try:
        # The library registers itself when it is loaded.
        loaded = ctypes.CDLL(str(path))
    except OSError as e:
        raise SystemError(f"the ExecuTorch delegate does not load: {e}") from e
    code = loaded.graft_executorch_registered()
    if code == _INVALID_ARGUMENT:
        raise Error("ExecuTorch has a backend 'GraftBackend' already: another copy of graft is loaded in this process")
    if code:
        raise Error(f"ExecuTorch refuses the backend 'GraftBackend' with error 0x{code:x}")
    return loaded


def set_options(
    *,
    threads: int = 0,
    device: str = "",
    seed: int = 0,
    kv_rows: int = 0,
    kv_length: int = 0,
    kv_encoder_length: int = 0,
    kv_type: str = "",
) -> None:
    """How methods that ExecuTorch loads from now on run. threads: 0 means GRAFT_THREADS, else the CPUs this process may
    use. device: a name of `graft.devices()`; "" means GRAFT_DEVICE, else the CPU. seed: of the random numbers that
    programs draw, 32 bits. kv_rows, kv_length, kv_type: sequences, tokens and type ("computed", "f32", "f16", "bf16",
    "q8_0" or "q4_0") of the cache of keys and values; kv_encoder_length: most tokens of what an encoder leaves in it.

    What is left out (0 or "") is as the package says (`graft.ExportOptions`, `graft.export_llm`), else as
    `graft.load` has it. Raises graft.InvalidArgument or graft.NotFound, which name the option. In C++:
    executorch::runtime::set_option("GraftBackend", ...), and for one load the same options in a
    LoadBackendOptionsMap.
    """
    numbers = {
        "threads": threads,
        "kv_rows": kv_rows,
        "kv_length": kv_length,
        "kv_encoder_length": kv_encoder_length,
    }
    for name, value in numbers.items():
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            raise InvalidArgument(f"option '{name}' must be an int of 32 bits, got {value!r}")
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InvalidArgument(f"option 'seed' must be an int from 0 to 2**32 - 1, got {seed!r}")
    texts = {"device": device, "kv_type": kv_type}
    for name, value in texts.items():
        if not isinstance(value, str) or "\n" in value:
            kind = "one with a line break" if isinstance(value, str) else type(value).__name__
            raise InvalidArgument(f"option '{name}' must be a str of one line, got {kind}")
    signed = {"seed": seed if seed < 2**31 else seed - 2**32}
    lines = "\n".join(f"{name}={value}" for name, value in (numbers | signed | texts).items())
    message = ctypes.create_string_buffer(1024)
    code = register().graft_executorch_set_options(lines.encode(), message, ctypes.c_size_t(len(message)))
    if code:
        kind = {_INVALID_ARGUMENT: InvalidArgument, _NOT_FOUND: NotFound}.get(code, Error)
        raise kind(message.value.decode(errors="replace"))
    _options.clear()
    _options.update(numbers | texts | {"seed": seed})


@contextlib.contextmanager
def options(**given: int | str) -> Iterator[None]:
    """`set_options` for methods that this thread loads within it; afterwards the options are as before."""
    with _loading:
        before = dict(_options)
        set_options(**given)
        try:
            yield
        finally:
            set_options(**before)
