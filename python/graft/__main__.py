"""python -m graft: the command line; with --cmake-prefix, where CMake finds the C++ SDK inside this package."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def main(arguments: list[str]) -> None:
    if arguments == ["--cmake-prefix"]:
        print(Path(__file__).absolute().parent)
        return
    command = shutil.which("graft", path=sysconfig.get_path("scripts")) or shutil.which("graft")
    if command is None:
        raise SystemExit("graft: the command line is not installed: expected 'graft' beside Python or on the PATH")
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
