"""Programs of one file share its mapping and what is made of its weights; so do the methods of an ExecuTorch program."""

import gc
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime
from safetensors.torch import save_file
from torch.export import Dim

import graft


class Net(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


X = torch.randn(9, 64)


def export(path, seed=0, **options):
    rows = {0: Dim("rows", min=1, max=64)}
    return graft.export(Net(seed).eval(), (torch.randn(4, 64),), dynamic_shapes=(rows,), path=path, **options)


def right(model, seed=0, tolerance=1e-5):
    with torch.no_grad():
        torch.testing.assert_close(model(X), Net(seed)(X), atol=tolerance, rtol=tolerance)


def made(model):
    stats = model.stats()
    return stats["constant_bytes"] + stats["packed_bytes"] + stats["converted_bytes"] + stats["copied_bytes"]


def shared(model):
    return model.stats()["shared_bytes"]


def test_loads_of_one_file_share_until_the_last_is_gone(tmp_path):
    path = export(tmp_path / "net.pte")
    first = graft.load(path)
    assert made(first) > 64 * 256 * 4 and shared(first) == 0
    second = graft.load(path)
    assert shared(second) == made(first)
    right(first)
    del first
    gc.collect()
    third = graft.load(path)
    assert shared(third) == made(third) > 0
    right(second)
    right(third)
    del second, third
    gc.collect()
    assert shared(graft.load(path)) == 0


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_packed_and_converted_weights(tmp_path, quantize):
    path = export(tmp_path / "net.pte", quantize=quantize)
    first, second = graft.load(path), graft.load(path)
    assert shared(first) == 0 and shared(second) >= made(first) > 0
    right(second, tolerance=0.3)
    assert torch.equal(first(X), second(X))


def test_other_options_make_their_own(tmp_path):
    path = export(tmp_path / "net.pte")
    models = [graft.load(path), graft.load(path, options=graft.LoadOptions(fast_kernels=False)), graft.load(path)]
    for model in models:
        right(model)


def test_a_file_that_was_replaced_or_written_to_is_another(tmp_path):
    path, other = export(tmp_path / "net.pte"), export(tmp_path / "other.pte", seed=1)
    copy = shutil.copy(path, tmp_path / "copy.pte")
    first = graft.load(path)
    same_bytes = graft.load(copy)
    assert shared(same_bytes) == 0
    os.replace(other, path)
    second = graft.load(path)
    assert shared(second) == 0
    right(first)
    right(second, seed=1)
    del same_bytes
    gc.collect()
    content = path.read_bytes()
    with open(copy, "r+b") as file:
        file.write(content)
    os.utime(copy, (1, 1))
    third = graft.load(copy)
    assert shared(third) == 0
    right(third, seed=1)


def test_weights_beside_the_package_are_part_of_what_is_shared(tmp_path):
    path = export(tmp_path / "net.pte", weights="external")
    files = []
    for seed in (0, 1):
        files.append(tmp_path / f"{seed}.safetensors")
        save_file({name: p.detach() for name, p in Net(seed).named_parameters()}, files[-1])
    zero, one, again = (graft.load(path, weights=[files[i]]) for i in (0, 1, 0))
    assert [shared(model) > 0 for model in (zero, one, again)] == [False, False, True]
    given = graft.load(path, tensors={name: p.detach() for name, p in Net(1).named_parameters()})
    assert shared(given) == 0
    for model, seed in ((zero, 0), (one, 1), (again, 0), (given, 1)):
        right(model, seed)


def models_of(path):
    return [model for model in graft.models() if model.path == str(path)]


def test_models_and_unload(tmp_path):
    path = export(tmp_path / "net.pte")
    first, second = graft.load(path), graft.load(path, threads=1)
    right(first)
    right(second)
    (model,) = models_of(path)
    assert (model.programs, model.delegates, model.unloaded, model.device) == (2, 0, False, "cpu")
    assert model.mapped_bytes == path.stat().st_size and len(model.content) == 64
    assert model.packed_bytes + model.constant_bytes == made(first)
    # Plans depend on the number of threads.
    plans = first.stats()["plans_made"] + second.stats()["plans_made"]
    assert model.plans == plans > 0 and model.plan_bytes > 0
    graft.unload(model.id)
    right(first)
    anew = graft.load(path)
    assert shared(anew) == 0
    right(anew)
    assert [m.unloaded for m in models_of(path)] == [True, False]
    del first, second
    gc.collect()
    (left,) = models_of(path)
    assert not left.unloaded and left.id > model.id
    with pytest.raises(graft.NotFound, match=f"no model {model.id} is loaded; there are: .*{left.id}"):
        graft.unload(model.id)
    for wrong in (-1, "1", True, 2**64):
        with pytest.raises(graft.InvalidArgument, match="id must be that of a model"):
            graft.unload(wrong)
    del anew
    gc.collect()
    assert not models_of(path)


def test_loads_share_plans(tmp_path):
    path = export(tmp_path / "net.pte")
    models = [graft.load(path, threads=1) for _ in range(3)]
    for model in models:
        right(model)
    assert [model.stats()["plans_made"] for model in models] == [1, 0, 0]
    limited = graft.load(path, threads=1, options=graft.LoadOptions(max_plan_bytes=64))
    with pytest.raises(graft.Unsupported):
        limited(X)


def delegates():
    return [model for model in graft.models() if model.delegates]


class Executed:
    """A method of an ExecuTorch program of its own."""

    def __init__(self, *args, **options) -> None:
        self.program = Runtime.get().load_program(*args, **options)
        self.method = self.program.load_method("forward")

    def __call__(self, x):
        return self.method.execute((x,))[0].clone()


@pytest.mark.parametrize("kind", ["file", "memory", "data"])
def test_programs_of_executorch_share_by_content(tmp_path, kind):
    path = export(tmp_path / "net.pte", **({"weights": "ptd"} if kind == "data" else {}))
    options = {"data_path": str(path.with_suffix(".ptd"))} if kind == "data" else {}

    def load():
        # Each in memory of its own.
        return Executed(path.read_bytes() if kind == "memory" else str(path), **options)

    assert not delegates()
    first = load()
    (alone,) = delegates()
    assert alone.constant_bytes > 64 * 256 * 4
    programs = [first, load(), load()]
    (model,) = delegates()
    assert model.id == alone.id and model.delegates == 3 and model.constant_bytes == alone.constant_bytes
    for program in programs:
        right(program)
    (model,) = delegates()
    assert model.plans == 1
    # Nothing depends on the program that came first.
    del first, programs[0], program
    gc.collect()
    programs.append(load())
    (model,) = delegates()
    assert model.id == alone.id and model.delegates == 3 and model.constant_bytes == alone.constant_bytes
    for program in programs:
        right(program)
    graft.unload(model.id)
    other = load()
    assert len(delegates()) == 2
    for program in (*programs, other):
        right(program)
    del programs, program, other
    gc.collect()
    assert not delegates()


def test_programs_of_executorch_with_other_weights_do_not_share(tmp_path):
    paths = [export(tmp_path / f"{seed}.pte", seed=seed) for seed in (0, 1)]
    programs = [Executed(str(paths[seed])) for seed in (0, 1, 0)]
    assert [model.delegates for model in delegates()] == [2, 1]
    for program, seed in zip(programs, (0, 1, 0), strict=True):
        right(program, seed)


def test_a_data_file_with_other_weights_under_the_same_claims(tmp_path):
    """The package states hashes of seed 0; what counts are the bytes."""
    paths = [export(tmp_path / str(seed) / "net.pte", seed=seed, weights="ptd") for seed in (0, 1)]
    data = [str(path.with_suffix(".ptd")) for path in paths]
    programs = [Executed(str(paths[0]), data_path=data[seed]) for seed in (0, 1, 0, 1)]
    for program, seed in zip(programs, (0, 1, 0, 1), strict=True):
        right(program, seed)
    (model,) = delegates()
    assert model.delegates == 4


def test_loads_at_once(tmp_path):
    path, wrong = export(tmp_path / "net.pte"), []
    expected = graft.load(path)(X)
    gc.collect()

    def work():
        for _ in range(5):
            model = graft.load(path, threads=1)
            if not torch.equal(model(X), expected):
                wrong.append(model)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="memory is read from /proc")
