"""examples/custom_op, compiled out of the tree against what is installed: operators of torch.library inside graft."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime

import graft

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "custom_op"


def _compile(source: Path, target: Path) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "a C++ compiler is needed, as for the build"
    library = Path(graft.__file__).parent / "lib" / "libgraft.so"
    command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'include'}", str(source), str(library)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example's definitions, with its library loaded."""
    library = _compile(EXAMPLE / "ops.cpp", tmp_path_factory.mktemp("ops") / "libcustom_op.so")
    names = runpy.run_path(str(EXAMPLE / "example.py"))
    names["library"] = str(library)
    model = names["Model"]()
    with pytest.raises(graft.errors.ExportError, match="example.soft_shrink.default.*no such operator"):
        graft.export(model, (torch.randn(4, 5),), path=library.parent / "model.pte")
    graft.load_ops(library)
    graft.load_ops(library)  # calling it twice is no error
    return names


def test_example(example, capsys):
    example["main"](example["library"])
    assert "the same" in capsys.readouterr().out


def test_under_executorch(example, tmp_path):
    model, x = example["Model"](), torch.randn(4, 5)
    program = to_edge_transform_and_lower(
        torch.export.export(model, (x,)),
        partitioner=[graft.GraftPartitioner()],
        compile_config=EdgeCompileConfig(_skip_dim_order=True, _check_ir_validity=False),
    ).to_executorch()
    (tmp_path / "model.pte").write_bytes(program.buffer)
    found = Runtime.get().load_program(str(tmp_path / "model.pte")).load_method("forward").execute((x,))
    for a, b in zip(found, model(x), strict=True):
        torch.testing.assert_close(a, b)


def test_the_predicate_is_asked(example, tmp_path):
    class Doubles(torch.nn.Module):
        def forward(self, x):
            return example["soft_shrink"](x, 0.5)

    with pytest.raises(graft.errors.ExportError, match="x must be f32"):
        graft.export(Doubles(), (torch.randn(4, dtype=torch.float64),), path=tmp_path / "model.pte")


def test_an_exception_of_the_kernel(example, tmp_path):
    class Runs(torch.nn.Module):
        def forward(self, x, y):
            return example["runs"]([x, y], [1, 2])

    dims = ({0: torch.export.Dim("n", min=0, max=9)}, {0: torch.export.Dim("m", min=0, max=9)})
    path = graft.export(Runs(), (torch.randn(3), torch.randn(4)), dynamic_shapes=dims, path=tmp_path / "model.pte")
    model = graft.load(path)
    with pytest.raises(graft.errors.ExecutionError, match="runs.*part 1 is empty"):
        model(torch.randn(3), torch.randn(0))
    assert model(torch.ones(3), torch.ones(2))[0].tolist() == [3, 4]  # the session stays usable


def test_bad_libraries(example, tmp_path):
    with pytest.raises(graft.errors.SystemError, match="does not load"):
        graft.load_ops(tmp_path / "missing.so")
    (tmp_path / "empty.cpp").write_text("int nothing;\n")
    with pytest.raises(graft.errors.NotFound, match="graft_register_ops"):
        graft.load_ops(_compile(tmp_path / "empty.cpp", tmp_path / "libempty.so"))
    (tmp_path / "again.cpp").write_text((EXAMPLE / "ops.cpp").read_text() + "// a copy\n")
    with pytest.raises(graft.errors.InvalidArgument, match="registered before"):
        graft.load_ops(_compile(tmp_path / "again.cpp", tmp_path / "libagain.so"))


def test_a_method_of_a_package_is_an_operator(tmp_path):
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

        def forward(self, x, scale):
            return self.second(torch.relu(self.first(x))) * scale, x.sum(-1)

    inner = Inner().eval()

    @torch.library.custom_op("example::inner", mutates_args=())
    def inner_op(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inner(x, scale)

    @inner_op.register_fake
    def _(x, scale):
        return torch.empty_like(x), x.new_empty(x.shape[:-1])

    class Outer(torch.nn.Module):
        def forward(self, x):
            y, sums = inner_op(torch.tanh(x), x[0])
            return torch.softmax(y, -1), sums + 1

    x, rows = torch.randn(5, 16), torch.export.Dim("rows", min=1, max=64)
    path = graft.export(inner, (x, x[0]), path=tmp_path / "inner.pte", dynamic_shapes={"x": {0: rows}, "scale": None})
    model = graft.load(path)
    with pytest.raises(graft.errors.NotFound, match="no method 'backward'"):
        graft.register_op("example.inner.default", model, "backward")
    graft.register_op("example.inner.default", model)
    with pytest.raises(graft.errors.InvalidArgument, match="registered before"):
        graft.register_op("example.inner.default", model)
    outer = graft.export(Outer(), (x,), path=tmp_path / "outer.pte", dynamic_shapes={"x": {0: rows}})
    for threads in (1, 2):
        loaded = graft.load(outer, threads=threads)
        for count in (5, 1, 33):
            x = torch.randn(count, 16)
            for found, expected in zip(loaded(x), Outer()(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
