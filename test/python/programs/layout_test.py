"""Channels-last inputs, weights and results: right in Python and in ExecuTorch's runtime, and no slower inside."""

import json

import pytest
import torch
from executorch.runtime import Runtime
from ir_text import FakePredicate

import graft
import graft.runtime
from graft import _C


class Block(torch.nn.Module):
    """An inverted residual of MobileNetV2."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        conv, norm, act = torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.ReLU6
        self.layers = torch.nn.Sequential(
            *(conv(channels, wide, 1, bias=False), norm(wide), act()),
            *(conv(wide, wide, 3, stride, 1, groups=wide, bias=False), norm(wide), act()),
            *(conv(wide, out, 1, bias=False), norm(out)),
        )
        self.skips = stride == 1 and channels == out

    def forward(self, x):
        return x + self.layers(x) if self.skips else self.layers(x)


class Net(torch.nn.Module):
    """MobileNet in small: logits, and the last feature map, which keeps the layout of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2, 1), Block(8, 12, 2), Block(12, 12, 1)
        )
        self.head = torch.nn.Linear(12, 10)
        self.eval()
        for norm in self.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                torch.nn.init.normal_(norm.running_mean)
                torch.nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x):
        maps = self.features(x)
        return self.head(maps.mean((2, 3))), maps


LAST = torch.channels_last


def _image(height: int = 33, width: int = 40, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(height))


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """By (layout of weights, layout of the example)."""
    folder = tmp_path_factory.mktemp("layout")
    size = {0: torch.export.Dim("n", min=1, max=4), 2: torch.export.Dim("h", min=8, max=64)}
    found = {}
    for weights in (torch.contiguous_format, LAST):
        for example in (torch.contiguous_format, LAST):
            net = Net().to(memory_format=weights)
            path = folder / f"{len(found)}.pte"
            x = _image().contiguous(memory_format=example)
            found[weights, example] = graft.export(net, (x,), dynamic_shapes=({**size},), path=path)
    return found


BOTH = [(w, e) for w in (torch.contiguous_format, LAST) for e in (torch.contiguous_format, LAST)]


@pytest.mark.parametrize(("weights", "example"), BOTH)
def test_in_python(packages, weights, example):
    model, net = graft.load(packages[weights, example], threads=2), Net()
    for height, batch in ((33, 2), (20, 1), (64, 3)):
        x = _image(height, batch=batch)
        expected = net(x)
        for given in (x, x.contiguous(memory_format=LAST)):
            torch.testing.assert_close(model(given), expected, atol=1e-4, rtol=1e-4)
    # The Python side copied the input in another layout, once.
    assert model.counters()["io_copies"] == 3


@pytest.mark.parametrize(("weights", "example"), BOTH)
def test_in_executorch(packages, weights, example):
    program = Runtime.get().load_program(str(packages[weights, example]))
    method = program.load_method("forward")
    for height, batch in ((33, 2), (20, 1), (64, 3)):
        x = _image(height, batch=batch)
        expected = Net()(x)
        logits, maps = method.execute([x.contiguous(memory_format=example)])
        torch.testing.assert_close(logits, expected[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(maps, expected[1], atol=1e-4, rtol=1e-4)
        # As the exporter recorded it, which is eager's layout.
        last = weights == LAST or example == LAST
        assert maps.is_contiguous(memory_format=LAST if last else torch.contiguous_format)


def _launches(path, example) -> dict[str, int]:
    """By kernel, of a run; copies in the dtype of their values are copies of layouts."""
    program = _C.Program.load(str(path))
    model = graft.runtime.Model(program, _C.Session(program, threads=2))
    model(_image().contiguous(memory_format=example))
    (method,) = json.loads(program.describe())["methods"]
    counts: dict[str, int] = {}
    for used in method["plans"][0]["ops"].values():
        for kernel in used:
            counts[kernel] = counts.get(kernel, 0) + 1
    return counts


def test_the_same_kernels_run_for_any_layout(packages):
    """Channels last costs one copy of each input and result at the boundary, and none between layers."""
    plain = _launches(packages[BOTH[0]], BOTH[0][1])
    for key in BOTH[1:]:
        assert _launches(packages[key], key[1]) == plain


class Formats(torch.nn.Module):
    def forward(self, x):
        last = x.to(memory_format=LAST) * 2
        return last, last.contiguous(), torch.empty_like(last).copy_(x), x.clone(memory_format=LAST).permute(0, 2, 3, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.uint8, torch.int16])
def test_formats_inside_a_program(tmp_path, dtype):
    x = (torch.arange(2 * 5 * 19 * 33) % 100).view(2, 5, 19, 33).to(dtype)
    path = graft.export(Formats(), (x,), path=tmp_path / "f.pte")
    for found, expected in zip(graft.load(path)(x), Formats()(x), strict=True):
        assert torch.equal(found, expected)
    method = Runtime.get().load_program(str(path)).load_method("forward")
    for found, expected in zip(method.execute([x]), Formats()(x), strict=True):
        assert torch.equal(found, expected)


class Volume(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = torch.nn.Conv3d(3, 5, 3, padding=1)

    def forward(self, x):
        return self.conv(x).relu()


def test_three_dimensions(tmp_path):
    x = torch.randn(2, 3, 5, 6, 7).contiguous(memory_format=torch.channels_last_3d)
    net = Volume().to(memory_format=torch.channels_last_3d).eval()
    path = graft.export(net, (x,), path=tmp_path / "v.pte")
    torch.testing.assert_close(graft.load(path)(x), net(x), atol=1e-5, rtol=1e-5)


class Split(torch.nn.Module):
    """The middle is not graft's: its neighbours hand over what they have in the layout that was exported."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = torch.nn.Conv2d(3, 6, 3), torch.nn.Conv2d(6, 4, 3)

    def forward(self, x):
        return self.second(self.first(x).sin()).relu()


@pytest.mark.parametrize("example", [torch.contiguous_format, LAST])
def test_between_delegates(tmp_path, example):
    x = torch.randn(2, 3, 12, 13).contiguous(memory_format=example)
    net = Split().eval()
    predicate = FakePredicate(["aten.sin.default"], preserve=_C.preserved_targets())
    path = graft.export(net, (x,), path=tmp_path / "s.pte", allow_fallback=True, options=graft.ExportOptions(predicate=predicate))
    (found,) = Runtime.get().load_program(str(path)).load_method("forward").execute([x])
    torch.testing.assert_close(found, net(x), atol=1e-5, rtol=1e-5)
