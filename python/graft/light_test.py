"""Running a package needs numpy alone: no torch, transformers or executorch."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import graft
from graft import _extras

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "test" / "golden"

# An installation without the packages of the extras.
WITHOUT = """
import sys
BLOCKED = {"torch", "transformers", "executorch", "torchao", "flatbuffers", "safetensors", "tokenizers", "ml_dtypes"}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Blocked())
import numpy as np
import pytest
import graft
"""


def run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_with_everything_installed_imports_none_of_it():
    pytest.importorskip("executorch")
    pytest.importorskip("transformers")
    code = """
        import sys
        import graft
        graft.load, graft.Tokenizer, graft.TextGenerator, graft.BatchGenerator, graft.pack, graft.Pipeline, graft.models
        heavy = {"torch", "transformers", "executorch", "torchao", "flatbuffers", "tokenizers"}
        print(sorted(heavy & set(sys.modules)), graft.executorch.register() is not None)
    """
    assert run(code) == "[] True\n"  # and ExecuTorch's runtime knows the delegate all the same


def test_the_golden_package_with_numpy_alone():
    code = (
        WITHOUT
        + """
folder = sys.argv[1]
stored, model = np.load(f"{folder}/golden.npz"), graft.load(f"{folder}/golden.pte")
def leaves(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for item in tree for leaf in leaves(item)] if isinstance(tree, (list, tuple)) else [tree]
calls = sorted({tuple(key.split(".")[:2]) for key in stored})
for method, call in calls:
    side = lambda name: {int(key.rpartition(".")[2]): stored[key] for key in stored if key.startswith(f"{method}.{call}.{name}.")}
    found = leaves(model.methods[method](*side("in").values()))
    for i, expected in side("out").items():
        assert not expected.ndim or type(found[i]) is np.ndarray, type(found[i])
        array = np.asarray(found[i])
        assert array.dtype == expected.dtype and array.shape == expected.shape, (method, i, array.dtype, array.shape)
        atol = 2e-3 if expected.dtype == np.float16 else 2e-6
        np.testing.assert_allclose(array, expected, atol=atol, rtol=1e-5)
print(len(calls), sorted(BLOCKED & set(sys.modules)))
"""
    )
    assert run(code, GOLDEN) == "10 []\n"


class Everything(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, x, y):
        self.seen.add_(x)
        return {"sum": x + y, "largest": torch.max(x, 1), "size": x.shape}, [self.seen * 1]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("light") / "everything.pte"
    return graft.export(Everything(), (torch.ones(2, 3), torch.ones(2, 3)), path=path)


CALLS = """
model = graft.load(sys.argv[1])
x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)
found, (seen,) = model(x, y)
np.testing.assert_array_equal(found["sum"], x + y)
assert type(found["largest"]) is tuple and type(found["size"]) is tuple and found["size"] == (2, 3)
np.testing.assert_array_equal(found["largest"][0], [2, 5])
np.testing.assert_array_equal(found["largest"][1], [2, 2])
np.testing.assert_array_equal(seen, x)
np.testing.assert_array_equal(model.states()["seen"], x)

# Kept: later calls write elsewhere. Strided, read-only and unaligned arrays, DLPack of another library, scalars in out=.
model.reset()
kept = found["sum"].copy()
bytes_ = np.zeros(25, np.uint8)
unaligned = bytes_[1:].view(np.float32).reshape(2, 3)
unaligned[:] = x
unaligned.flags.writeable = False
copies = model.counters()["io_copies"]
np.testing.assert_array_equal(model(unaligned, y.T.copy().T)[0]["sum"], x + y)
assert model.counters()["io_copies"] == copies + 2, model.counters()
class Foreign:
    def __dlpack__(self, **kwargs):
        return y.__dlpack__(**kwargs)
    def __dlpack_device__(self):
        return y.__dlpack_device__()
model.reset()
np.testing.assert_array_equal(model(x, Foreign())[0]["sum"], x + y)
np.testing.assert_array_equal(found["sum"], kept)

