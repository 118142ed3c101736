"""Phi-4 multimodal: pictures of many shapes, sounds, and packages of both, against transformers. What it has in common
with other models of pictures is in pictures_test.py."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

import graft
import phi4_models
from graft.errors import ExportError
from picture_models import BY_NAME, picture
from pictures_test import Made, close, generated, prepared, run_cli
from speech_models import RATE, sound, wav

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGE, AUDIO = "<image>", "<|video_pad|>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(BY_NAME["phi4_multimodal"], tmp_path_factory.mktemp("phi4"))


# Pictures -------------------------------------------------------------------------------------------------------------


def test_pictures_of_many_shapes(made: Made) -> None:
    """One crop, as many as cover it, and the nearest arrangement of at most six; edges of patches and pairs of them."""
    shapes = [(128, 128), (129, 128), (128, 257), (256, 384), (384, 256), (385, 256), (300, 1000), (1000, 70)]
    shapes += [
        (640, 640),
        (11, 128),
        (100, 10),
        (118, 128),
        (119, 128),
        (128, 121),
        (250, 131),
        (131, 377),
        (500, 499),
        (60, 4000),
    ]
    for height, width in shapes:
        image = picture(height, width, height)
        given = made.processor.prepared([image])
        prompt = made.prompt(IMAGE, [image])
        pixels, valid = prepared(prompt, 0)
        close(pixels, given["image_pixel_values"][0], 1e-5)
        assert torch.equal(valid, given["image_attention_mask"][0].bool())
        assert len(prompt.tokens) == given["num_img_tokens"][0] == len(prompt.order(0))


def test_features_of_several_pictures(made: Made) -> None:
    """The tower's rows in the order of the prompt, of crops that are partly filled."""
    method = graft.load(made.package, threads=1).methods["encode_image"]
    images = [picture(250, 131, 1), picture(100, 10, 2), picture(131, 377, 3)]
    expected = made.features(made.processor.prepared(images))
    prompt = made.prompt(IMAGE * 3, images)
    found = [method(*prepared(prompt, i))[torch.tensor(prompt.order(i))] for i in range(3)]
    close(torch.cat(found), expected)


def test_pictures_that_are_too_long(made: Made) -> None:
    image = picture(40, 60, 1)
    expected = generated(made, IMAGE, [image], 8)
    with pytest.raises(ValueError, match="the aspect ratio is very extreme"):
        made.processor.prepared([picture(9, 128)])
    with pytest.raises(
        graft.InvalidArgument, match="9 x 128 pixels is too long: of its 1 x 1 crops of 128 pixels it fills 9 x 128"
    ):
        made.generator.generate(IMAGE, images=[picture(9, 128)])
    with pytest.raises(graft.InvalidArgument, match="a picture of 2000 x 3 pixels is too long: of its 6 x 1 crops"):
        made.generator.generate(IMAGE, images=[picture(2000, 3)])
    assert made.generator.generate(IMAGE, images=[image], max_new_tokens=8).tokens == expected


def test_a_second_turn(made: Made) -> None:
    """The picture of the first turn is not computed again."""
    generator, image = graft.TextGenerator(made.package, threads=1), picture(250, 131, 1)
    first = f"user:{IMAGE}What is it?assistant:"
    said = generator.generate(first, images=[image], max_new_tokens=8)
    assert said.tokens == generated(made, first, [image], 8)
    second = first + "A cat.user:Which?assistant:"
    assert generator.generate(second, images=[image], max_new_tokens=8).tokens == generated(made, second, [image], 8)
    assert generator.stats["reused_tokens"] >= len(made.prompt(first, [image]).tokens)


def test_prompts_of_more_tokens_than_short_frequencies_are_for(made: Made, tmp_path: Path) -> None:
    """There is no room for them: parts of a prompt would turn by other frequencies than the whole."""
    text, image = f"{IMAGE} " + "What is it? " * 60, picture(131, 377, 1)
    count = made.processor(text, [image])["input_ids"].shape[1]
    assert count > made.eager.config.original_max_position_embeddings
    with pytest.raises(graft.InvalidArgument, match=f"would have {count} tokens, the context has room for 1024"):
        made.generator.logits(text, images=[image])
    with pytest.raises(ExportError, match=r"'longrope': expected a context of at most 1024 .*, found 1025"):
        graft.export_llm(made.folder, tmp_path / "m.pte", context=1025)


# Sounds ---------------------------------------------------------------------------------------------------------------


def heard(sounds: Sequence[np.ndarray]) -> list[tuple[np.ndarray, int]]:
    return [(one, RATE) for one in sounds]


def audio_prompt(made: Made, text: str, sounds: Sequence[np.ndarray]) -> Any:
    return made.generator.model.audio_prompt(text.encode(), [(one.tobytes(), RATE) for one in sounds])


