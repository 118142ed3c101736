"""Pictures as Pillow and transformers read and prepare them."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import torch
import transformers

import graft
from graft import _C
from pictures import picture, vit

PIL = pytest.importorskip("PIL.Image")
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def resized(image: np.ndarray, height: int, width: int, resample: int) -> np.ndarray:
    found, rows, columns = _C.resize_image(image.tobytes(), *image.shape[:2], height, width, resample)
    return np.frombuffer(found, np.uint8).reshape(rows, columns, 3)


@pytest.mark.parametrize("resample", FILTERS, ids=FILTERS.values())
def test_sizes_are_those_of_pillow(resample):
    sizes = [(1, 1), (3, 50), (17, 31), (64, 64), (97, 40), (224, 224)]
    different = 0
    for (h, w), (to_h, to_w) in itertools.product(sizes, sizes):
        image = picture(h, w, h)
        expected = np.asarray(PIL.fromarray(image).resize((to_w, to_h), resample=resample))
        np.testing.assert_array_equal(resized(image, to_h, to_w, resample), expected, f"{h} x {w} to {to_h} x {to_w}")
        different += not (h, w) == (to_h, to_w)
    assert different == 30


def test_a_photograph_of_another_shape():
    image = picture(1080, 1920)
    for resample in FILTERS:
        expected = np.asarray(PIL.fromarray(image).resize((398, 224), resample=resample))
        np.testing.assert_array_equal(resized(image, 224, 398, resample), expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "LA"])
@pytest.mark.parametrize("kind", ["png", "bmp"])
def test_files(tmp_path, kind, mode):
    if (kind, mode) in {("bmp", "LA"), ("bmp", "RGBA")}:
        pytest.skip("Pillow writes no such file, or one that other programs read otherwise")
    image = PIL.fromarray(picture(37, 53)).convert(mode)
    image.save(tmp_path / f"a.{kind}")
    expected = np.asarray(PIL.open(tmp_path / f"a.{kind}").convert("RGB"))
    np.testing.assert_array_equal(graft.load_image(tmp_path / f"a.{kind}"), expected)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_files(tmp_path, subsampling, progressive):
    """Decoders of JPEG round differently, and may make more pixels of a colour's few: not by much."""
    PIL.fromarray(picture(75, 131)).save(tmp_path / "a.jpg", quality=90, subsampling=subsampling, progressive=progressive)
    expected = np.asarray(PIL.open(tmp_path / "a.jpg").convert("RGB")).astype(int)
    found = graft.load_image(tmp_path / "a.jpg").astype(int)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= (3 if subsampling == 0 else 40) and np.abs(found - expected).mean() < 0.7


def test_wrong_files(tmp_path):
    image = PIL.fromarray(picture(40, 40))
    whole = io.BytesIO()
    image.save(whole, "png")
    flat = io.BytesIO()
    image.save(flat, "bmp")
    no_rows = bytearray(flat.getvalue())
    no_rows[22:26] = bytes(4)
    deep = io.BytesIO()
    PIL.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40)).save(deep, "png")
    for content, said in [
        (b"", "cannot be read: expected PNG, JPEG or BMP"),
        (b"GIF89a and so on", "cannot be read: expected PNG, JPEG or BMP, found 16 bytes of something else"),
        (whole.getvalue()[:200], "is damaged"),
        (deep.getvalue(), "16 bits"),
        (no_rows, "has 40 x 0 pixels: expected 1 to"),
    ]:
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(graft.InvalidArgument, match="a.png.*" + said):
            graft.load_image(tmp_path / "a.png")
    with pytest.raises(graft.NotFound):
        graft.load_image(tmp_path / "none.png")


class Same(torch.nn.Module):
    """A model whose package is made quickly."""

    config = None

    def forward(self, pixel_values, return_dict):
        return {"last_hidden_state": pixel_values * 1}


T = transformers
PROCESSORS = {
    "ViT": lambda: T.ViTImageProcessorPil(size={"height": 32, "width": 32}),
    "ViT with another filter": lambda: T.ViTImageProcessorPil(size={"height": 32, "width": 32}, resample=3),
    "ViT without normalizing": lambda: T.ViTImageProcessorPil(size={"height": 32, "width": 32}, do_normalize=False),
    "DeiT": lambda: T.DeiTImageProcessorPil(size={"height": 40, "width": 40}, crop_size={"height": 32, "width": 32}),
    "CLIP": lambda: T.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    "CLIP with a larger crop": lambda: T.CLIPImageProcessorPil(size={"shortest_edge": 27}, crop_size={"height": 32, "width": 32}),
    "Siglip": lambda: T.SiglipImageProcessorPil(size={"height": 32, "width": 32}),
    "ConvNext": lambda: T.ConvNextImageProcessorPil(size={"shortest_edge": 32}),
    "ConvNext without a crop": lambda: T.ConvNextImageProcessorPil(size={"shortest_edge": 384}),
    "Bit": lambda: T.BitImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}),
    "MobileNetV1": lambda: T.MobileNetV1ImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}),
    "MobileNetV2": lambda: T.MobileNetV2ImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}),
    "Beit": lambda: T.BeitImageProcessorPil(size={"height": 32, "width": 32}),
    "Pvt": lambda: T.PvtImageProcessorPil(size={"height": 32, "width": 32}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name, tmp_path):
    processor = PROCESSORS[name]()
    size = 384 if "384" in str(processor.to_dict().get("size")) else 32
    package = graft.export_image_model(Same(), tmp_path / "same.pte", processor=processor)
    ours = graft.ImageProcessor(package)
    for i, (h, w) in enumerate([(32, 32), (33, 90), (71, 40), (8, 8), (100, 101), (29, 64)]):
        image = picture(h, w, i)
        expected = processor(PIL.fromarray(image), return_tensors="np")["pixel_values"][0]
        found = ours(image)
        assert found.shape == expected.shape == (3, size, size)
        np.testing.assert_array_equal(found, expected, f"{h} x {w}")


def test_what_is_refused(tmp_path):
    def refused(processor, said):
        with pytest.raises(graft.ExportError, match=said):
            graft.export_image_model(vit(), tmp_path / "no.pte", processor=processor)

    refused(None, "expected the processor of a model that is no folder or name, found none")
    refused(T.LevitImageProcessorPil(), "expected one of .*ViTImageProcessor, found LevitImageProcessorPil")
    refused(T.CLIPImageProcessorPil(do_center_crop=False), "expected a processor that gives pictures of one size")
    assert not (tmp_path / "no.pte").exists()
    x = torch.zeros(1, 3, 8, 8)
    plain = graft.export(torch.nn.Conv2d(3, 2, 3).eval(), (x,), path=tmp_path / "plain.pte")
    with pytest.raises(graft.InvalidArgument, match="does not say how pictures become its input"):
        graft.ImageProcessor(plain)


def test_packages_give_what_the_models_give(tmp_path):
    model, processor = vit(), PROCESSORS["CLIP"]()
    package = graft.export_image_model(model, tmp_path / "vit.pte", processor=processor)
    ours = graft.ImageProcessor(package)
    assert ours.labels == ["kind 0", "kind 1", "kind 2"]
    pixels = np.stack([ours(picture(50, 40, i)) for i in range(5)])
    found = graft.load(package)(torch.from_numpy(pixels))
    with torch.no_grad():
        expected = model(torch.from_numpy(pixels)).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