# Results in memory of the caller; runs in the background; kernels observed; weights and arena lent.
model.reset()
out = ({"sum": np.empty((2, 3), np.float32), "largest": (np.empty(2, np.float32), np.empty(2, np.int64)), "size": (0, 0)},
       [np.empty((2, 3), np.float32)])
assert model(x, y, out=out)[0]["sum"] is out[0]["sum"]
np.testing.assert_array_equal(out[0]["largest"][1], [2, 2])
model.reset()
result = model.forward.submit(x, y).result()
assert type(result[0]["sum"]) is np.ndarray
np.testing.assert_array_equal(result[0]["sum"], x + y)
nodes = []
model.forward(x, y, observe=lambda node, kernel, outputs: nodes.extend(outputs))
assert nodes and all(type(array) is np.ndarray for array in nodes)
memory = np.zeros(model.forward.plan(x, y)["arena_bytes"] + 64, np.uint8)
memory = memory[-memory.ctypes.data % 64 :]
np.testing.assert_array_equal(model.forward(x, y, arena=memory)[0]["sum"], x + y)

for wrong, text in (
    ((x.astype(">f4"), y), "input 0 of method 'forward': dtype >f4 is not supported"),
    ((x, y.astype(np.complex64)), "input 1 of method 'forward': dtype complex64 is not supported"),
    ((x, y.astype(np.float64)), "input 1"),
    ((x, object()), "input 1 of method 'forward': must be a tensor, a number, a text or None, got object"),
    ((x,), "arguments are not arranged as at export"),
):
    with pytest.raises(graft.InvalidArgument) as error:
        model(*wrong)
    assert text in str(error.value), error.value
with pytest.raises(graft.InvalidArgument, match="must be a contiguous array float32"):
    model(x, y, out=({**out[0], "sum": np.empty((2, 3))}, out[1]))
print("right")
"""


def test_calls_with_numpy_alone(package):
    assert run(WITHOUT + CALLS, package) == "right\n"


def test_the_same_arrays_where_torch_is_imported(package):
    """Arrays in, arrays out; tensors in, tensors out; a tensor among arrays decides."""
    model = graft.load(package)
    x, y = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 10.0)
    for args, kind in (
        ((x, y), torch.Tensor),
        ((x.numpy(), y.numpy()), np.ndarray),
        ((x.numpy(), y), torch.Tensor),
        ((x, y.numpy()), torch.Tensor),
    ):
        model.reset()
        found, (seen,) = model(*args)
        assert type(found["sum"]) is kind and type(seen) is kind
        np.testing.assert_array_equal(np.asarray(found["sum"]), (x + y).numpy())
        assert type(found["largest"]) is torch.return_types.max and found["size"] == (2, 3)
        submitted, _ = model.forward.submit(*args).result()
        assert type(submitted["sum"]) is kind
    assert type(model.states()["seen"]) is torch.Tensor


class Drawn(torch.nn.Module):
    def forward(self, n: int):
        return torch.arange(4) * 2


def test_calls_without_arrays_follow_torch(tmp_path):
    graft.export(Drawn(), (3,), path=tmp_path / "drawn.pte")
    assert type(graft.load(tmp_path / "drawn.pte")(3)) is torch.Tensor
    code = WITHOUT + "\nresult = graft.load(sys.argv[1])(3)\nprint(type(result).__name__, result.tolist())"
    assert run(code, tmp_path / "drawn.pte") == "ndarray [0, 2, 4, 6]\n"


class Brain(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.bfloat16)


def test_bfloat16_without_ml_dtypes_is_an_error(tmp_path):
    graft.export(Brain(), (torch.ones(3),), path=tmp_path / "brain.pte")
    code = (
        WITHOUT
        + """
model = graft.load(sys.argv[1])
for call in (lambda: model(np.ones(3, np.float32)), lambda: model.forward.submit(np.ones(3, np.float32)).result()):
    with pytest.raises(graft.Unsupported, match="bfloat16.*ml_dtypes"):
        call()