def logits(made: Made, text: str, sounds: Sequence[np.ndarray]) -> torch.Tensor:
    return made.logits(made.processor.with_sounds(text, sounds))


def answered(made: Made, text: str, sounds: Sequence[np.ndarray], count: int = 24) -> list[int]:
    given = made.processor.with_sounds(text, sounds)
    found = made.eager.generate(**given, max_new_tokens=count, do_sample=False)
    return found[0, given["input_ids"].shape[1] :].tolist()


# Samples of several prompts. Of two sounds the shorter one is padded, and the frames behind it depend on its length.
_SOUNDS = [(1680,), (1700,), (8000,), (16000,), (16159,), (48123,), (16000, 9000), (9000, 16000), (8000, 7990)]
_SOUNDS += [(12000, 12000), (16400, 4100, 4080), (400, 9000), (650, 30000)]


def of_samples(counts: Sequence[int]) -> list[np.ndarray]:
    return [sound(count / RATE, seed)[:count] for seed, count in enumerate(counts)]


@pytest.mark.parametrize("counts", _SOUNDS, ids=str)
def test_spectrograms_are_those_of_the_extractor(made: Made, counts: tuple[int, ...]) -> None:
    sounds = of_samples(counts)
    given = made.processor.heard(sounds)
    text = AUDIO * len(sounds)
    prompt = audio_prompt(made, text, sounds)
    assert prompt.tokens == made.processor.with_sounds(text, sounds)["input_ids"][0].tolist()
    for i, expected in enumerate(given["audio_input_features"]):
        (_, _, data), (_, _, about) = prompt.prepared(i)
        found = torch.from_numpy(np.frombuffer(data, np.float32).copy()).reshape(expected.shape)
        close(found, expected, 1e-5)
        assert np.frombuffer(about, np.int64).tolist() == [int(given["audio_embed_sizes"][i])] * 2


def test_logits_of_sounds(made: Made) -> None:
    one, two = sound(0.7, 1), sound(1.1, 2)
    for text, sounds in [
        (AUDIO, [one]),
        (f"Before {AUDIO} after", [two]),
        (f"{AUDIO}{AUDIO} both", [one, two]),
        (f"A {AUDIO} and B {AUDIO}, what differs?", [two, one]),
        (f"{AUDIO}{AUDIO}{AUDIO}", [two, one, one]),
        (f"Short {AUDIO}", of_samples([1680])),
        ("No sound at all", []),
    ]:
        close(made.generator.logits(text, audio=heard(sounds)), logits(made, text, sounds))


