"""Loading through Python and the command line: where weights come from, phases, shrinking, memory."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.export import Dim

import graft

PHASES = ["parse", "verify", "weights", "constants", "states", "shrink"]
GGML_TYPES = {torch.float32: 0, torch.float16: 1, torch.int64: 27}


class Encoder(nn.Module):
    """The shape of MiniLM: embeddings, layers of attention and feed-forward, a mask computed from another input."""

    def __init__(self, hidden: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(100, hidden)
        self.positions = nn.Embedding(32, hidden)
        self.register_buffer("position_ids", torch.arange(32)[None], persistent=False)
        self.layers = nn.ModuleList([Layer(hidden) for _ in range(layers)])
        self.head = nn.Linear(hidden, 100, bias=False)
        self.head.weight = self.words.weight  # tied

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions(self.position_ids[:, : ids.shape[1]])
        keep = mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, keep)
        return self.head(x)


class Layer(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(2)])

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.unflatten(-1, (4, -1)).transpose(1, 2)

        y = nn.functional.scaled_dot_product_attention(
            heads(self.query(x)), heads(self.key(x)), heads(self.value(x)), attn_mask=keep
        )
        x = self.norms[0](x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


def call(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = (torch.arange(2 * tokens) * 37 % 100).reshape(2, tokens)
    mask = torch.ones(2, tokens, dtype=torch.int64)
    mask[1, tokens // 2 :] = 0
    return ids, mask


def write_gguf(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0)
    data = b""
    for name, tensor in tensors.items():
        sizes = list(reversed(tensor.shape)) or [1]
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, GGML_TYPES[tensor.dtype], len(data))
        data += tensor.numpy().tobytes()
        data += bytes(-len(data) % 32)
    head += bytes(-len(head) % 32)
    path.write_bytes(head + data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load")
    torch.manual_seed(0)
    model = Encoder().eval()
    for parameter in model.parameters():  # no two equal by chance, unlike zeros and ones
        torch.nn.init.normal_(parameter, std=0.2)
    shapes = {"ids": {0: Dim("batch", min=1), 1: Dim("tokens", min=1, max=32)}}
    shapes["mask"] = shapes["ids"]
    program = torch.export.export(model, call(7), dynamic_shapes=shapes)
    for weights in ("package", "ptd", "external"):
        graft.export(program, path=path / f"{weights}.pte", weights=weights)
    state = dict(model.named_parameters())  # tied ones once, as checkpoints have them
    state = {name: p.detach().clone() for name, p in state.items()}
    torch.save(state, path / "state.pt")
    save_file(state, path / "model.safetensors")
    names = sorted(state)
    shards = {name: f"model-{1 + i % 2}.safetensors" for i, name in enumerate(names)}
    for shard in set(shards.values()):
        save_file({n: state[n] for n in names if shards[n] == shard}, path / shard)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    write_gguf(path / "model.gguf", state)
    with torch.no_grad():
        torch.save({n: model(*call(n)) for n in (3, 7, 20)}, path / "expected.pt")
    return path


def state(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "state.pt")


def outputs(model: graft.Model) -> list[torch.Tensor]:
    return [model(*call(n)) for n in (3, 7, 20)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def misaligned(path: Path) -> int:
    """Bytes of the f32 tensors whose address in the file is not a multiple of 4."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8 : 8 + length])
    entries.pop("__metadata__", None)
    return sum(
        e["data_offsets"][1] - e["data_offsets"][0] for e in entries.values() if (8 + length + e["data_offsets"][0]) % 4
    )


def with_odd_header(path: Path, to: Path) -> Path:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    to.write_bytes(struct.pack("<Q", length + 1) + data[8 : 8 + length] + b" " + data[8 + length :])
    return to


def test_all_kinds_of_weights_run_bit_identical(folder: Path, tmp_path: Path) -> None:
    package = graft.load(folder / "package.pte")
    expected = outputs(package)
    for found, eager in zip(expected, torch.load(folder / "expected.pt").values(), strict=True):
        torch.testing.assert_close(found, eager, atol=2e-5, rtol=1e-5)
    held = package.stats()
    assert held["copied_bytes"] == held["given_bytes"] == 0
    odd = with_odd_header(folder / "model.safetensors", tmp_path / "odd.safetensors")
    total = sum(t.numel() * 4 for t in state(folder).values())
    assert misaligned(folder / "model.safetensors") == 0 and misaligned(odd) == total
    cases = {
        "ptd": ["ptd.ptd"],
        "external": ["model.safetensors"],
        "sharded": ["model.safetensors.index.json"],
        "gguf": ["model.gguf"],
        "odd": [odd],
    }
    for name, files in cases.items():
        path = folder / ("ptd.pte" if name == "ptd" else "external.pte")
        model = graft.load(path, weights=[folder / f for f in files], options=graft.LoadOptions(verify_hashes=True))
        assert same(outputs(model), expected), name
        stats = model.stats()
        assert stats["weight_bytes"] == held["weight_bytes"], name
        assert stats["copied_bytes"] == (total if name == "odd" else 0), name
    assert (folder / "external.pte").stat().st_size < total / 2 < (folder / "package.pte").stat().st_size


