"""Models of pictures and text, from a folder of transformers to text, against eager PyTorch."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

import graft
from graft.errors import ExportError
from graft.llm import pictures, trace
from graft.llm.pictures import token_of
from picture_models import BY_NAME, PICTURE_MODELS, PictureModel, picture
from runner_test import binary

pytestmark = pytest.mark.usefixtures("one_thread")
# Tiny, wide, tall, square, large: [height, width].
_SHAPES = [(1, 1), (8, 90), (140, 20), (32, 32), (33, 31), (300, 410)]


class Made:
    """A model, its package, its processor and itself in eager PyTorch."""

    def __init__(self, kind: PictureModel, folder: Path) -> None:
        self.kind = kind
        self.folder = kind.save(folder / kind.name)
        self.package = graft.export_llm(self.folder, folder / f"{kind.name}.pte")
        self.processor = kind.processor(self.folder)
        self.eager = kind.auto.from_pretrained(self.folder, attn_implementation="eager").eval()

    @functools.cached_property
    def generator(self) -> graft.TextGenerator:
        return graft.TextGenerator(self.package, threads=1, rows=2)

    def prompt(self, text: str, pictures: Sequence[np.ndarray]) -> Any:
        """As the generator reads it."""
        pixels = [(image.tobytes(), *image.shape[:2]) for image in pictures]
        return self.generator.model.image_prompt(text.encode(), pixels)

    def without_pictures(self, text: str) -> list[tuple[str, list[np.ndarray]]]:
        """A prompt for models that take one."""
        return [] if self.kind.whole else [(text, [])]

    def features(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of all pictures: [rows, width]."""
        if hasattr(self.processor, "features"):
            return self.processor.features(self.eager, given)
        if self.kind.attended:
            names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
            with torch.no_grad():
                seen = self.eager.model.vision_model(**{name: given[name] for name in names}).last_hidden_state
                return self.eager.model.multi_modal_projector(seen).flatten(0, -2)
        names = ("pixel_values", "image_grid_thw", "pixel_attention_mask", "image_position_ids")
        found = self.eager.get_image_features(**{name: given[name] for name in names if name in given}, return_dict=True)
        deep = [torch.cat(list(one)) for one in getattr(found, "deepstack_features", None) or []]
        rows = found.pooler_output
        return torch.cat([torch.cat(list(rows)) if not torch.is_tensor(rows) else rows.flatten(0, 1), *deep], -1)

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
        elif "image_position_ids" in given:
            # Patches of which the model has the channels last, row by row.
            places = given["image_position_ids"][0]
            of_model = {tuple(place): patch for place, patch in zip(places.flip(-1).tolist(), given["pixel_values"][0])}
            expected = torch.stack([of_model[tuple(place)] for place in found[1].flatten(0, 1).tolist()])
            assert len(expected) == int((places >= 0).all(-1).sum())
            close(found[0].flatten(0, 1), expected.unflatten(-1, (-1, 3)).transpose(1, 2).flatten(1), 1e-5)
        elif "image_pixel_values" in given:
            close(found[0], given["image_pixel_values"][0], 1e-5)
            assert torch.equal(found[1], given["image_attention_mask"][0].bool())
            assert len(prompt.order(0)) == given["num_img_tokens"][0]
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
        *made.without_pictures("No picture at all"),
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
        *made.without_pictures("No picture at all"),
    ]:
        found = made.generator.generate(text, images=images, max_new_tokens=24)
        assert found.tokens == generated(made, text, images)


@each_model
def test_pictures_with_equal_placeholders_are_not_confused(made: Made) -> None:
    """What the cache has of one picture is not used for another, and is used for the same."""
    generator = graft.TextGenerator(made.package, threads=1)
    text = f"Before {made.kind.place} after"
    one, two = picture(40, 60, 1), picture(40, 60, 2)
    ids = made.prompt(text, [one]).tokens
    assert ids == made.prompt(text, [two]).tokens
    first = ids.index(token_of(made.eager.config))
    reused = []
    for image in (one, two, two, one):
        found = generator.generate(text, images=[image], max_new_tokens=24).tokens
        assert found == generated(made, text, [image])
        reused.append(generator.stats["reused_tokens"])
    other = 0 if made.kind.whole or made.kind.attended else first
    assert reused == [0, other, len(ids) - 1, other]
    assert generator.generate(text + "!", images=[one], max_new_tokens=24).tokens == generated(made, text + "!", [one])
    assert generator.stats["reused_tokens"] == (0 if made.kind.whole else len(ids))
    # A text without pictures after one with them.
    for other, _ in made.without_pictures("Before all"):
        assert generator.generate(other, max_new_tokens=24).tokens == generated(made, other, [])


