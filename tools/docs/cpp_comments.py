"""Input filter of Doxygen: the plain comments of a public header as documentation. `cpp_comments.py HEADER`

A comment before a declaration documents it, one behind it on the same line too, and the one at the top of the header,
or after its includes, the header.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_TRAILING = re.compile(r"^(?P<code>(?!\s*//)[^\"]*?(?:\"[^\"]*\"[^\"]*?)*[;,{)]|\s+\w+)\s*// (?P<text>.*)$")


def converted(source: str) -> str:
    lines, out, i = source.split("\n"), [], 0
    while i < len(lines):
        line = lines[i]
        if not line.lstrip().startswith("//"):
            found = None if line.startswith("}") else _TRAILING.match(line)
            out.append(f"{found['code']}  ///< {_text(found['text'])}" if found else line)
            i += 1
            continue
        begin = i
        while i < len(lines) and lines[i].lstrip().startswith("//"):
            i += 1
        comment = _block(lines[begin:i])
        following = next((line for line in lines[i:] if line.strip()), "")
        # Of the header: nothing that could be declared follows.
        if following.startswith(("#include", "namespace")):
            out += ["/// \\file", *comment, ""]
        elif i < len(lines) and not lines[i].strip():
            out += lines[begin:i]  # about nothing in particular
        else:
            out += comment
    return "\n".join(out)


def _block(lines: list[str]) -> list[str]:
    """Lines indented by more than one are an example."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    out, example = [], False
    for line in lines:
        text = line.lstrip()[2:]
        inside = text.startswith("   ") or (example and not text.strip())
        if inside != example:
            out.append(f"{indent}/// ```{'cpp' if inside else ''}" if inside else f"{indent}/// ```")
            example = inside
        out.append(f"{indent}///{text if example else _text(text)}".rstrip() if text.strip() else f"{indent}///")
    if example:
        out.append(f"{indent}/// ```")
    return out


def _text(text: str) -> str:
    """What Doxygen would read as a command or a tag is escaped, but for `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if i % 2 else re.sub(r"([<>@#\\])", r"\\\1", part) for i, part in enumerate(parts))


if __name__ == "__main__":
    print(converted(Path(sys.argv[1]).read_text()), end="")
