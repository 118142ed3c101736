"""Links from Markdown to files and folders of the tree that are no pages: each gets a page with its highlighted source."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes

_FOLDER = "source"
_SKIPPED = {"__pycache__"}


def _page(path: Path) -> str:
    return f"{_FOLDER}/{path.as_posix()}"


def replace_links(app: Any, doctree: nodes.document) -> None:
    docname, root = app.env.current_document.docname, Path(app.srcdir)
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        target = node.get("reftarget", "")
        if node.get("reftype") != "myst" or node.get("refdomain") == "doc" or target.startswith("#"):
            continue
        found = Path(os.path.normpath(root / Path(docname).parent / target.partition("#")[0]))
        if not found.exists() or not found.is_relative_to(root):
            continue
        path = found.relative_to(root)
        uri = app.builder.get_relative_uri(docname, _page(path)) if app.builder.format == "html" else ""
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))
        app.env.graft_sources.setdefault(docname, set()).add(path)


def forget(_app: Any, env: Any, docname: str) -> None:
    env.graft_sources.pop(docname, None)


def begin(app: Any) -> None:
    if not hasattr(app.env, "graft_sources"):
        app.env.graft_sources = {}


def pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    root = Path(app.srcdir)
    wanted = set().union(*app.env.graft_sources.values())
    done: set[Path] = set()
    while wanted - done:
        path = min(wanted - done)
        done.add(path)
        if (root / path).is_dir():
            names = sorted(p.name for p in (root / path).iterdir() if p.name not in _SKIPPED)
            wanted |= {path / name for name in names}
            items = (f'<li><a href="{html.escape(path.name)}/{html.escape(n)}.html"><code>{html.escape(n)}</code></a></li>' for n in names)
            body = f"<ul>{''.join(items)}</ul>"
        else:
            body = _highlighted(root / path)
        title = html.escape(path.as_posix())
        yield _page(path), {"title": title, "body": f"<h1><code>{title}</code></h1>{body}", "toc": "", "display_toc": False}, "page.html"


def _highlighted(file: Path) -> str:
    text = file.read_text(errors="replace")
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    return f'<div class="highlight">{highlight(text, lexer, HtmlFormatter(nowrap=False))}</div>'


def setup(app: Any) -> dict[str, bool]:
    app.add_lexer("output", TextLexer)
    app.add_lexer("inspect", TextLexer)
    app.connect("builder-inited", begin)
    app.connect("env-purge-doc", forget)
    app.connect("doctree-read", replace_links, priority=100)  # before files to download are collected
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": False}
