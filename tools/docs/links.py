"""Links of the built site: `links.py FOLDER [--external]`. Fails when an internal one leads nowhere, to a page or to a
place in it. --external asks the network about the others and reports; those that do not answer fail nothing."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (name == "name" and tag == "a")):
                self.ids.add(value)
            elif value and (name == "src" or (name == "href" and tag in ("a", "link"))):
                self.links.append(value)


def broken(folder: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Internal links that lead nowhere, and external ones with the pages that have them."""
    pages = {file: Page(file.read_text(errors="replace")) for file in sorted(folder.rglob("*.html"))}
    wrong: list[str] = []
    external: dict[str, list[str]] = {}
    for file, page in pages.items():
        here = file.relative_to(folder).as_posix()
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or parts.netloc:
                external.setdefault(link, []).append(here)
                continue
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.is_relative_to(folder.resolve()) or not target.exists():
                wrong.append(f"{here}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{here}: {link} has no such place")
    return wrong, external


def answer(link: str) -> str:
    import requests

    try:
        found = requests.get(link, timeout=20, stream=True, headers={"User-Agent": "graft-docs"})
        return "" if found.ok else f"status {found.status_code}"
    except requests.RequestException as error:
        return type(error).__name__


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--external", action="store_true")
    args = parser.parse_args()
    wrong, external = broken(args.folder.resolve())
    for line in wrong:
        print(line, file=sys.stderr)
    if args.external:
        with ThreadPoolExecutor(8) as pool:
            for link, problem in zip(external, pool.map(answer, external)):
                if problem:
                    print(f"external: {link}: {problem} (in {external[link][0]})")
    print(f"{len(wrong)} internal links lead nowhere; {len(external)} external ones")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
