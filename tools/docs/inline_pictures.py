"""SVG pictures of docs/ become part of their page, so that they follow its light and dark colours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes


def place(app: Any, doctree: nodes.document, _docname: str) -> None:
    if app.builder.format != "html":
        return
    for node in list(doctree.findall(nodes.image)):
        file = Path(app.srcdir) / node["uri"]
        if file.suffix != ".svg" or file.parent.name != "pictures":
            continue
        text = re.sub(r"<\?xml.*?\?>\s*", "", file.read_text())
        node.replace_self(nodes.raw("", f'<div class="picture">{text}</div>', format="html"))


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-resolved", place)
    return {"parallel_read_safe": True}
