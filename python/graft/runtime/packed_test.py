"""Packed weights on disk: what `graft.pack` writes and what loads keep in a folder is used where it fits, and never
where it does not."""

import gc
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file
from torch.export import Dim

import graft


class Net(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


X = torch.randn(9, 256)


def export(path, seed=0, **options):
    rows = {0: Dim("rows", min=1, max=64)}
    path.parent.mkdir(parents=True, exist_ok=True)
    return graft.export(Net(seed).eval(), (torch.randn(4, 256),), dynamic_shapes=(rows,), path=path, **options)


def load(path, **options):
    """With nothing left of earlier loads, whose memory would be shared."""
    gc.collect()
    return graft.load(path, **options)


def eager(seed=0):
    with torch.no_grad():
        return Net(seed)(X)


def right(model, seed=0, tolerance=1e-5):
    torch.testing.assert_close(model(X), eager(seed), atol=tolerance, rtol=tolerance)


def from_files(model):
    return model.stats()["packed_file_bytes"]


def refusal(model):
    stats = model.stats()
    assert (stats["packed_files_refused"] > 0) == bool(stats["packed_refusal"])
    return stats["packed_refusal"]


def folder_options(folder, **more):
    return graft.LoadOptions(packed_folder=str(folder), **more)


@pytest.mark.parametrize("quantize", [None, "q8_0", "q4_0"])
def test_a_packed_file_beside_the_package(tmp_path, quantize):
    path = export(tmp_path / "net.pte", **({"quantize": quantize} if quantize else {}))
    expected = load(path)(X)
    written = graft.pack(path)
    assert written.path == f"{path}.packed" and written.entries > 0 and written.bytes > 0
    assert os.path.getsize(written.path) > written.bytes
    model = load(path)
    assert torch.equal(model(X), expected)
    assert from_files(model) == written.bytes and not refusal(model)
    (listed,) = [m for m in graft.models() if m.path == str(path)]
    assert listed.packed_file_bytes == listed.packed_bytes + listed.constant_bytes == written.bytes
    verified = load(path, options=graft.LoadOptions(verify_hashes=True))
    assert torch.equal(verified(X), expected)
    # Asked for, nothing is looked for.
    alone = load(shutil.copy(path, tmp_path / "copy.pte"))
    without = load(path, options=graft.LoadOptions(packed_files=False, merge_segments=3))
    for model in (alone, without):
        assert torch.equal(model(X), expected)
    assert from_files(alone) == 0


def test_a_copied_package_with_its_file(tmp_path):
    path = export(tmp_path / "net.pte")
    graft.pack(path, tmp_path / "copy.pte.packed")
    model = load(shutil.copy(path, tmp_path / "copy.pte"))
    right(model)
    assert from_files(model) > 0 and not refusal(model)


def test_another_package_under_the_same_name(tmp_path):
    path = export(tmp_path / "net.pte")
    graft.pack(path)
    os.replace(export(tmp_path / "other.pte", seed=1), path)
    model = load(path)
    right(model, seed=1)
    assert from_files(model) == 0
    assert "net.pte.packed' was packed from other weights or another program" in refusal(model)
    graft.pack(path)
    again = load(path, options=graft.LoadOptions(verify_hashes=True))
    right(again, seed=1)


def truncate(file):
    with open(file, "r+b") as out:
        out.truncate(os.path.getsize(file) // 2)


def spoil(file, at):
    with open(file, "r+b") as out:
        out.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = out.read(1)
        out.seek(-1, os.SEEK_CUR)
        out.write(bytes([byte[0] ^ 255]))


def replace_by_a_folder(file):
    os.remove(file)
    os.mkdir(file)


DAMAGES = {
    "truncated": (truncate, "is damaged: it must have"),
    "empty": (lambda file: open(file, "wb").close(), "is no file of packed weights"),
    "head": (lambda file: spoil(file, 100), "is damaged: the checksum of its head is wrong"),
    "entry": (lambda file: spoil(file, -5000), "is damaged: the SHA-256 of the entry"),
    "magic": (lambda file: spoil(file, 0), "is no file of packed weights"),
    "folder": (replace_by_a_folder, "not a regular file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    path = export(tmp_path / "net.pte")
    graft.pack(path)
    change, message = DAMAGES[damage]
    change(f"{path}.packed")
    model = load(path, options=graft.LoadOptions(verify_hashes=True))
    right(model)
    assert from_files(model) == 0 and model.stats()["packed_files_refused"] == 1
    assert f"{path}.packed'" in refusal(model) and message in refusal(model)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(tmp_path):
    path = export(tmp_path / "net.pte")
    os.chmod(graft.pack(path).path, 0)
    model = load(path)
    right(model)
    assert "Permission denied" in refusal(model)


def in_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_of_another_instruction_set_or_precision(tmp_path):
    path = export(tmp_path / "net.pte")
    code = f"""
        import torch, graft
        written = graft.pack({str(path)!r})
        print(written.bytes)
    """
    names = {"x86_64": "avx2", "aarch64": "neon"}
    isa = names.get(os.uname().machine)
    if isa:
        in_process(code, GRAFT_ISA=isa)
        model = load(path)
        right(model)
        if refusal(model):
            assert from_files(model) == 0
            assert "net.pte.packed' was packed for '" in refusal(model) and isa in refusal(model)
        else:
            assert from_files(model) > 0  # this CPU has no other
    graft.pack(path)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        model = load(path)
    finally:
        torch.set_float32_matmul_precision(before)
    right(model, tolerance=1e-2)
    assert from_files(model) == 0 and "was packed for '" in refusal(model)


def test_a_package_that_is_not_what_it_states(tmp_path):
    """Another package that states the same hashes must not get its weights."""
    path = export(tmp_path / "net.pte")
    content = path.read_bytes()
    weight = Net(0).up.weight.detach().numpy().tobytes()
    at = content.index(weight)
    bad = tmp_path / "bad.pte"
    bad.write_bytes(content[:at] + bytes(len(weight)) + content[at + len(weight) :])
    with pytest.raises(graft.InvalidProgram, match="weight 'up.weight' in '.*bad.pte' is not what the package states"):
        graft.pack(bad)
    assert not os.path.exists(f"{bad}.packed")
    folder = tmp_path / "folder"
    load(bad, options=folder_options(folder))(X)
    model = load(path, options=folder_options(folder))
    right(model)


def test_a_folder_that_loads_fill(tmp_path):
    path, folder = export(tmp_path / "net.pte"), tmp_path / "deep" / "folder"
    first = load(path, options=folder_options(folder))
    right(first)
    files = sorted(os.listdir(folder))
    assert len(files) == first.stats()["packed_files_written"] == 2 and all(f.endswith(".packed") for f in files)
    assert from_files(first) > 2 * 256 * 512 * 4 - 1
    # A copy is another file, of equal weights.
    second = load(shutil.copy(path, tmp_path / "copy.pte"), options=folder_options(folder))
    assert torch.equal(second(X), first(X))
    assert second.stats()["packed_files_written"] == 0 and from_files(second) == from_files(first)
    other = load(export(tmp_path / "other.pte", seed=1), options=folder_options(folder))
    right(other, seed=1)
    assert other.stats()["packed_files_written"] == 2 and len(os.listdir(folder)) == 4
    assert set(os.listdir(folder)) > set(files) and not refusal(other)


def test_damaged_files_of_the_folder_are_replaced(tmp_path):
    path, folder = export(tmp_path / "net.pte"), tmp_path / "folder"
    right(load(path, options=folder_options(folder)))
    for file in folder.iterdir():
        truncate(file)
    model = load(path, options=folder_options(folder))
    right(model)
    assert model.stats()["packed_files_refused"] == 2 == model.stats()["packed_files_written"]
    again = load(shutil.copy(path, tmp_path / "copy.pte"), options=folder_options(folder, verify_hashes=True))
    right(again)
    assert again.stats()["packed_files_refused"] == 0 == again.stats()["packed_files_written"]


def test_a_folder_that_cannot_be_written(tmp_path):
    path = export(tmp_path / "net.pte")
    model = load(path, options=folder_options(path / "below a file"))
    right(model)
    assert from_files(model) == 0 and "cannot write '" in refusal(model)


def test_weights_beside_the_package_are_known_by_file_and_time(tmp_path):
    path, weights = export(tmp_path / "net.pte", weights="external"), tmp_path / "net.safetensors"

    def save(seed):
        save_file({name: p.detach() for name, p in Net(seed).named_parameters()}, weights)

    save(0)
    graft.pack(path, weights=[weights])
    model = load(path, weights=[weights])
    right(model)
    assert from_files(model) > 0 and not refusal(model)
    del model
    save(1)  # the same size
    model = load(path, weights=[weights])
    right(model, seed=1)
    assert from_files(model) == 0 and "other weights" in refusal(model)


def test_weights_in_memory_are_not_looked_for(tmp_path):
    path = export(tmp_path / "net.pte")
    graft.pack(path)
    tensors = {name: p.detach() for name, p in Net(1).named_parameters()}
    model = load(path, tensors=tensors, options=folder_options(tmp_path / "folder"))
    right(model, seed=1)
    assert from_files(model) == 0 and not os.path.exists(tmp_path / "folder")


def test_delegates_use_the_folder(tmp_path):
    path, folder = export(tmp_path / "net.pte"), tmp_path / "folder"
    torch.save((X, eager()), tmp_path / "expected.pt")
    code = f"""
        import torch, graft
        from executorch.runtime import Runtime
        x, expected = torch.load({str(tmp_path / "expected.pt")!r})
        method = Runtime.get().load_program({str(path)!r}).load_method("forward")
        torch.testing.assert_close(method.execute((x,))[0], expected, atol=1e-5, rtol=1e-5)
        model, = graft.models()
        print(model.packed_file_bytes, model.constant_bytes)
    """
    for _ in range(2):
        mapped, constants = map(int, in_process(code, GRAFT_PACKED_FOLDER=str(folder)).split())
        assert constants - 64 * 1024 < mapped <= constants
        assert len(os.listdir(folder)) == 2
    # graft.load finds the same.
    model = load(path, options=folder_options(folder))
    right(model)
    assert model.stats()["packed_files_written"] == 0 and from_files(model) == mapped


def test_processes_that_fill_a_folder_at_once(tmp_path):
    path, folder = export(tmp_path / "net.pte"), tmp_path / "folder"
    torch.save((X, eager()), tmp_path / "expected.pt")
    code = textwrap.dedent(f"""
        import torch, graft
        x, expected = torch.load({str(tmp_path / "expected.pt")!r})
        for _ in range(20):
            model = graft.load({str(path)!r})
            torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)
            assert not model.stats()["packed_refusal"], model.stats()
            del model
    """)
    environment = {**os.environ, "GRAFT_PACKED_FOLDER": str(folder), "GRAFT_THREADS": "1"}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(os.listdir(folder)) == 2
