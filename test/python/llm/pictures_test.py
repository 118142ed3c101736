"""Models of pictures and text, from a folder of transformers to text, against eager PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import graft
from picture_models import PICTURE_MODELS, PictureModel, description, picture

pytestmark = pytest.mark.usefixtures("one_thread")
_TILES = ("idefics3", "smolvlm")
# Tiny, wide, tall, square, large: [height, width].
_SHAPES = [(1, 1), (7, 90), (140, 20), (32, 32), (33, 31), (300, 410)]


class Made:
    """A model, its package, its processor and itself in eager PyTorch."""

    def __init__(self, kind: PictureModel, folder: Path) -> None:
        self.kind = kind
        self.folder = kind.save(folder / kind.name)
        self.package = graft.export_llm(self.folder, folder / f"{kind.name}.pte")
        self.processor = kind.processor(self.folder)
        self.eager = transformers.AutoModelForImageTextToText.from_pretrained(self.folder, attn_implementation="eager").eval()

    @functools.cached_property
    def generator(self) -> graft.TextGenerator:
        return graft.TextGenerator(self.package, threads=1, rows=2)

    def prompt(self, text: str, pictures: Sequence[np.ndarray]) -> Any:
        """As the generator reads it."""
        pixels = [(image.tobytes(), *image.shape[:2]) for image in pictures]
        return self.generator.model.image_prompt(text.encode(), pixels)

    def features(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of all pictures: [rows, width]."""
        names = ("pixel_values", "image_grid_thw", "pixel_attention_mask")
        found = self.eager.get_image_features(**{name: given[name] for name in names if name in given}, return_dict=True)
        deep = [torch.cat(list(one)) for one in getattr(found, "deepstack_features", None) or []]
        return torch.cat([torch.cat(list(found.pooler_output)), *deep], -1)

    def logits(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        # generate() computes the positions; a call of the model alone would keep those of the call before.
        if hasattr(self.eager.model, "rope_deltas"):
            self.eager.model.rope_deltas = None
        with torch.no_grad():
            return self.eager(**given, use_cache=False).logits[0]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("pictures"))


each_model = pytest.mark.parametrize("made", PICTURE_MODELS, ids=lambda kind: kind.name, indirect=True)


def prepared(prompt: Any, index: int) -> list[torch.Tensor]:
    arrays = [np.frombuffer(data, dtype=kind).reshape(sizes) for kind, sizes, data in prompt.prepared(index)]
    return [torch.from_numpy(array.copy()) for array in arrays]


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


@each_model
def test_pixels_are_those_of_the_processor(made: Made) -> None:
    for height, width in _SHAPES:
        image = picture(height, width, height)
        given = made.processor.prepared([image])
        prompt = made.prompt(f"a{made.kind.place}b", [image])
        found = prepared(prompt, 0)
        if "image_grid_thw" in given:
            # Patches in the order of the processor.
            order = torch.tensor(prompt.order(0))
            pixels = found[0].reshape(-1, 4, found[0].shape[-1])[order].flatten(0, 1)
            close(pixels, given["pixel_values"], 1e-5)
            rows = found[1].reshape(-1, 4, 2)[order].flatten(0, 1).amax(0) + 1
            assert rows.tolist() == given["image_grid_thw"][0, 1:].tolist()
        else:
            close(found[0], given["pixel_values"].reshape(found[0].shape), 1e-5)


@each_model
def test_prompts_are_those_of_the_processor(made: Made) -> None:
    place = made.kind.place
    for count in range(3):
        images = [picture(20 + 30 * i, 70, i) for i in range(count)]
        text = "Look: " + f"{place} and ".join([""] * count + ["what is it?"])
        assert made.prompt(text, images).tokens == made.processor(text, images)["input_ids"][0].tolist()


@each_model
def test_features(made: Made) -> None:
    method = graft.load(made.package, threads=1).methods["encode_image"]
    for height, width in _SHAPES:
        image = picture(height, width, width)
        expected = made.features(made.processor.prepared([image]))
        prompt = made.prompt(made.kind.place, [image])
        found = method(*prepared(prompt, 0))
        order = prompt.order(0)
        close(found[torch.tensor(order)] if order else found, expected)


@each_model
def test_logits_of_prompts(made: Made) -> None:
    place = made.kind.place
    one, two = picture(40, 60, 1), picture(90, 30, 2)
    for text, images in [
        (f"{place}", [one]),
        (f"Before {place} after", [one]),
        (f"{place}{place} both", [one, two]),
        (f"A {place} and B {place}, what differs?", [two, one]),
        ("No picture at all", []),
    ]:
        close(made.generator.logits(text, images=images), made.logits(made.processor(text, images)))


@each_model
@pytest.mark.parametrize("chunk", [5, 16])
def test_logits_of_prompts_in_parts(made: Made, chunk: int) -> None:
    """Runs that begin and end within a picture, and behind it."""
    generator = graft.TextGenerator(made.package, threads=1, prefill_chunk_size=chunk)
    text, images = f"A {made.kind.place} and B {made.kind.place}, what differs?", [picture(40, 60, 1), picture(90, 30, 2)]
    close(generator.logits(text, images=images), made.logits(made.processor(text, images)))


def generated(made: Made, text: str, images: Sequence[np.ndarray], count: int = 24) -> list[int]:
    given = made.processor(text, list(images))
    if hasattr(made.eager.model, "rope_deltas"):
        made.eager.model.rope_deltas = None
    found = made.eager.generate(**given, max_new_tokens=count, do_sample=False)
    return found[0, given["input_ids"].shape[1] :].tolist()


@each_model
def test_texts_are_those_of_generate(made: Made) -> None:
    place = made.kind.place
    one, two = picture(40, 60, 1), picture(90, 30, 2)
    for text, images in [
        (f"Before {place} after", [one]),
        (f"A {place} and B {place}, what differs?", [two, one]),
        ("No picture at all", []),
    ]:
        found = made.generator.generate(text, images=images, max_new_tokens=24)
        assert found.tokens == generated(made, text, images)


@each_model
def test_pictures_with_equal_placeholders_are_not_confused(made: Made) -> None:
    """What the cache has of one picture is not used for another, and is used for the same."""
    generator = graft.TextGenerator(made.package, threads=1)
    text = f"Before {made.kind.place} after"
    one, two = picture(40, 60, 1), picture(40, 60, 2)
    assert made.prompt(text, [one]).tokens == made.prompt(text, [two]).tokens
    answers = [generated(made, text, [image]) for image in (one, two)]
    for image, expected in [(one, answers[0]), (two, answers[1]), (one, answers[0])]:
        assert generator.generate(text, images=[image], max_new_tokens=24).tokens == expected
        before = text.index("<") + (1 if "vision_start" in made.kind.place else 0)
        assert generator.stats["reused_tokens"] <= before + 3  # of what stands before the picture's own tokens
    assert generator.generate(text + "!", images=[one], max_new_tokens=24).tokens == generated(made, text + "!", [one])
    assert generator.stats["reused_tokens"] == len(made.prompt(text, [one]).tokens)