"""
    )
    run(code, tmp_path / "brain.pte")


def test_outputs_of_transformers_become_dicts(tmp_path):
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Encoder(torch.nn.Module):
        def forward(self, x):
            return outputs.BaseModelOutput(last_hidden_state=x + 1, hidden_states=(x, x * 2))

    graft.export(Encoder(), (torch.ones(2),), path=tmp_path / "encoder.pte")
    assert type(graft.load(tmp_path / "encoder.pte")(torch.ones(2))) is outputs.BaseModelOutput
    code = (
        WITHOUT
        + """
result = graft.load(sys.argv[1])(np.ones(2, np.float32))
print(type(result) is dict, {key: np.asarray(value).tolist() for key, value in result.items()})
"""
    )
    expected = "True {'last_hidden_state': [2.0, 2.0], 'hidden_states': [[1.0, 1.0], [2.0, 2.0]]}\n"
    assert run(code, tmp_path / "encoder.pte") == expected


def test_what_is_missing_names_the_extra():
    code = (
        WITHOUT
        + """
for name, package, extra in (
    ("export", "torch", "export"), ("compare", "torch", "export"), ("GraftPartitioner", "torch", "export"),
    ("Flow", "torch", "export"), ("compile", "torch", "hf"), ("export_llm", "torch", "hf"), ("hf", "torch", "hf"),
):
    with pytest.raises(ModuleNotFoundError) as error:
        getattr(graft, name)
    expected = f"graft.{name} needs the package '{package}', which is not installed: pip install 'graft[{extra}]'"
    assert str(error.value) == expected, error.value
with pytest.raises(ModuleNotFoundError, match="graft.exporter needs.*graft.export"):
    import graft.exporter.partitioner
with pytest.raises(ModuleNotFoundError, match="graft.hf needs.*graft.hf"):
    import graft.hf.cache
BLOCKED -= {"torch"}
with pytest.raises(ModuleNotFoundError) as error:
    graft.compile
assert "'transformers', which is not installed: pip install 'graft[hf]'" in str(error.value), error.value
"""
    )
    run(code)


def test_a_package_for_executorch_names_the_extra(tmp_path):
    class Unknown(torch.nn.Module):
        def forward(self, x):
            return torch.special.i0(x) + 1

    try:
        graft.export(Unknown(), (torch.ones(3),), path=tmp_path / "net.pte", allow_fallback=True)
    except graft.ExportError as e:
        pytest.skip(f"no package with nodes of ExecuTorch's: {e}")
    code = (
        WITHOUT
        + r"""
with pytest.raises(graft.Unsupported, match=r"needs ExecuTorch's runtime.*pip install 'graft\[export\]'"):
    graft.load(sys.argv[1])
"""
    )
    run(code, tmp_path / "net.pte")


def test_language_models_are_compiled_without_executorch(tmp_path):
    """Its exporter is the longest import of all."""
    code = """
        import os, sys
        os.environ["GRAFT_CACHE"] = sys.argv[1]
        import graft, torch, transformers
        sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
        config = transformers.Qwen3Config(**sizes, num_key_value_heads=1, head_dim=16)
        model = transformers.Qwen3ForCausalLM(config).eval()
        graft.compile(model)
        assert model.graft.stats()["compiled"]["from_disk"] is False
        print([name for name in sys.modules if name.partition(".")[0] == "executorch"])
    """
    assert run(code, tmp_path) == "[]\n"


def test_extras_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        extra: {re.split(r"[=<>\[]", package)[0] for package in packages}
        for extra, packages in project["optional-dependencies"].items()
    }
    faster = {"ruamel.yaml.clib"}  # what executorch finds by itself, and goes without
    assert {"torch", "executorch", "flatbuffers"} <= extras["export"] <= set(_EXTRAS_OF("export")) | faster
    assert {"transformers"} <= extras["hf"] <= set(_EXTRAS_OF("hf")) | {"graft"}


def _EXTRAS_OF(extra: str) -> tuple[str, ...]:
    return _extras._EXTRAS[extra]