def test_weights_in_memory(folder: Path) -> None:
    expected = outputs(graft.load(folder / "package.pte"))
    tensors = state(folder)
    model = graft.load(folder / "external.pte", tensors=tensors)
    stats = model.stats()
    assert stats["given_bytes"] == sum(t.numel() * 4 for t in tensors.values())
    assert stats["copied_bytes"] == 0
    tensors.clear()  # the model keeps them
    # They are read in place, not packed: sums in another order.
    for found, packed in zip(outputs(model), expected, strict=True):
        torch.testing.assert_close(found, packed, rtol=1e-5, atol=1e-6)
    # Weights in memory take precedence over files.
    changed = {"words.weight": torch.zeros(100, 64)}
    model = graft.load(folder / "external.pte", weights=[folder / "model.safetensors"], tensors=changed)
    assert model(*call(3)).abs().max() == 0  # the head is tied to the embedding


def test_a_package_in_memory(folder: Path) -> None:
    expected = outputs(graft.load(folder / "package.pte"))
    content = (folder / "package.pte").read_bytes()
    model = graft.load(content)
    del content
    assert same(outputs(model), expected)
    with open(folder / "package.pte", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    model = graft.load(mapped)
    model.shrink()
    assert same(outputs(model), expected)
    with pytest.raises(graft.InvalidArgument, match="aligned to 16"):
        graft.load(memoryview(mapped)[4:])
    with pytest.raises(graft.InvalidArgument, match="buffer"):
        graft.load(17)


def test_weights_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    path = folder / "external.pte"
    good = state(folder)
    name = "layers.0.query.weight"

    def load(tensors: dict[str, torch.Tensor]) -> graft.Model:
        save_file(tensors, tmp_path / "other.safetensors")
        return graft.load(path, weights=[tmp_path / "other.safetensors"])

    with pytest.raises(graft.NotFound, match=r"phase weights: no weight '[a-z.]*weight'.* in .*external.pte'; give"):
        graft.load(path)
    with pytest.raises(graft.NotFound, match=rf"no weight '{name}' in .*other.safe.*like it there: 'model.{name}'"):
        load({("model." + n if n == name else n): t for n, t in good.items()})
    with pytest.raises(graft.InvalidProgram, match=rf"'{name}' must have dtype f32, .*other.safetensors' has F64"):
        load({**good, name: good[name].double()})
    with pytest.raises(graft.InvalidProgram, match=rf"'{name}' must have sizes \[64, 64\], .* has \[64, 32\]"):
        load({**good, name: good[name][:, :32].contiguous()})
    # All weights that do not fit are listed, not only the first.
    with pytest.raises(graft.NotFound) as none:
        graft.load(path)
    assert all(f"weight '{n}'" in str(none.value) for n in good)
    left = dict(list(good.items())[2:])
    with pytest.raises(graft.InvalidProgram) as several:
        load({**left, name: good[name].double()} if name in left else {**left, list(left)[0]: torch.zeros(1).double()})
    assert "phase weights: 3 of" in str(several.value)
    assert all(f"weight '{n}'" in str(several.value) for n in list(good)[:2]) and "has F64" in str(several.value)
    # Another model with the same sizes: only its hashes differ.
    save_file({**good, name: good[name] + 1}, tmp_path / "other.safetensors")
    graft.load(path, weights=[tmp_path / "other.safetensors"])
    with pytest.raises(graft.InvalidProgram, match=rf"'{name}'.*is not what was exported"):
        graft.load(path, weights=[tmp_path / "other.safetensors"], options=graft.LoadOptions(verify_hashes=True))
    for wrong, message in {
        "double": (good[name].double(), "must be f32.*given is f64"),
        "sizes": (good[name][:3].contiguous(), r"must be f32\[64, 64\], the memory given is f32\[3, 64\]"),
        "strided": (good[name].t(), "contiguous"),
        "complex": (good[name].to(torch.complex64), rf"tensors\['{name}'\]: dtype torch.complex64 is not supported"),
        "misaligned": (torch.zeros(64 * 64 * 4 + 1, dtype=torch.uint8)[1:], "must be f32"),
    }.values():
        with pytest.raises(graft.InvalidArgument, match=message):
            graft.load(path, weights=[folder / "model.safetensors"], tensors={name: wrong})
    with pytest.raises(graft.InvalidArgument, match="'typo', which the program does not have"):
        graft.load(path, weights=[folder / "model.safetensors"], tensors={"typo": good[name]})
    with pytest.raises(graft.InvalidProgram, match="appears|again in"):
        graft.load(path, weights=[folder / "model.safetensors", folder / "model.gguf"])


def test_equal_weights_of_an_external_checkpoint_stay_apart(tmp_path: Path) -> None:
    """Two norms are equal when a model is new, and differ in its checkpoint."""

    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.LayerNorm(8), nn.LayerNorm(8)
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x.sum(0))
            return self.b(self.a(x)) + self.seen

    x = torch.randn(3, 8)
    graft.export(Norms().eval(), (x,), path=tmp_path / "n.pte", weights="external")
    trained = Norms().eval()
    for tensor in (*trained.parameters(), trained.seen):
        tensor.data = torch.randn(8)
    save_file({n: t.clone() for n, t in trained.state_dict().items()}, tmp_path / "n.safetensors")
    found = graft.load(tmp_path / "n.pte", weights=[tmp_path / "n.safetensors"])(x)
    with torch.no_grad():
        torch.testing.assert_close(found, trained(x))