def test_sounds_of_more_than_a_chunk(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 500 positions, of one sound and beside a shorter one, where the model has a mask."""

    def in_chunks(states: torch.Tensor, size: int) -> torch.Tensor:
        return states.reshape(-1, size, states.shape[-1])  # transformers' own ends in an error for several sounds

    module = sys.modules[type(made.eager).__module__]
    one = torch.rand(1, 1000, 3)
    assert torch.equal(in_chunks(one, 500), module.unfold_tensor(one, 500))
    monkeypatch.setattr(module, "unfold_tensor", in_chunks)
    long, short = sound(41.3, 1), sound(1.1, 2)
    for text, sounds in [(f"{AUDIO}?", [long]), (f"{AUDIO} {AUDIO}?", [short, long]), (f"{AUDIO}?", [sound(80.02, 3)])]:
        close(made.generator.logits(text, audio=heard(sounds)), logits(made, text, sounds))


@pytest.mark.parametrize("chunk", [5, 16])
def test_logits_of_sounds_in_parts(made: Made, chunk: int) -> None:
    generator = graft.TextGenerator(made.package, threads=1, prefill_chunk_size=chunk)
    text, sounds = f"A {AUDIO} and B {AUDIO}, what differs?", [sound(0.7, 1), sound(1.1, 2)]
    close(generator.logits(text, audio=heard(sounds)), logits(made, text, sounds))


def test_texts_of_sounds_are_those_of_generate(made: Made) -> None:
    one, two = sound(0.7, 1), sound(1.1, 2)
    for text, sounds in [(f"Before {AUDIO} after", [one]), (f"A {AUDIO} and B {AUDIO}, what differs?", [two, one])]:
        found = made.generator.generate(text, audio=heard(sounds), max_new_tokens=24)
        assert found.tokens == answered(made, text, sounds)


def test_sounds_are_not_confused(made: Made) -> None:
    """Neither with others, nor with themselves beside a longer one, which changes what becomes of them."""
    generator = graft.TextGenerator(made.package, threads=1)
    one, two, three = sound(0.7, 1), sound(0.7, 2), sound(1.9, 3)
    ids = audio_prompt(made, f"Before {AUDIO} after", [one]).tokens
    first = ids.index(made.eager.config.audio_config.audio_token_id)
    reused = []
    for sounds in [[one], [two], [two], [one]]:
        text = f"Before {AUDIO} after"
        assert generator.generate(text, audio=heard(sounds), max_new_tokens=8).tokens == answered(made, text, sounds, 8)
        reused.append(generator.stats["reused_tokens"])
    assert reused == [0, first, len(ids) - 1, first]
    text = f"Before {AUDIO} after {AUDIO}"
    for sounds in [[one, two], [one, three]]:
        assert generator.generate(text, audio=heard(sounds), max_new_tokens=8).tokens == answered(made, text, sounds, 8)
    assert generator.stats["reused_tokens"] == first


def test_pictures_and_sounds_in_batches(made: Made) -> None:
    """Sequences with either and with neither, side by side and from a cache of prefixes of them all."""
    one, image = sound(0.7, 1), picture(40, 60, 1)
    prompts = [
        (f"A {AUDIO} b", {"audio": heard([one])}, answered(made, f"A {AUDIO} b", [one], 12)),
        ("Text alone", {}, generated(made, "Text alone", [], 12)),
        (f"A {IMAGE} b", {"images": [image]}, generated(made, f"A {IMAGE} b", [image], 12)),
    ]
    batch = graft.BatchGenerator(made.package, threads=1, rows=2, prefill_chunk_size=32, prefix_cache_bytes=1 << 24)
    for _ in range(2):
        ids = [batch.submit(text, max_new_tokens=12, **media) for text, media, _ in prompts]
        while batch.step():
            pass
        for (_, _, expected), number in zip(prompts, ids):
            assert batch.take(number).tokens == expected


def test_messages_with_sounds(made: Made) -> None:
    one = sound(0.7, 1)
    content = [{"type": "text", "text": "Hear: "}, {"type": "audio"}, {"type": "text", "text": " Well?"}]
    found = made.generator.generate([{"role": "user", "content": content}], audio=heard([one]), max_new_tokens=8)
    assert found.tokens == answered(made, f"user:Hear: {AUDIO} Well?assistant:", [one], 8)
    found = made.generator.generate("Well?", audio=heard([one]), max_new_tokens=8)
    assert found.tokens == answered(made, f"user:{AUDIO}Well?assistant:", [one], 8)


def test_the_command_line_with_sounds(made: Made, tmp_path: Path) -> None:
    files = [tmp_path / "one.wav", tmp_path / "two.wav"]
    for i, file in enumerate(files):
        file.write_bytes(wav(0.7 + i, i))
    sounds = [graft.load_audio(file)[0] for file in files]
    text = f"A {AUDIO} and B {AUDIO}?"
    given = ("generate", made.package, "--max-new-tokens", "8", "--threads", "1", "--prompt")
    found = run_cli(*given, text, "--audio", files[0], "--audio", files[1]).stdout
    assert found == made.processor.tokenizer.decode(answered(made, text, sounds, 8), skip_special_tokens=True)
    PIL.Image.fromarray(picture(40, 60)).save(tmp_path / "a.png")
    both = run_cli(*given, text, "--audio", files[0], "--image", tmp_path / "a.png", code=1)
    assert "expected --image or --audio, found both" in both.stderr


def test_wrong_sounds_leave_the_generator_usable(made: Made) -> None:
    generator, one = made.generator, sound(0.7, 1)
    expected = answered(made, AUDIO, [one], 8)

    def refused(message: str, *sounds: Any, prompt: Any = AUDIO, **more: Any) -> None:
        with pytest.raises((graft.InvalidArgument, ValueError), match=message):
            generator.generate(prompt, audio=list(sounds), **more)
        assert generator.generate(AUDIO, audio=[(one, RATE)], max_new_tokens=8).tokens == expected

    refused("a sound of 399 samples is shorter than one frame of 400", (one[:399], RATE))
    refused("a sound of 1679 samples is shorter than two positions of the tower, 1680 samples", (one[:1679], RATE))
    refused("a sound of 0 samples", (np.zeros(0), RATE))
    refused("samples that are not finite", (np.full(16000, np.nan), RATE))
    refused("has 2 places of sounds .'<.video_pad.>'., and there are 1 sounds", (one, RATE), prompt=AUDIO * 2)
    refused("has 1 tokens of sounds .265., and there are no sounds", prompt=[5, 265, 6])
    refused("has 1 tokens of pictures .258., and there are no pictures", prompt=[5, 258, 6])
    refused("has 1 tokens of pictures .258., and there are no pictures", (one, RATE), prompt=f"{IMAGE} {AUDIO}")
    refused("expected images or audio, found both", (one, RATE), images=[picture(4, 4)])
    with pytest.raises(graft.InvalidArgument, match="has 1 tokens of sounds .265., and there are no sounds"):
        generator.generate(f"{IMAGE} {AUDIO}", images=[picture(40, 60)])


# Export ---------------------------------------------------------------------------------------------------------------


def of_processor(made: Made, **parts: Any) -> Any:
    """As Phi4MultimodalProcessor, whose import needs torchvision."""
    own = {name: getattr(made.processor, name) for name in ("image_processor", "audio_processor", "tokenizer")}
    return types.SimpleNamespace(**{**own, **parts}, chat_template=None)


def test_a_model_in_memory(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected the processor of a Phi4MultimodalForCausalLM in memory"):
        graft.export_llm(made.eager, tmp_path / "m.pte")
    package = graft.export_llm(made.eager, tmp_path / "m.pte", processor=of_processor(made))
    image, one = picture(40, 60, 1), sound(0.7, 1)
    generator = graft.TextGenerator(package, threads=1)
    assert generator.generate(IMAGE, images=[image], max_new_tokens=8).tokens == generated(made, IMAGE, [image], 8)
    assert generator.generate(AUDIO, audio=heard([one]), max_new_tokens=8).tokens == answered(made, AUDIO, [one], 8)


def test_a_folder_with_the_settings_of_a_processor(made: Made, tmp_path: Path) -> None:
    """In processor_config.json, as transformers 5 saves a processor."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in made.folder.iterdir():
        if file.name != "preprocessor_config.json":
            (folder / file.name).symlink_to(file)
    with pytest.raises(ExportError, match="has no image_processor: expected a preprocessor_config.json"):
        graft.export_llm(folder, tmp_path / "m.pte")
    parts = {"image_processor": phi4_models.image_processor(dynamic_hd=2), "audio_processor": phi4_models.extractor()}
    settings = {name: json.loads(part.to_json_string()) for name, part in parts.items()}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    package = graft.export_llm(folder, tmp_path / "m.pte")
    image = picture(300, 300, 1)
    prompt = graft.TextGenerator(package, threads=1).model.image_prompt(IMAGE.encode(), [(image.tobytes(), 300, 300)])
    assert prepared(prompt, 0)[0].shape[0] == 2


def test_text_alone(made: Made, tmp_path: Path) -> None:
    package = graft.export_llm(made.folder, tmp_path / "text.pte", text_only=True)
    generator = graft.TextGenerator(package, threads=1)
    assert generator.generate("Hello", max_new_tokens=8).tokens == generated(made, "Hello", [], 8)
    with pytest.raises(graft.InvalidArgument, match="Phi4MultimodalForCausalLM takes no pictures"):
        generator.generate("Hello", images=[picture(9, 9)])
    with pytest.raises(graft.InvalidArgument, match="Phi4MultimodalForCausalLM takes no sound"):
        generator.generate("Hello", audio=[(sound(1), RATE)])


def test_wrong_exports(made: Made, tmp_path: Path) -> None:
    target = tmp_path / "m.pte"

    def refused(message: str, **parts: Any) -> None:
        with pytest.raises(ExportError, match=message):
            graft.export_llm(made.eager, target, processor=of_processor(made, **parts))
        assert not target.exists()

    images, sounds = phi4_models.image_processor, phi4_models.extractor
    refused(
        "expected a processor with patch_size 4, as the model's tower, found 8", image_processor=images(patch_size=8)
    )
    refused("crops of 128 x 128, found 64 x 64 and 128", image_processor=images(size={"height": 64, "width": 64}))
    refused("expected a processor with resample 3, bicubic, found 2", image_processor=images(resample=2))
    refused(
        "expected a Phi4MultimodalImageProcessor, found CLIPImageProcessor",
        image_processor=transformers.CLIPImageProcessorPil(),
    )
    refused("expected an extractor with audio_feat_stride 1", audio_processor=sounds(audio_feat_stride=2))
    refused("expected an extractor with feature_size 80", audio_processor=sounds(feature_size=40))
    refused(
        "mel_min_frequency 0 and mel_max_frequency 7690, found others", audio_processor=sounds(mel_max_frequency=7000)
    )
    refused(
        "expected a Phi4MultimodalFeatureExtractor, found WhisperFeatureExtractor",
        audio_processor=transformers.WhisperFeatureExtractor(),
    )
    with pytest.raises(ExportError, match="is cut into stages with text_only=True alone"):
        graft.export_llm(made.folder, target, stages=2)
    for name, value, message in [
        ("chunk_size", 4, "expected an audio_config whose positions all see each other, found chunk_size 4"),
        ("downsample_rate", 2, "expected an audio_config with downsample_rate 1, found 2"),
    ]:
        config = made.eager.config.audio_config
        before = getattr(config, name)
        setattr(config, name, value)
        try:
            refused(message)
        finally:
            setattr(config, name, before)