@each_model
def test_batches(made: Made) -> None:
    """Sequences with and without pictures, side by side and from a cache of prefixes of them all."""
    place = made.kind.place
    one, two = picture(40, 60, 1), picture(40, 60, 2)
    prompts = [(f"A {place} b", [one]), (f"A {place} b", [two]), (f"{place}{place} c", [two, one])]
    prompts[1:1] = made.without_pictures("Text alone")
    batch = graft.BatchGenerator(made.package, threads=1, rows=2, prefill_chunk_size=32, prefix_cache_bytes=1 << 24)
    for _ in range(2):
        ids = [batch.submit(text, images=images, max_new_tokens=12) for text, images in prompts]
        while batch.step():
            pass
        for (text, images), number in zip(prompts, ids):
            assert batch.take(number).tokens == generated(made, text, images, 12)


@each_model
def test_messages(made: Made) -> None:
    image = picture(40, 60, 1)
    content = [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": " Well?"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, messages[1]]
    text = made.processor.tokenizer.apply_chat_template(parts, tokenize=False, add_generation_prompt=True)
    assert text.count(made.processor.image_token) == 1
    found = made.generator.generate(messages, images=[image], max_new_tokens=8)
    assert found.tokens == generated(made, text, [image], 8)
    # A question that does not say where the picture is becomes a message that begins with it.
    question = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Well?"}]}]
    text = made.processor.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert made.generator.generate("Well?", images=[image], max_new_tokens=8).tokens == generated(made, text, [image], 8)


# Files and the command line -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    stdout: str
    stderr: str


def run_cli(*args: object, code: int = 0) -> Output:
    done = subprocess.run([binary(), *map(str, args)], capture_output=True)
    output = Output(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    assert done.returncode == code, output.stderr
    return output


def said(made: Made, text: str, images: Sequence[np.ndarray], count: int) -> str:
    tokens = generated(made, text, images, count)
    return made.processor.tokenizer.decode(tokens, skip_special_tokens=True)


@each_model
def test_the_command_line(made: Made, tmp_path: Path) -> None:
    images = [picture(40, 60, 1), picture(90, 30, 2)]
    files = [tmp_path / "one.png", tmp_path / "two.bmp"]
    for image, file in zip(images, files):
        PIL.Image.fromarray(image).save(file)
    place = made.kind.place
    given = ("generate", made.package, "--max-new-tokens", "8", "--threads", "1")
    found = run_cli(*given, "--image", files[0], "--prompt", "What is this?").stdout
    assert found == said(made, f"user:{place}What is this?assistant:", images[:1], 8)
    text = f"A {place} and B {place}?"
    found = run_cli(*given, "--image", files[0], "--image", files[1], "--prompt", text).stdout
    assert found == said(made, text, images, 8)
    messages = [{"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "image"}]}]
    (tmp_path / "m.json").write_text(json.dumps(messages))
    found = run_cli(*given, "--image", files[0], "--messages", tmp_path / "m.json").stdout
    assert found == said(made, f"user:See {place}assistant:", images[:1], 8)


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(BY_NAME["smolvlm"], tmp_path_factory.mktemp("smolvlm"))


def test_wrong_use_of_the_command_line(smolvlm: Made, tmp_path: Path) -> None:
    file, other = tmp_path / "a.png", tmp_path / "a.txt"
    PIL.Image.fromarray(picture(20, 20)).save(file)
    other.write_text("no picture")
    given = ("generate", smolvlm.package, "--prompt")
    assert "cannot be read: expected PNG, JPEG or BMP" in run_cli(*given, "a", "--image", other, code=1).stderr
    assert "a.gif" in run_cli(*given, "a", "--image", tmp_path / "a.gif", code=1).stderr
    found = run_cli(*given, "<image> and <image>", "--image", file, code=1).stderr
    assert "the prompt has 2 places of pictures ('<image>'), and there are 1 pictures" in found
    assert "has 1 places of pictures ('<image>'), and there are 0" in run_cli(*given, "An <image>", code=1).stderr
    assert "expected one prompt, found 2" in run_cli(*given, "a", "--prompt", "b", "--image", file, code=1).stderr


def test_wrong_pictures_leave_the_generator_usable(smolvlm: Made, tmp_path: Path) -> None:
    generator, image = smolvlm.generator, picture(40, 60, 1)
    expected = generated(smolvlm, "<image>a", [image], 8)

    def check() -> None:
        assert generator.generate("<image>a", images=[image], max_new_tokens=8).tokens == expected

    check()
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(graft.InvalidArgument, match="cannot be read: expected PNG, JPEG or BMP"):
        generator.generate("<image>a", images=[tmp_path / "a.png"])
    with pytest.raises(graft.InvalidArgument, match="has 2 places of pictures .'<image>'., and there are 1 pictures"):
        generator.generate("<image> <image>", images=[image])
    with pytest.raises(graft.InvalidArgument, match="has 1 places of pictures .'<image>'., and there are 0 pictures"):
        generator.generate("<image>")
    with pytest.raises(graft.InvalidArgument, match="has 1 tokens of pictures .258., and there are no pictures"):
        generator.generate([5, 258, 6])
    with pytest.raises(ValueError, match="expected pixels .H, W, 3. in u8"):
        generator.generate("<image>", images=[np.zeros((4, 4))])
    with pytest.raises(ValueError, match="found token ids"):
        generator.generate([5], images=[image])
    with pytest.raises(graft.InvalidArgument, match="the context has room for"):
        generator.generate("<image>" * 40, images=[image] * 40)
    check()


def test_more_tiles_than_the_model_knows(tmp_path: Path) -> None:
    """Its tokenizer has tokens for 3 x 3 tiles."""
    made = Made(PictureModel("smolvlm", lambda: (BY_NAME["smolvlm"].make()[0], _with_larger_pictures())), tmp_path)
    image = picture(40, 40)
    with pytest.raises(graft.InvalidArgument, match="40 x 40 pixels has 4 x 4 tiles of 32 pixels, the model takes 3 x 3"):
        made.generator.generate("<image>", images=[image])
    image = picture(90, 120, 3)
    with pytest.raises(graft.InvalidArgument, match="3 x 4 tiles"):
        made.generator.generate("<image>", images=[image])


def _with_larger_pictures() -> Any:
    return transformers.SmolVLMImageProcessorPil(size={"longest_edge": 128}, max_image_size={"longest_edge": 32})


def test_a_picture_that_is_too_long(tmp_path: Path) -> None:
    made = Made(BY_NAME["qwen2_vl"], tmp_path)
    with pytest.raises(graft.InvalidArgument, match="2 x 402 pixels is more than 200 times as long as it is wide"):
        made.generator.generate(made.kind.place, images=[picture(2, 402)])
    close(made.generator.logits(made.kind.place, images=[picture(2, 400)]), made.logits(made.processor(made.kind.place, [picture(2, 400)])))


# Export ---------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_sees_both_ways_needs_pictures(tmp_path: Path) -> None:
    made = Made(BY_NAME["paligemma"], tmp_path)
    with pytest.raises(graft.InvalidArgument, match="PaliGemmaForConditionalGeneration takes prompts with pictures alone"):
        made.generator.generate("Hello")
    image = picture(40, 60, 1)
    assert made.generator.generate("Hello", images=[image], max_new_tokens=8).tokens == generated(made, "<image>user:Hello", [image], 8)


def test_text_alone(smolvlm: Made, tmp_path: Path) -> None:
    package = graft.export_llm(smolvlm.folder, tmp_path / "text.pte", text_only=True)
    generator = graft.TextGenerator(package, threads=1)
    assert generator.generate("Hello", max_new_tokens=8).tokens == generated(smolvlm, "Hello", [], 8)
    with pytest.raises(graft.InvalidArgument, match="SmolVLMForConditionalGeneration takes no pictures"):
        generator.generate("Hello", images=[picture(9, 9)])
    PIL.Image.fromarray(picture(20, 20)).save(tmp_path / "a.png")
    given = ("generate", package, "--prompt", "a", "--image", tmp_path / "a.png")
    assert "takes no pictures: the package is of text alone" in run_cli(*given, code=1).stderr


@pytest.mark.parametrize("name", ["llava", "mllama", "phi4_multimodal", "qwen2_5_vl"])
def test_weights_stay_in_their_files(tmp_path: Path, name: str) -> None:
    """transformers renames those of these models when it loads them."""
    folder = BY_NAME[name].save(tmp_path / "model")
    package = graft.export_llm(folder, tmp_path / "m.pte", weights="external")
    whole = graft.export_llm(folder, tmp_path / "whole.pte")
    weights = (folder / "model.safetensors").stat().st_size
    assert package.stat().st_size < whole.stat().st_size - 0.8 * weights
    text, images = BY_NAME[name].place, [picture(40, 60, 1)]
    answers = [graft.TextGenerator(path, threads=1).generate(text, images=images, max_new_tokens=8).tokens for path in (package, whole)]
    assert answers[0] == answers[1]


def test_a_model_in_memory(smolvlm: Made, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected the processor of a SmolVLMForConditionalGeneration in memory"):
        graft.export_llm(smolvlm.eager, tmp_path / "m.pte")
    package = graft.export_llm(smolvlm.eager, tmp_path / "m.pte", processor=smolvlm.processor)
    image = picture(40, 60, 1)
    found = graft.TextGenerator(package, threads=1).generate("<image>a", images=[image], max_new_tokens=8)
    assert found.tokens == generated(smolvlm, "<image>a", [image], 8)


@pytest.mark.parametrize("kind", ["q8_0", "bf16"])
def test_quantized(made_llava: Made, tmp_path: Path, kind: str) -> None:
    package = graft.export_llm(made_llava.folder, tmp_path / "q.pte", quantize=kind)
    text, images = "A <image> b", [picture(40, 60, 1)]
    found = graft.TextGenerator(package, threads=1).logits(text, images=images)
    expected = made_llava.logits(made_llava.processor(text, images))
    error = float((found - expected).abs().max() / expected.abs().max())
    assert 1e-5 < error < 0.2


@pytest.fixture(scope="module")
def made_llava(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(BY_NAME["llava"], tmp_path_factory.mktemp("llava"))


def _llava_next() -> Any:
    vision = dict(model_type="clip_vision_model", hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    text = dict(model_type="llama", hidden_size=48, intermediate_size=64, num_hidden_layers=1, vocab_size=99, num_attention_heads=4)
    return transformers.LlavaNextForConditionalGeneration(transformers.LlavaNextConfig(text_config=text, vision_config=vision))


@pytest.mark.parametrize(
    ("model", "message"),
    [(_llava_next, "LlavaNextForConditionalGeneration cannot be exported with its pictures; expected one of gemma3, gemma4,")],
    ids=["llava_next"],
)
def test_models_that_are_refused(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        graft.export_llm(model(), tmp_path / "m.pte")


def test_wrong_exports(smolvlm: Made, tmp_path: Path) -> None:
    model, target = smolvlm.eager, tmp_path / "m.pte"
    with pytest.raises(ExportError, match="is cut into stages with text_only=True alone"):
        graft.export_llm(smolvlm.folder, target, stages=2)
    with pytest.raises(ExportError, match="expected no processor: SmolVLMForConditionalGeneration is exported for text alone"):
        graft.export_llm(model, target, processor=smolvlm.processor, text_only=True)
    with pytest.raises(ExportError, match="expected one of Idefics3ImageProcessor, SmolVLMImageProcessor, found CLIP"):
        graft.export_llm(model, target, processor=transformers.CLIPImageProcessorPil())
    other = transformers.SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_resize=False)
    with pytest.raises(ExportError, match="expected a SmolVLMImageProcessorPil that resizes"):
        graft.export_llm(model, target, processor=other)
    assert not target.exists()


# Adapters -------------------------------------------------------------------------------------------------------------


_WITH_ADAPTERS = [BY_NAME[name] for name in ("llava", "mllama", "phi4_multimodal", "qwen2_5_vl")]


@pytest.mark.parametrize("made", _WITH_ADAPTERS, ids=lambda kind: kind.name, indirect=True)
def test_adapters(made: Made, tmp_path: Path) -> None:
    """Of the decoder, and of the tower, beside a sequence without one."""
    pytest.importorskip("peft")
    import lora

    one, two = picture(40, 60, 1), picture(90, 30, 2)
    text = f"A {made.kind.place} and B {made.kind.place}"
    given = made.processor(text, [one, two])
    plain = made.logits(given)
    towers = {
        "llava": r".*vision_tower.*layers\.0\..*(q_proj|k_proj|fc1)",
        "mllama": r".*vision_model.*layers\.0\..*(q_proj|k_proj|fc1)",
        "phi4_multimodal": r".*img_processor.*layers\.0\..*(q_proj|k_proj|fc1)",
        "qwen2_5_vl": r".*visual\.blocks.*(attn\.qkv|gate_proj)",
    }
    decoder = r".*(language_model.*|model\.layers\.\d+\.)(self_attn\.|cross_attn\.|mlp\.)(q_proj|v_proj|up_proj|qkv_proj|gate_up_proj)"
    for name, targets in [("decoder", decoder), ("tower", towers[made.kind.name])]:
        adapted = lora.adapted(made.eager, "", target_modules=targets)
        folder = lora.saved(adapted, tmp_path / name)
        generator = graft.TextGenerator(made.package, threads=1, rows=2, adapters={name: folder})
        if hasattr(made.eager.model, "rope_deltas"):
            adapted.base_model.model.model.rope_deltas = None
        with torch.no_grad():
            expected = adapted(**given, use_cache=False).logits[0]
        lora.differs(plain, expected)
        lora.same(expected, generator.logits(text, images=[one, two], adapter=name))
        lora.same(plain, generator.logits(text, images=[one, two]))


# Pictures that layers attend to -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mllama(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(BY_NAME["mllama"], tmp_path_factory.mktemp("mllama"))


#: [height, width] of pictures of every canvas of up to four tiles of 32 pixels.
_CANVASES = [(32, 32), (20, 50), (30, 90), (9, 120), (60, 30), (64, 60), (96, 32), (130, 20)]


def test_every_canvas(mllama: Made) -> None:
    numbers = []
    for height, width in _CANVASES:
        image = picture(height, width, height)
        text = f"Before <|image|> after {width}"
        given = mllama.processor(text, [image])
        numbers.append(int(given["aspect_ratio_ids"]))
        pixels, shape, valid = prepared(mllama.prompt(text, [image]), 0)
        assert shape.tolist() == given["aspect_ratio_ids"].tolist() and valid.tolist() == given["aspect_ratio_mask"][0].tolist()
        close(pixels, given["pixel_values"][0], 1e-5)
        close(mllama.generator.logits(text, images=[image]), mllama.logits(given))
    assert sorted(numbers) == list(range(1, 9))


@pytest.mark.parametrize(
    "text",
    [
        "<|image|><|image|> both",
        "A <|image|> B <|image|> C",
        "<|image|>A<|image|>",
        "Much text before <|image|><|image|>, then <|image|> alone",
        "<s>The first token <|image|> and <|image|><|image|>",
    ],
)
def test_which_pictures_a_token_sees(mllama: Made, text: str) -> None:
    images = [picture(*_CANVASES[(3 * i + 1) % 8], i) for i in range(text.count("<|image|>"))]
    given = mllama.processor(text, images)
    assert mllama.prompt(text, images).tokens == given["input_ids"][0].tolist()
    for chunk in (512, 5, 1):
        generator = graft.TextGenerator(mllama.package, threads=1, prefill_chunk_size=chunk)
        close(generator.logits(text, images=images), mllama.logits(given))
    assert mllama.generator.generate(text, images=images, max_new_tokens=24).tokens == generated(mllama, text, images)


def test_turns_of_a_chat(mllama: Made) -> None:
    """What the cache has is used in the next turn; of a turn with another picture all is read again."""
    generator = graft.TextGenerator(mllama.package, threads=1)
    one, two = picture(20, 50, 1), picture(64, 60, 2)
    text, images = "user:<|image|>What is this?assistant:", [one]
    for more, added, again in [(None, None, False), ("user:Why?assistant:", None, True), ("user:<|image|>And this?", two, False)]:
        if more:
            text += more
            images = images + ([added] if added is not None else [])
        found = generator.generate(text, images=images, max_new_tokens=12)
        assert found.tokens == generated(mllama, text, images, 12)
        assert (generator.stats["reused_tokens"] > 0) == again
        text += mllama.processor.tokenizer.decode(found.tokens, skip_special_tokens=True)
        if mllama.prompt(text, images).tokens[-len(found.tokens) :] != found.tokens:
            text = text[: text.rindex("assistant:")] + "assistant:Well."  # bytes that are no text


def test_batches_of_many_pictures(mllama: Made) -> None:
    prompts = [
        ("Text alone", []),
        ("A <|image|> b", [picture(32, 32, 1)]),
        ("<|image|><|image|> c", [picture(9, 120, 2), picture(64, 60, 3)]),
        ("d <|image|> e <|image|> f", [picture(64, 60, 3), picture(32, 32, 1)]),
        ("More text", []),
    ]
    batch = graft.BatchGenerator(mllama.package, threads=1, rows=4, prefill_chunk_size=16)
    for order in (1, -1):
        ids = [batch.submit(text, images=images, max_new_tokens=16) for text, images in prompts[::order]]
        while batch.step():
            pass
        for (text, images), number in zip(prompts[::order], ids):
            assert batch.take(number).tokens == generated(mllama, text, images, 16)


def test_more_pictures_than_there_is_room_for(mllama: Made, tmp_path: Path) -> None:
    generator, image = mllama.generator, picture(20, 50, 1)
    expected = generated(mllama, "<|image|>a", [image], 8)
    with pytest.raises(graft.InvalidArgument, match="a sequence has 5 pictures, there is room for 4"):
        generator.generate("<|image|>" * 5, images=[image] * 5)
    with pytest.raises(graft.InvalidArgument, match="has 1 tokens of pictures .* and there are no pictures"):
        generator.generate([5, mllama.processor.config.image_token_id, 6])
    with pytest.raises(graft.InvalidArgument, match="has 2 places of pictures"):
        generator.generate("<|image|> <|image|>", images=[image])
    assert generator.generate("<|image|>a", images=[image], max_new_tokens=8).tokens == expected
    larger = graft.TextGenerator(mllama.package, threads=1, pictures=5)
    text, images = "<|image|>" * 5, [image] * 5
    assert larger.generate(text, images=images, max_new_tokens=8).tokens == generated(mllama, text, images, 8)
    # A command line has room for its pictures.
    PIL.Image.fromarray(image).save(tmp_path / "a.png")
    given = ("generate", mllama.package, "--threads", "1", "--max-new-tokens", "8", "--prompt", text)
    assert run_cli(*given, *["--image", tmp_path / "a.png"] * 5).stdout == said(mllama, text, [image] * 5, 8)


def test_a_penalty_of_tokens_without_logits(mllama: Made) -> None:
    image, text = picture(20, 50, 1), "a <|image|> b"
    given = mllama.processor(text, [image])
    found = mllama.generator.generate(text, images=[image], max_new_tokens=12, repetition_penalty=1.3)
    tokens, expected = given["input_ids"][0].tolist(), []
    for _ in range(12):
        logits = mllama.logits({**given, **_continued(given, expected)})[-1]
        for id in {token for token in tokens + expected if token < logits.shape[0]}:
            logits[id] = logits[id] * 1.3 if logits[id] < 0 else logits[id] / 1.3
        expected.append(int(logits.argmax()))
        if expected[-1] == mllama.eager.config.text_config.eos_token_id:
            break
    assert found.tokens == expected


def _continued(given: dict[str, torch.Tensor], tokens: list[int]) -> dict[str, torch.Tensor]:
    mask = given["cross_attention_mask"]
    ids = torch.cat([given["input_ids"], torch.tensor([tokens], dtype=torch.long)], 1)
    seen = torch.cat([mask, mask[:, -1:].expand(-1, len(tokens), -1, -1)], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "cross_attention_mask": seen}


def test_other_canvases_are_refused(mllama: Made, tmp_path: Path) -> None:
    target = tmp_path / "m.pte"
    other = transformers.MllamaImageProcessorPil(size={"height": 32, "width": 32}, max_image_tiles=3)
    with pytest.raises(ExportError, match="expected a processor with max_image_tiles 4, as the model's tower, found 3"):
        graft.export_llm(mllama.eager, target, processor=other)
    larger = transformers.MllamaImageProcessorPil(size={"height": 64, "width": 64}, max_image_tiles=4)
    with pytest.raises(ExportError, match="expected a processor that gives square pictures of 32 x 32, found 64 x 64"):
        graft.export_llm(mllama.eager, target, processor=larger)
    config, images = BY_NAME["mllama"].make()
    config.vision_config.supported_aspect_ratios = [[1, 1], [1, 2], [2, 1], [2, 2], [1, 4], [4, 1], [1, 3], [3, 1]]
    model = transformers.MllamaForConditionalGeneration(config)
    with pytest.raises(ExportError, match="expected a tower that takes all canvases of up to 4 tiles, found"):
        graft.export_llm(model, target, processor=images)
    assert not target.exists()


def test_a_text_part_without_its_layers_for_pictures(mllama: Made, tmp_path: Path) -> None:
    package = graft.export_llm(mllama.folder, tmp_path / "text.pte", text_only=True)
    generator = graft.TextGenerator(package, threads=1)
    assert generator.generate("Hello", max_new_tokens=12).tokens == generated(mllama, "Hello", [], 12)
    assert not [name for name in (b"cross_attn", b"vision_model", b"multi_modal_projector") if name in package.read_bytes()]
    with pytest.raises(ExportError, match="expected layers of attention, found dummy"):
        trace.trace(mllama.eager, context=64)


def test_programs_of_attended_pictures_in_eager_pytorch(mllama: Made) -> None:
    """The operators' definitions: the programs run without the engine."""
    weights = mllama.eager.state_dict()
    programs = pictures.trace(mllama.eager, context=64, size=None).programs

    def run(name: str, *inputs: torch.Tensor) -> torch.Tensor:
        values, flat, program = iter(inputs), [], programs[name]
        for spec in program.graph_signature.input_specs:
            known = weights.get(spec.target, program.constants.get(spec.target))
            flat.append(next(values) if spec.target is None else known)
        return torch.fx.Interpreter(program.graph_module).run(*flat)[0]

    text, images = "a <|image|> b <|image|><|image|> c", [picture(32, 32, 1), picture(20, 50, 2), picture(32, 32, 3)]
    given = mllama.processor(text, images)
    tiles = []
    for i in range(3):
        pixels, shape, valid = prepared(mllama.prompt(text, images), i)
        rows = run("encode_image", pixels, shape, valid).unflatten(0, (4, 17))
        tiles += [(not there, len(tiles), tile) for there, tile in zip(valid[0].tolist(), rows)]
    for n, (_, _, tile) in enumerate(sorted(tiles, key=lambda one: one[:2])):
        assert run("store_image", tile.unsqueeze(0), torch.arange(17 * n, 17 * (n + 1))[None]).tolist() == [17]
    # <s>, a and a space see all; then the first picture, the second one, and that with the third.
    ids = given["input_ids"]
    places = (ids[0] == mllama.processor.config.image_token_id).nonzero().flatten().tolist()
    ranges = torch.tensor([0, 12 * 17 - 1]).repeat(1, ids.shape[1], 1)
    ranges[0, places[0] :] = torch.tensor([0, 16])
    ranges[0, places[1]] = torch.tensor([17, 50])
    ranges[0, places[2] :] = torch.tensor([17, 67])
    mask = torch.arange(ids.shape[1])[None] >= places[0]
    rows = torch.arange(ids.shape[1])[None]
    close(run("step_with_images", ids, rows, rows, rows[0], ranges, mask)[0], mllama.logits(given))
    # Who sees nothing goes through no such layer.
    nothing = torch.tensor([0, -1]).repeat(1, ids.shape[1], 1)
    text = mllama.processor("Hello, you", [])["input_ids"]
    rows, nothing = torch.arange(text.shape[1])[None], nothing[:, : text.shape[1]]
    found = run("step_with_images", text, rows, rows, rows[0], nothing, torch.zeros_like(text, dtype=torch.bool))
    close(found[0], mllama.logits({"input_ids": text}))


@pytest.mark.parametrize(("options", "most"), [({"quantize": "q8_0"}, 0.2), ({"quantize": "bf16"}, 0.2), ({}, 0.02)])
def test_quantized_with_attended_pictures(mllama: Made, tmp_path: Path, options: dict[str, str], most: float) -> None:
    """The weights, and keys and values of pictures and tokens."""
    package = graft.export_llm(mllama.folder, tmp_path / "q.pte", **options)
    text, images = "A <|image|> b <|image|>", [picture(40, 60, 1), picture(90, 30, 2)]
    kv_type = "computed" if options else "f16"
    found = graft.TextGenerator(package, threads=1, kv_type=kv_type).logits(text, images=images)
    expected = mllama.logits(mllama.processor(text, images))
    error = float((found - expected).abs().max() / expected.abs().max())
    assert 1e-5 < error < most
