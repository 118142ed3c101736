"""What the documents name exists: paths, symbols of the code, options, environment variables, make targets. And no file
in the tree is so large that nobody can read what changes in it."""

import fnmatch
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "src" / "README.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

SOURCES = {".cpp", ".h", ".py", ".fbs", ".cmake", ".toml", ".sh", ".txt", ".json", ".in", ".html", ""}
SUFFIXES = r"\.(?:cpp|h|py|sh|toml|fbs|cmake|md|html|svg)"
# : File names that look like this repository's but are not: of checkpoints, of torch, of an example's reader.
FOREIGN_FILES = {"config.json", "tokenizer.json", "tokenizer_config.json"}
#: Names of other projects that graft's sources do not use.
FOREIGN_NAMES = {"iq4_nl", "ggml_backend_sched", "predict_batch_udf", "daft.cls", "daft.Series", "cache_aware"}
LARGEST = 100_000


def tracked() -> list[str]:
    """The files of the tree, also of one that is no checkout."""
    done = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    kept_out = {".git", ".venv", "build", "dist", "__pycache__", ".pytest_cache", ".hypothesis"}
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(path) for path in paths if not kept_out & set(path.parts)]


FILES = tracked()
NAMES = {Path(name).name for name in FILES}
TEXTS = [
    (ROOT / name).read_text(errors="replace")
    for name in FILES
    if Path(name).suffix in SOURCES and (ROOT / name) not in DOCUMENTS and (ROOT / name).stat().st_size < LARGEST
    and Path(name).name != "docs_test.py"
]  # fmt: skip
TEXT = "\n".join(TEXTS)
WORDS_OF_FILES = [set(re.findall(r"[A-Za-z_]\w*", text)) for text in TEXTS]
WORDS = set().union(*WORDS_OF_FILES)
TARGETS = set(re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TARGETS = {name for names in TARGETS for name in names.split()}


def path_exists(path: str, folder: Path) -> bool:
    """From the root, from the document's folder, or from a root of sources. A `*` stands for at least one file."""
    path = path.rstrip("/")
    if path.startswith(("build/", "dist/", ".venv/", "bench/.venv", "bench/cache")):
        return True  # made by a command
    roots = [ROOT, folder, ROOT / "src", ROOT / "include", ROOT / "include" / "graft"]
    if "/" not in path:
        return bool(fnmatch.filter(NAMES, path)) or any((root / path).exists() for root in roots)
    return any(any(root.glob(path)) for root in roots)


def unknown(text: str, folder: Path = ROOT) -> list[str]:
    """What a document names that is not in the tree."""
    found = []
    tops = "|".join(re.escape(name) for name in sorted({Path(name).parts[0] for name in FILES if "/" in name}))
    fenced = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    plain = fenced.sub("", text)
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", plain):
        if not (folder / target).exists():
            found.append(target)
    for span in re.findall(r"`([^`\n]+)`", plain):
        if re.fullmatch(rf"(?:{tops})/[\w./*-]*", span) or re.fullmatch(rf"[\w/*.-]*[\w*-]{SUFFIXES}", span):
            if span not in FOREIGN_FILES and not path_exists(span, folder):
                found.append(span)
            continue
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", span):
            if not re.search(rf"{re.escape(flag)}(?![\w-])", TEXT):
                found.append(flag)
        for name in re.findall(r"\bGRAFT_[A-Z_0-9]+\b", span):
            if name not in WORDS:
                found.append(name)
        if target := re.match(r"make ([a-z][\w-]*)", span):
            if target.group(1) not in TARGETS:
                found.append(span)
        elif not span.startswith("GRAFT_") and re.fullmatch(r"[A-Za-z_][\w:.]*(\([^()]*\))?", span) and re.search(r"[(_.]|::|^[A-Z]\w*[a-z]\w*$", span):
            # A qualified name, a call, a name with an underscore, a type: all its parts must be in one source file.
            names = set(re.findall(r"[A-Za-z_]\w*", span.split("(")[0])) - {"graft", "python"}
            if span not in FOREIGN_NAMES and not any(names <= words for words in WORDS_OF_FILES):
                found.append(span)
    return found


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_document_names_exists(file):
    assert unknown(file.read_text(), file.parent) == []


@pytest.mark.parametrize(
    "text",
    [
        "[here](docs/no-such-file.md)", "`src/load/no_such.cpp`", "`no_such_file.cpp`", "`kernel/no_such/*.h`",
        "`Session::conjure`", "`no_such_function()`", "`no_such_function(rows)`", "`graft.no_such`", "`NoSuchType`", "`lowering.no_such`",
        "`no_such_name`",
        "`graft run --no-such-flag`", "`GRAFT_NO_SUCH`", "`make no-such-target`",
    ],
)  # fmt: skip
def test_a_document_that_names_something_else_is_noticed(text):
    assert len(unknown(text)) == 1


def test_a_name_is_looked_for_beside_its_owner():
    """Both words exist, in no common source."""
    of_arena, of_unicode = (
        next(word for word in sorted(words) if sum(word in others for others in WORDS_OF_FILES) == 1)
        for words in (set(re.findall(r"[A-Za-z_]\w*", (ROOT / file).read_text())) for file in
                      ("src/plan/arena.cpp", "src/text/unicode.cpp"))
    )  # fmt: skip
    assert unknown(f"`{of_arena}::{of_unicode}`") == [f"{of_arena}::{of_unicode}"]


def test_what_exists_is_found():
    text = "[`a`](src/README.md) `src/load/load.cpp` `load.cpp` `src/op/aten/*.cpp` `Session::run` `find_operator()` `graft.export`"
    assert unknown(text + " `GRAFT_THREADS` `make test` `graft run --repeat 3` `Session` `aten.add.Tensor` `x = net(y)`") == []


def test_no_file_of_the_tree_is_larger_than_a_diff_can_show():
    assert {name: (ROOT / name).stat().st_size for name in FILES if (ROOT / name).stat().st_size > LARGEST} == {}


@pytest.mark.parametrize(("name", "lines"), [("README.md", 170), ("docs/performance.md", 250)])
def test_what_newcomers_read_is_short(name, lines):
    assert len((ROOT / name).read_text().splitlines()) <= lines
