"""What the README and docs/ show is so: snippets of the README give the output that it prints, code quoted in docs/ is
that of the source, and paths lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import graft
import pytest
from graft import _C

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def output_after(block):
    """The block "output" that follows at once."""
    found = re.match(r"```\n+```output\n(.*?)^```$", README.split(block, 1)[1], re.MULTILINE | re.DOTALL)
    assert found, f"the README prints no output of:\n{block}"
    return found.group(1)


def run(command, folder, **more):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": path}, **more
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def package(folder):
    """What the first snippet writes, and what all of Python's print."""
    printed = run([sys.executable, "-c", "".join(blocks("python"))], folder)
    assert (folder / "net.pte").exists()
    return printed


def test_python(package):
    snippets = blocks("python")
    assert len(snippets) == 2
    assert package == "".join(output_after(block) for block in snippets)


def test_cpp(package, folder):
    (block,) = blocks("cpp")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = Path(graft.__file__).parent / "lib"
    (folder / "main.cpp").write_text(block)
    run([compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", "main.cpp", "-o", "main",
         f"-L{library}", "-lgraft", f"-Wl,-rpath,{library}"], folder)  # fmt: skip
    assert run(["./main"], folder) == output_after(block)


def test_cmake():
    (block,) = blocks("cmake")
    project = (ROOT / "examples" / "cpp" / "CMakeLists.txt").read_text()
    for line in block.replace("your_program", "run_model").splitlines():
        assert line in project


def test_command_line(package, folder):
    (block,) = blocks("sh")
    (shown,) = blocks("inspect")
    printed = run(["bash", "-eu", "-c", block], folder).splitlines()
    assert [line for line in shown.splitlines() if line not in printed] == []
    assert (folder / "y.npz").exists()


DOCS = [ROOT / "README.md", ROOT / "src" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("file", DOCS, ids=lambda file: str(file.relative_to(ROOT)))
def test_paths_lead_somewhere(file):
    text = re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)  # code has brackets, too
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (file.parent / target).exists(), target
    for path in re.findall(r"`((?:src|bench|docs|examples|include|python|requirements|schema|test|tools)/[\w./-]+)`", text):
        assert (ROOT / path).exists() or path.startswith("bench/.venv"), path


def test_quoted_code_is_that_of_the_source():
    text = (ROOT / "docs" / "extending.md").read_text()
    quoted = re.findall(r"^```(?:cpp|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(quoted) == 9
    sources = [file for kind in ("*.cpp", "*.h", "*_test.py") for file in (ROOT / "src").rglob(kind)]
    lines = {line for file in sources for line in file.read_text().splitlines()}
    assert [line for block in quoted for line in block.splitlines() if line not in lines] == []


def test_the_table_of_operators_is_complete():
    """docs/ops.md: a new operator needs `make ops-report`, and one that passes make a test in tools/docs/ops.py."""
    text = (ROOT / "docs" / "ops.md").read_text().replace(r"\_", "_")
    named = re.findall(r"\b(?:\w+)(?:\.\w+)+\b", re.sub(r"`[^`]*`", "", text.split("| operator |", 1)[1]))
    engine = {*_C.operator_targets(), *_C.host_operator_targets()}
    engine = {name for name in engine if not name.startswith("example.")}  # registered by custom_op_test.py
    assert sorted(engine - set(named)) == []
    rows = re.findall(r"^\| (\S+) \| ", text.split("Operators of core ATen that graft refuses")[0], re.MULTILINE)
    assert sorted(set(rows) - engine - {"operator", "---"}) == []


def test_every_dependency_has_its_line():
    rows = [line for line in (ROOT / "docs" / "dependencies.md").read_text().splitlines() if line.startswith("| ")]
    named = {word.lower() for row in rows for word in re.findall(r"[\w.+-]+", row.split("|")[1])}
    files = [file for file in (ROOT / "requirements").glob("*.txt") if file.name != "constraints.txt"]
    wanted = set()
    for file in [*files, ROOT / "bench" / "requirements-peers.txt"]:
        wanted.update(re.findall(r"^([\w.-]+)==", file.read_text(), re.MULTILINE))
    wanted.update(re.findall(r"\bneed ([a-z][\w.+-]+)", (ROOT / "tools" / "setup" / "system.sh").read_text()))
    assert {"torch", "g++", "libzip-dev", "openvino"} <= wanted
    assert sorted(wanted - named - {"torch", "python3"}) == []
