"""The directive `command-help`: what every command of `graft` prints as its help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

PROGRAM = Path(sys.executable).with_name("graft")


def help_of(*command: str) -> str:
    done = subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.replace(str(PROGRAM), "graft").strip("\n") + "\n"


def commands(text: str) -> list[str]:
    """Names under a heading of subcommands in a help text."""
    _, found, rest = text.partition("SUBCOMMANDS:" if "SUBCOMMANDS:" in text else "Subcommands:")
    return re.findall(r"^  ([a-z][\w-]*)", rest, re.MULTILINE) if found else []


class CommandHelp(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        whole = help_of()
        sections: list[nodes.Node] = [_literal(whole)]
        names = commands(whole)
        if not names:
            raise self.error("`graft --help` lists no commands")
        for name in names:
            title = f"graft {name}"
            section = nodes.section("", nodes.title(title, "", nodes.literal(title, title)), ids=[f"graft-{name}"])
            section += _literal(help_of(name))
            sections.append(section)
        return sections


def _literal(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
