"""Methods of one ExecuTorch program share mutable buffers by name, as they do in graft.load; loaded programs do not."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime

import graft
import graft.executorch


class Total(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        self.register_buffer("total", torch.tensor([1.0, -1.0]))


class Add(Total):
    def forward(self, x):
        self.total.add_(x * self.scale)
        return self.total * 1


class Take(Total):
    def forward(self, x):
        self.total.sub_(x)
        return self.total + 10


class Read(Total):
    def forward(self, x):
        return self.total + x * self.scale


X = torch.tensor([1.0, 0.5])
METHODS = ("add", "take", "read")


def export(path: Path, **options) -> Path:
    methods = {name: {"model": kind(), "args": (X,)} for name, kind in zip(METHODS, (Add, Take, Read), strict=True)}
    return graft.export(methods=methods, path=path, **options)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("package") / "total.pte")


class Eager:
    """One buffer for the three modules."""

    def __init__(self) -> None:
        add, take, read = Add(), Take(), Read()
        take.total = read.total = add.total
        self.calls = {"add": add, "take": take, "read": read}

    def __call__(self, name: str, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.calls[name](x).clone()


class Loaded:
    def __init__(self, source, **options) -> None:
        self.program = Runtime.get().load_program(source, **options)
        self.methods = {name: self.program.load_method(name) for name in METHODS}

    def __call__(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.methods[name].execute((x,))[0].clone()


CALLS = ("add", "read", "add", "take", "read", "add", "read", "take", "add")


def test_methods_share_a_buffer(package):
    eager, theirs, ours = Eager(), Loaded(str(package)), graft.load(package)
    for name in CALLS:
        expected = eager(name, X)
        assert torch.equal(theirs(name, X), expected), name
        assert torch.equal(ours.methods[name](X), expected), name


@pytest.mark.parametrize("kind", ["file", "memory", "file and data", "memory and data"])
def test_loaded_programs_do_not(package, tmp_path, kind):
    source, options = package, {}
    if "data" in kind:
        source = export(tmp_path / "total.pte", weights="ptd")
        options = {"data_path": str(tmp_path / "total.ptd")}
    # One object: both programs are read from the same memory.
    given = source.read_bytes() if "memory" in kind else str(source)
    pairs = [(Eager(), Loaded(given, **options)) for _ in range(3)]
    for i, (eager, theirs) in enumerate(pairs):
        for name in CALLS[i:]:
            assert torch.equal(theirs(name, X), eager(name, X)), (i, name)
    for eager, theirs in pairs:
        assert torch.equal(theirs("read", X), eager("read", X))


def test_a_new_program_at_the_addresses_of_one_that_is_gone_begins_anew(package):
    content = package.read_bytes()
    for _ in range(3):
        eager, theirs = Eager(), Loaded(content)
        for name in CALLS:
            assert torch.equal(theirs(name, X), eager(name, X)), name
        del theirs
        gc.collect()


def test_methods_loaded_late_see_the_buffer_as_it_is(package):
    program = Runtime.get().load_program(str(package))
    add = program.load_method("add")
    eager = Eager()
    for _ in range(4):
        assert torch.equal(add.execute((X,))[0], eager("add", X))
    assert torch.equal(program.load_method("read").execute((X,))[0], eager("read", X))


class Split(Total):
    """Tensors of nine dimensions are left to ExecuTorch, and two parts of graft around them read the buffer."""

    def forward(self, x):
        return self.total * (self.total + x).reshape((1,) * 8 + (2,)).abs().reshape(2)


def test_a_shared_buffer_that_several_parts_use_is_refused_by_name(tmp_path):
    methods = {"add": {"model": Add(), "args": (X,)}, "split": {"model": Split(), "args": (X,)}}
    with pytest.raises(graft.ExportError, match="method 'split'.*'total' in one part of graft.*methods share it"):
        graft.export(methods=methods, path=tmp_path / "m.pte", allow_fallback=True)
    # Alone it shares the buffer with nobody.
    path = graft.export(Split(), (X,), path=tmp_path / "m.pte", allow_fallback=True)
    found = Runtime.get().load_program(str(path)).load_method("forward").execute((X,))[0]
    assert torch.equal(found, Split()(X))


def test_options_of_the_package_and_of_the_process(tmp_path):
    options = graft.ExportOptions(delegate_options={"threads": 1, "kv_rows": 2})
    path = export(tmp_path / "total.pte", options=options)
    assert torch.equal(Loaded(str(path))("add", X), Eager()("add", X))
    for bad, message in (
        ({"rows": 2}, "expected options of the delegate to be some of threads, .*found 'rows'"),
        ({"kv_rows": "2"}, "option 'kv_rows'.*expected an int of 31 bits, found '2'"),
        ({"kv_type": 2}, "option 'kv_type'.*expected a str, found 2"),
    ):
        with pytest.raises(graft.ExportError, match=message):
            export(tmp_path / "bad.pte", options=graft.ExportOptions(delegate_options=bad))


def test_an_option_of_a_package_that_this_build_cannot_follow_is_an_error(tmp_path, capfd):
    path = export(tmp_path / "total.pte", options=graft.ExportOptions(delegate_options={"kv_type": "f8"}))
    with pytest.raises(RuntimeError):
        Loaded(str(path))("add", X)
    assert "must be computed, f32, f16, bf16, q8_0 or q4_0, got 'f8'" in capfd.readouterr().err


def test_bad_options_are_refused_and_change_nothing():
    with pytest.raises(graft.InvalidArgument, match="'kv_rows'.*-1"):
        graft.executorch.set_options(kv_rows=-1)
    with pytest.raises(graft.InvalidArgument, match="got 'f8'"):
        graft.executorch.set_options(kv_type="f8")
    with pytest.raises(graft.InvalidArgument, match="'kv_type'.*line break"):
        graft.executorch.set_options(kv_type="f16\nthreads=2")


def test_the_example():
    script = Path(__file__).resolve().parents[2] / "examples" / "executorch" / "methods.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ExecuTorch: [1.5, 3.0, 4.5]\ngraft:      [1.5, 3.0, 4.5]\n"
