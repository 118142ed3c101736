"""Runs a page of docs/tutorials as it is printed.

Blocks run in the order of the page, in one folder: `python` in one interpreter, `sh` in bash. A block that begins with a
comment which is a file's name is written to that file instead. A block `output` is what the block before it printed;
"..." in it stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//) ([\w.-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        found = _FILE.match(self.text)
        return found[1] if found else None


def blocks(text: str) -> list[Block]:
    return [Block(b[1], b[2], text.count("\n", 0, b.start()) + 2) for b in _BLOCK.finditer(text)]


def agrees(printed: str, shown: str) -> bool:
    pattern = r"[\s\S]*?".join(re.escape(part) for part in shown.strip("\n").split("..."))
    return re.fullmatch(pattern, printed.strip("\n")) is not None


def run(page: Path, folder: Path, environment: Mapping[str, str] | None = None) -> int:
    """Number of blocks `output` that were compared."""
    known: dict[str, Any] = {"__name__": "__main__"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, **(environment or {}), "PATH": path}
    printed, compared = "", 0
    with _inside(folder):
        for block in blocks(page.read_text()):
            where = f"{page.name}:{block.line}"
            if block.language == "output":
                assert agrees(printed, block.text), f"{where} shows\n{block.text}\nprinted was\n{printed}"
                compared += 1
            elif block.file is not None:
                (folder / block.file).write_text(block.text)
            elif block.language == "python":
                # With its line numbers, so that a traceback names the page's.
                code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(code, known)
                printed = out.getvalue()
            elif block.language == "sh":
                done = subprocess.run(["bash", "-eu", "-c", block.text], env=env, capture_output=True, text=True)
                assert done.returncode == 0, f"{where}: {done.stdout}\n{done.stderr}"
                printed = done.stdout
            else:
                raise AssertionError(f"{where}: nothing runs a block '{block.language}' without a file's name")
    return compared


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
