"""Docstrings of python/graft as reStructuredText.

They are written to be read in a terminal: `code` in single quotes of Markdown, examples indented by four, and arguments
as "name: text" with continuation lines indented.
"""

from __future__ import annotations

import re
from typing import Any

_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")
_HEADING = re.compile(r"[A-Z][^`]*:$")


def inline(text: str, public: frozenset[str]) -> str:
    """Markdown's `code` becomes a reference where it is a public name, else a literal; what reStructuredText would read
    as markup is escaped."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    for i, part in enumerate(parts):
        if i % 2:
            code = part.strip("`")
            name = code.removeprefix("graft.")
            known = name in public or name.partition(".")[0] in public and re.fullmatch(r"\w+\.\w+", name)
            parts[i] = f":py:obj:`{code} <graft.{name}>`" if known else f"``{code}``"
        else:
            parts[i] = re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part)
    return "".join(parts)


def converted(lines: list[str], public: frozenset[str]) -> list[str]:
    out: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = block.split("\n")
        if all(row.startswith("    ") for row in rows):
            out += [".. code-block:: python", "", *rows, ""]
        elif len(rows) > 1 and _HEADING.match(rows[0]) and all(row.startswith("    ") for row in rows[1:]):
            out += [f".. rubric:: {inline(rows[0].rstrip(':'), public)}", ""]
            out += _entries([row[4:] for row in rows[1:]], public)
        elif _ENTRY.match(rows[0]) and (len(rows) == 1 or any(_ENTRY.match(row) for row in rows[1:]) or rows[1][:1] == " "):
            out += _entries(rows, public)
        else:
            out += [*(inline(row.strip(), public) for row in rows), ""]
    return out


def _entries(rows: list[str], public: frozenset[str]) -> list[str]:
    """A definition list. A row that is neither an entry nor a continuation begins a paragraph."""
    out: list[str] = []
    for row in rows:
        if found := _ENTRY.match(row):
            names = ", ".join(f"``{name}``" for name in found[1].split(", "))
            out += ["", names, f"    {inline(found[2], public)}"]
        elif row.startswith(" ") and out:
            out.append(f"    {inline(row.strip(), public)}")
        else:
            out += ["", inline(row, public)]
    return [*out, ""]


def setup(app: Any) -> dict[str, bool]:
    import graft

    public = frozenset(graft.__all__)

    def process(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
        lines[:] = converted(lines, public)

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
