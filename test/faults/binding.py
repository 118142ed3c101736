"""Python's boundaries under faults: run by faults_test.py in a process of its own, with libgraft_faults.so preloaded.

Every function of graft._C that can fail, while allocations of libgraft.so and of the delegate throw what libraries may throw: an error of
graft.errors leaves it (a MemoryError too where memory is what fails), and the next call works. ExecuTorch's entry points give
an error code.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import graft
from graft import _C

GOLDEN = str(Path(__file__).resolve().parents[1] / "golden" / "golden.pte")
FOREIGN = ["length_error", "out_of_range", "system_error", "logic_error", "json", "number"]
TOKENIZER = b'{"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}'

faults = ctypes.CDLL(None)
faults.graft_faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
faults.graft_faults_disarm.restype = ctypes.c_long


def tensor(t: torch.Tensor) -> tuple[int, int, tuple[int, ...]]:
    return t.data_ptr(), 8, tuple(t.shape)  # 8: i64


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = _C.Program.load(GOLDEN)
        self.session = _C.Session(self.program, threads=1)
        self.ids, self.mask = torch.full((2, 5), 3), torch.ones(2, 5, dtype=torch.int64)
        self.inputs = [tensor(self.ids), tensor(self.mask)]
        self.tokenizer = _C.Tokenizer.from_json(TOKENIZER, b"")

    def boundaries(self) -> dict[str, Callable[[], object]]:
        w, states = self, str(self.folder / "states")
        blocks = torch.zeros(4096, dtype=torch.uint8)
        return {
            "Program.load": lambda: _C.Program.load(GOLDEN),
            "Program.method_names": lambda: w.program.method_names(),
            "Program.method": lambda: w.program.method("encode"),
            "Program.stats": lambda: w.program.stats(),
            "package_interface": lambda: _C.package_interface(GOLDEN),
            "pack": lambda: _C.pack(GOLDEN, str(w.folder / "packed"), [], "highest"),
            "devices": lambda: _C.devices(),
            "preserved_targets": lambda: _C.preserved_targets(),
            "operator_targets": lambda: _C.operator_targets(),
            "storable_type": lambda: _C.storable_type("q8_0", [2, 32]),
            "stored_byte_count": lambda: _C.stored_byte_count("q8_0", [2, 32]),
            "quantize": lambda: _C.quantize((blocks.data_ptr(), 0, (2, 32)), "q8_0", blocks.data_ptr() + 1024, 68),
            "Session": lambda: _C.Session(w.program, threads=1),
            "Session.stored_plan": lambda: w.session.stored_plan("encode", w.inputs),
            "Session.counters": lambda: w.session.counters(),
            "Session.fork": lambda: w.session.fork(),
            "Session.save": lambda: w.session.save(states),
            "Session.restore": lambda: (w.session.save(states), w.session.restore(states)),
            "Session.reset": lambda: w.session.reset(),
            "Tokenizer.encode": lambda: w.tokenizer.encode(b"a", True, 0),
            "Tokenizer.encode_all": lambda: w.tokenizer.encode_all([b"a", b"b"], True, 0),
            "Tokenizer.decode": lambda: w.tokenizer.decode([0, 1], False),
            "Tokenizer.identity": lambda: w.tokenizer.identity(),
            "registered models": lambda: graft.models(),
        }


def attempt(name: str, call: Callable[[], object], fault: str, expected: tuple[type[BaseException], ...]) -> int:
    """The faults that were tried."""
    call()
    tried, n = 0, 1
    while True:
        caught: BaseException | None = None
        faults.graft_faults_arm(b"new", n, fault.encode(), 0)
        try:
            call()
        except BaseException as e:  # noqa: BLE001  what may leave is what is tested
            caught = e
        seen = faults.graft_faults_disarm()
        if caught is not None and not isinstance(caught, expected):
            raise SystemExit(f"{name}: {fault} by allocation {n} left as {type(caught).__name__}: {caught}")
        if seen < n:
            if caught is not None:
                raise SystemExit(f"{name} failed without a fault: {caught}")
            return tried
        tried += 1
        call()  # usable after
        n += 1 if n < 12 else n // 3


def main(folder: Path) -> None:
    world = World(folder)
    for fault in ["bad_alloc", *FOREIGN]:
#ExecutionError : of a kernel, whose exceptions are an error of the run.
        expected = (graft.OutOfMemory,) if fault == "bad_alloc" else (graft.Error,)
        tried = sum(attempt(name, call, fault, expected) for name, call in world.boundaries().items())
        print(f"FAULTS Python binding | new_{fault} | {tried} | {tried}")
    assert issubclass(graft.OutOfMemory, MemoryError)

    from executorch.runtime import Runtime

    def execute() -> None:
        Runtime.get().load_program(GOLDEN).load_method("encode").execute((world.ids, world.mask))

    for fault in ["bad_alloc", *FOREIGN]:
        tried = attempt("ExecuTorch", execute, fault, (RuntimeError,))
        print(f"FAULTS ExecuTorch delegate | new_{fault} | {tried} | {tried}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
