"""Trained networks that see and hear, with the results that their weights are known to give."""

from __future__ import annotations

import struct
import wave
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from torch import nn
from torch.nn import functional as F

import graft
from test_data import DATA, networks

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture(scope="module")
def nets():
    return networks()


def weights(folder: str) -> dict[str, torch.Tensor]:
    (path,) = (DATA / folder).glob("*.safetensors")
    return safetensors.load_file(path)


def check_one_delegate_call(package: Path) -> None:
    (plan,) = deserialize_pte_binary(package.read_bytes()).program.execution_plan
    (chain,) = plan.chains
    assert [type(i.instr_args).__name__ for i in chain.instructions] == ["DelegateCall"] and plan.operators == []


# --- MobileNetV2 ---


def read_bmp(path: Path) -> torch.Tensor:
    """[H, W, 3] of a file of 24 bits per pixel."""
    data = path.read_bytes()
    (start,) = struct.unpack_from("<I", data, 10)
    width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
    assert bits == 24 and height > 0
    line = (3 * width + 3) // 4 * 4
    rows = np.frombuffer(data, np.uint8, line * height, start).reshape(height, line)[::-1, : 3 * width]
    return torch.from_numpy(rows.reshape(height, width, 3)[..., ::-1].copy())


def read_png(path: Path) -> torch.Tensor:
    """[H, W, 3] of a file of 8 bits per channel without interlacing."""
    data = path.read_bytes()
    at, packed, width, height = 8, b"", 0, 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, colour, interlaced) == (8, 2, 0)
        if kind == b"IDAT":
            packed += body
        at += 12 + size
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 3 * width)
    image = np.zeros((height + 1, 3 * (width + 1)), np.int64)  # a black row above and pixel on the left
    for y, (kind, *line) in enumerate(lines.tolist(), 1):
        for x, value in enumerate(line, 3):
            a, b, c = (int(v) for v in (image[y, x - 3], image[y - 1, x], image[y - 1, x - 3]))
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            image[y, x] = (value + (0, a, b, (a + b) // 2, nearest)[kind]) % 256
    return torch.from_numpy(image[1:, 3:].reshape(height, width, 3).astype(np.uint8))


def prepared(image: torch.Tensor, *, resize: bool) -> torch.Tensor:
    """[1, 3, 224, 224] as the network was trained on: short side to 256, centre crop, mean and deviation."""
    x = image.permute(2, 0, 1)[None]
    if resize:
        scale = 256 / min(x.shape[2:])
        size = [round(s * scale) for s in x.shape[2:]]
        x = F.interpolate(x, size, mode="bilinear", antialias=True)
        top, left = ((s - 224) // 2 for s in size)
        x = x[:, :, top : top + 224, left : left + 224]
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x.float() / 255 - mean[:, None, None]) / deviation[:, None, None]


@pytest.fixture(scope="module")
def mobilenet(nets):
    net = nets.MobileNetV2().eval()
    net.load_state_dict(weights("mobilenet_v2"))
    return net


@pytest.fixture(scope="module")
def mobilenet_package(mobilenet, tmp_path_factory):
    path = tmp_path_factory.mktemp("mobilenet") / "mobilenet.pte"
    sizes = {0: torch.export.Dim("batch", max=16)}
    sizes |= {d: 32 * torch.export.Dim(name, min=2, max=16) for d, name in ((2, "rows"), (3, "columns"))}
    return graft.export(mobilenet, (torch.randn(2, 3, 224, 192),), dynamic_shapes=(sizes,), path=path)


def check_logits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


IMAGES = [("dog_224.png", 258, 0.816), ("cat.bmp", 285, 0.737), ("bird.bmp", 19, 0.998)]


@torch.no_grad()
def test_mobilenet_recognizes_pictures(mobilenet, mobilenet_package):
    check_one_delegate_call(mobilenet_package)
    model = graft.load(mobilenet_package)
    assert model.forward.info["segments"] == 1
    images = []
    for name, label, probability in IMAGES:
        path = DATA / "mobilenet_v2" / name
        x = prepared(read_png(path), resize=False) if path.suffix == ".png" else prepared(read_bmp(path), resize=True)
        images.append(x)
        logits = model(x)
        check_logits(logits, mobilenet(x))
        top = logits.softmax(1).max(1)
        assert (int(top.indices), round(float(top.values), 3)) == (label, probability)
    labels = model(torch.cat(images)).argmax(1).tolist()
    assert labels == [label for _, label, _ in IMAGES]


@torch.no_grad()
def test_mobilenet_reproduces_the_logits_of_another_runtime(mobilenet_package):
    golden = np.load(DATA / "mobilenet_v2" / "dog_golden.npz")
    x = torch.from_numpy((golden["input"].astype(np.float32) - golden["zero_point"]) * golden["scale"]).float()
    check_logits(graft.load(mobilenet_package)(x), torch.from_numpy(golden["logits"]))


@torch.no_grad()
def test_mobilenet_of_any_batch_height_and_width(mobilenet, mobilenet_package):
    model = graft.load(mobilenet_package)
    for shape in [(1, 3, 64, 64), (5, 3, 96, 160), (2, 3, 512, 64), (16, 3, 64, 96)]:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        check_logits(model(x), mobilenet(x))


# --- silero-vad ---

FRAME, CONTEXT = 512, 64


class Detector(nn.Module):
    """Speech probability [1, 1] of the next frame [1, 512]; what it remembers of those before are its buffers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("h", torch.zeros(1, 128))
        self.register_buffer("c", torch.zeros(1, 128))
        self.register_buffer("context", torch.zeros(1, CONTEXT))

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        p, h, c = self.net(torch.cat((self.context, frame), 1), self.h, self.c)
        self.h.copy_(h)
        self.c.copy_(c)
        self.context.copy_(frame[:, -CONTEXT:])
        return p


@pytest.fixture(scope="module")
def speech(nets) -> torch.Tensor:
    with wave.open(str(DATA / "silero_vad" / "speech_60s_16k.wav")) as f:
        assert (f.getframerate(), f.getnchannels(), f.getsampwidth()) == (16000, 1, 2)
        samples = np.frombuffer(f.readframes(f.getnframes()), np.int16)
    return torch.from_numpy(samples.astype(np.float32) / 32768)[: 1875 * FRAME].view(1875, 1, FRAME)


@pytest.fixture
def silero(nets):
    net = nets.SileroVad().eval()
    net.load_state_dict(weights("silero_vad"))
    return net


def check_speech(probabilities: torch.Tensor) -> None:
    assert int((probabilities > 0.5).sum()) == 1452
    assert round(float(probabilities.mean()), 4) == 0.7783
    assert [round(float(p), 4) for p in probabilities[:5]] == [0.2083, 0.8179, 0.8912, 0.9964, 0.9992]


@torch.no_grad()
def test_silero_with_its_states_as_buffers(silero, speech, tmp_path):
    package = graft.export(Detector(silero), (speech[0],), path=tmp_path / "silero.pte")
    check_one_delegate_call(package)
    model, eager = graft.load(package), Detector(silero)
    assert all(method.info["segments"] == 1 for method in model.methods.values())
    found = torch.cat([model(frame)[0] for frame in speech])
    expected = torch.cat([eager(frame)[0] for frame in speech])
    check_speech(found)
    assert float((found - expected).abs().max()) <= 1e-5
    assert model.counters()["plan_misses"] == 1
    model.reset()
    again = torch.cat([model(frame)[0] for frame in speech[:5]])
    assert torch.equal(again, found[:5])


@torch.no_grad()
def test_silero_with_its_states_as_inputs_and_outputs(silero, speech, tmp_path):
    state = torch.zeros(1, 128)
    package = graft.export(silero, (torch.zeros(1, CONTEXT + FRAME), state, state), path=tmp_path / "silero.pte")
    check_one_delegate_call(package)
    model = graft.load(package)
    context, h, c, found = torch.zeros(1, CONTEXT), state, state, []
    for frame in speech:
        p, h, c = model(torch.cat((context, frame), 1), h, c)
        context = frame[:, -CONTEXT:]
        found.append(p[0])
    check_speech(torch.cat(found))


@torch.no_grad()
def test_silero_on_several_streams_at_once(silero, speech, tmp_path):
    batch = torch.export.Dim("batch", max=32)
    state = torch.zeros(2, 128)
    package = graft.export(
        silero,
        (torch.zeros(2, CONTEXT + FRAME), state, state),
        dynamic_shapes=({0: batch}, {0: batch}, {0: batch}),
        path=tmp_path / "silero.pte",
    )
    model = graft.load(package)
    for streams in (1, 3, 32):
        x = speech[:, 0].flatten()[: streams * (CONTEXT + FRAME)].view(streams, -1)
        state = torch.randn(streams, 128, generator=torch.Generator().manual_seed(streams))
        for found, expected in zip(model(x, state, -state), silero(x, state, -state), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