@pytest.mark.parametrize("case", ["loads", "methods in graft", "methods in ExecuTorch", "programs in ExecuTorch"])
def test_a_weight_is_packed_once(tmp_path, case):
    """In a process of its own: 16 MiB of weight, used four times."""
    code = f"""
        import re, torch, graft
        from torch.export import Dim
        from executorch.runtime import Runtime
        weight = torch.nn.Linear(2048, 2048, bias=False)
        class Net(torch.nn.Module):
            def __init__(self, factor):
                super().__init__()
                self.weight, self.factor = weight, factor
            def forward(self, x):
                return self.weight(x) * self.factor
        rows = {{0: Dim("rows", min=1, max=64)}}
        x = torch.randn(4, 2048)
        methods = {{f"m{{i}}": {{"model": Net(i + 1.0), "args": (x,), "dynamic_shapes": (rows,)}} for i in range(4)}}
        path = graft.export(methods=methods, path={str(tmp_path / "net.pte")!r})
        def anonymous():
            text = open("/proc/self/smaps_rollup").read()
            return int(re.search(r"^Anonymous:\\s+(\\d+)", text, re.M)[1]) / 1024
        before, case = anonymous(), {case!r}
        if case == "loads":
            models = [graft.load(path, threads=1) for _ in range(4)]
            calls = [models[i].methods[f"m{{i}}"] for i in range(4)]
        elif case == "methods in graft":
            model = graft.load(path, threads=1)
            calls = list(model.methods.values())
        else:
            count = 4 if case == "programs in ExecuTorch" else 1
            programs = [Runtime.get().load_program(str(path)) for _ in range(count)]
            loaded = [programs[i % count].load_method(f"m{{i}}") for i in range(4)]
            model, = graft.models()
            assert model.programs == model.delegates == 4 and model.constant_bytes < 17 << 20, model
            calls = [lambda x, m=m: m.execute((x,))[0] for m in loaded]
        with torch.no_grad():
            for i, call in enumerate(calls):
                torch.testing.assert_close(call(x), weight(x) * (i + 1.0), atol=1e-4, rtol=1e-4)
        print(anonymous() - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 26, "MiB; 64 when each makes its own"


ROOT = Path(__file__).resolve().parents[3]


def test_the_example_of_docs(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "sharing.md").read_text(), re.M | re.S)
    export(tmp_path / "net.pte")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ net\.pte \d+ 1\n", done.stdout)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="memory is read from /proc")
@pytest.mark.parametrize("kind", ["graft", "executorch"])
def test_memory_of_methods_loads_and_processes(kind):
    """The table of docs/sharing.md, in multiples of the weight. Beside it: arenas, graphs and the allocator's rest."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "sharing.py"), "--mb", "32", "--json", "--only", f"^{kind} "],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["case"]: row for row in json.loads(done.stdout)}
    rest = 0.35
    for case in ("1 method", "4 methods", "3 loads"):
        assert 0.95 < rows[case]["anonymous"] < 1 + rest, rows[case]
    assert 3.9 < rows["4 processes"]["anonymous"] < 4 + 4 * rest
    for case, processes in (("1 process, packed file", 1), ("4 processes, packed file", 4)):
        assert rows[case]["anonymous"] < processes * rest, rows[case]
    # The package's own pages are left to the system, ExecuTorch's mapping included.
    for case in ("1 method", "4 methods", "3 loads", "1 process, packed file"):
        assert 0.95 < rows[case]["proportional"] < 1 + rest, rows[case]
    assert rows["4 processes, packed file"]["proportional"] < 1 + 4 * rest
    assert rows["4 processes, packed file"]["private"] < 4 * rest