def test_phases(folder: Path) -> None:
    seen: list[str] = []
    model = graft.load(folder / "package.pte", options=graft.LoadOptions(on_phase=seen.append))
    assert seen == PHASES
    outputs(model)
    phases = {p["name"]: p for p in model.stats()["phases"]}
    assert list(phases) == [*PHASES, "plans", "launch sequence"]
    assert [p["times"] for p in phases.values()] == [1, 1, 1, 1, 1, 1, 3, 3]
    assert phases["weights"]["bytes"] == model.stats()["weight_bytes"]
    for fault in PHASES:

        def fail(phase: str, fault: str = fault) -> None:
            if phase == fault:
                raise KeyError(fault)

        with pytest.raises(Exception, match=fault):
            graft.load(folder / "package.pte", options=graft.LoadOptions(on_phase=fail))


def test_shrink(folder: Path) -> None:
    expected = outputs(graft.load(folder / "package.pte"))
    model = graft.load(folder / "package.pte")
    model(*call(7))
    before = model.stats()
    assert before["graph_bytes"] >= before["phases"][0]["bytes"] > 50_000
    model.shrink()
    after = model.stats()
    assert after["graph_bytes"] == 0 and after["graph_bytes_freed"] == before["graph_bytes"]
    assert after["constant_bytes"] == before["constant_bytes"]
    assert same(outputs(model), expected)
    assert model.stats()["graphs_read_again"] == 2 and model.stats()["graph_bytes"] == 0


def test_a_package_that_changed_on_disk(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.pte"
    path.write_bytes((folder / "package.pte").read_bytes())
    model = graft.load(path)
    expected = model(*call(7))
    model.shrink()
    os.utime(path, (1, 1))
    with pytest.raises(graft.InvalidProgram, match="m.pte' changed on disk since it was loaded"):
        model(*call(8))
    assert torch.equal(model(*call(7)), expected)


SESSIONS = """
import sys, torch, graft
from graft import _C
def anonymous():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))
program = _C.Program.load(sys.argv[1])
keep = []
def session():
    s = _C.Session(program, threads=1)
    for rows in (1, 2, 3):
        x, y = torch.ones(rows, 2048), torch.empty(rows, 2048)
        s.run_into("forward", [(x.data_ptr(), 0, (rows, 2048))], [(y.data_ptr(), 0, (rows, 2048))])
    keep.append(s)
session()
before = anonymous()
for _ in range(3): session()
with open("/proc/self/maps") as f:
    mappings = sum(sys.argv[1] in line for line in f)
print(anonymous() - before, mappings, program.stats()["weight_bytes"], program.stats()["copied_bytes"])
"""


def test_one_mapping_for_four_sessions_of_three_plans(tmp_path: Path) -> None:
    path = tmp_path / "linear.pte"
    model = nn.Linear(2048, 2048, bias=False).eval()
    graft.export(model, (torch.ones(2, 2048),), path=path, dynamic_shapes=({0: Dim("rows", min=1, max=8)},))
    done = subprocess.run([sys.executable, "-c", SESSIONS, path], capture_output=True, text=True, check=True)
    grown, mappings, weights, copied = map(int, done.stdout.split())
    assert (mappings, weights, copied) == (1, 2048 * 2048 * 4, 0)
    assert grown < weights / 8


def test_command_line(folder: Path, tmp_path: Path) -> None:
    binary = os.environ.get("GRAFT_CLI") or str(Path(sys.executable).parent / "graft")
    ids, mask = call(7)
    np.savez(tmp_path / "in.npz", ids=ids.numpy(), mask=mask.numpy())

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *map(str, args)], capture_output=True, text=True)

    found = []
    for package, weights in (("package", []), ("external", ["--weights", folder / "model.gguf"])):
        out = tmp_path / f"{package}.npz"
        done = run("run", folder / f"{package}.pte", *weights, "--inputs", tmp_path / "in.npz", "--outputs", out)
        assert done.returncode == 0, done.stderr
        found.append(next(iter(np.load(out).values())))
    np.testing.assert_array_equal(*found)
    text = run("inspect", folder / "package.pte", "--phases", "--shape", "ids=2,7", "--shape", "mask=2,7").stdout
    rows = {line.split("  ")[1].strip(): line.split() for line in text[text.index("\nphases") :].splitlines()[2:]}
    assert {*PHASES, "plans", "launch sequence"} <= rows.keys()
    assert "after shrink 0" in text
    described = json.loads(run("inspect", folder / "package.pte", "--json").stdout)
    assert [p["name"] for p in described["phases"]] == PHASES
    assert described["graphs"]["bytes"] > 0 and described["weights"]["copied_bytes"] == 0
    assert "no weight '" in run("inspect", folder / "external.pte").stderr
