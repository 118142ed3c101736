"""Models of sound and text, from a folder of transformers to text, against eager PyTorch."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import graft
from audio_models import AUDIO_MODELS, SECONDS, AudioModel, Processor
from graft.errors import ExportError
from pictures_test import close, run_cli
from speech_models import RATE, sound, wav

pytestmark = pytest.mark.usefixtures("one_thread")


class Made:
    """A model, its package, its processor and itself in eager PyTorch."""

    def __init__(self, kind: AudioModel, folder: Path) -> None:
        self.kind = kind
        self.folder = kind.save(folder / kind.name)
        self.package = graft.export_llm(self.folder, folder / f"{kind.name}.pte")
        self.eager = transformers.AutoModelForMultimodalLM.from_pretrained(self.folder, attn_implementation="eager").eval()
        self.processor = Processor(self.folder, self.eager.config)

    @functools.cached_property
    def generator(self) -> graft.TextGenerator:
        return graft.TextGenerator(self.package, threads=1, rows=2)

    def prompt(self, text: str, sounds: Sequence[np.ndarray], rate: int = RATE) -> Any:
        """As the generator reads it."""
        return self.generator.model.audio_prompt(text.encode(), [(one.tobytes(), rate) for one in sounds])

    def logits(self, text: str, sounds: Sequence[np.ndarray]) -> torch.Tensor:
        with torch.no_grad():
            return self.eager(**self.processor(text, sounds), use_cache=False).logits[0]

    def generated(self, text: str, sounds: Sequence[np.ndarray], count: int = 24) -> list[int]:
        given = self.processor(text, sounds)
        found = self.eager.generate(**given, max_new_tokens=count, do_sample=False)
        return found[0, given["input_ids"].shape[1] :].tolist()

    @property
    def windows(self) -> int:
        """The most of a sound that tests give."""
        return 1 if self.kind.name == "qwen2_audio" else 3


def heard(sounds: Sequence[np.ndarray]) -> list[tuple[np.ndarray, int]]:
    return [(one, RATE) for one in sounds]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("audio"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(AUDIO_MODELS[0], tmp_path_factory.mktemp("audio"))


each_model = pytest.mark.parametrize("made", AUDIO_MODELS, ids=lambda kind: kind.name, indirect=True)


@each_model
def test_spectrograms_are_those_of_the_extractor(made: Made) -> None:
    for samples in (640, 1000, 16000, 31999, SECONDS * RATE, *([SECONDS * RATE + 1, 80000] if made.windows > 1 else [])):
        one = sound(samples / RATE, samples)
        windows, _ = made.processor.spectrogram(one)
        prompt = made.prompt(made.kind.place, [one])
        (_, _, data), (_, _, counts) = prompt.prepared(0)
        found = torch.from_numpy(np.frombuffer(data, np.float32).copy()).reshape(windows.shape)
        close(found, windows, 1e-5)
        expected = made.processor(made.kind.place, [one])["input_ids"][0].tolist()
        assert prompt.tokens == expected
        assert np.frombuffer(counts, np.int64)[1] == expected.count(made.eager.config.audio_token_id)


@each_model
def test_logits_of_prompts(made: Made) -> None:
    place = made.kind.place
    one, two = sound(0.7, 1), sound(1.1, 2)
    for text, sounds in [
        (place, [one]),
        (place, [sound(SECONDS)]),
        (f"Before {place} after", [two]),
        (f"{place}{place} both", [one, two]),
        (f"A {place} and B {place}, what differs?", [two, one]),
        ("No sound at all", []),
        *([(f"Long {place}", [sound(4.3)])] if made.windows > 1 else []),
    ]:
        close(made.generator.logits(text, audio=heard(sounds)), made.logits(text, sounds))


@each_model
@pytest.mark.parametrize("chunk", [5, 16])
def test_logits_of_prompts_in_parts(made: Made, chunk: int) -> None:
    """Runs that begin and end within a sound, and behind it."""
    generator = graft.TextGenerator(made.package, threads=1, prefill_chunk_size=chunk)
    text, sounds = f"A {made.kind.place} and B {made.kind.place}, what differs?", [sound(0.7, 1), sound(1.1, 2)]
    close(generator.logits(text, audio=heard(sounds)), made.logits(text, sounds))


@each_model
def test_texts_are_those_of_generate(made: Made) -> None:
    place = made.kind.place
    one, two = sound(0.7, 1), sound(1.1, 2)
    for text, sounds in [
        (f"Before {place} after", [one]),
        (f"A {place} and B {place}, what differs?", [two, one]),
        ("No sound at all", []),
    ]:
        found = made.generator.generate(text, audio=heard(sounds), max_new_tokens=24)
        assert found.tokens == made.generated(text, sounds)


@each_model
def test_sounds_with_equal_placeholders_are_not_confused(made: Made) -> None:
    """What the cache has of one sound is not used for another, and is used for the same."""
    generator = graft.TextGenerator(made.package, threads=1)
    text = f"Before {made.kind.place} after"
    one, two = sound(0.7, 1), sound(0.7, 2)
    ids = made.prompt(text, [one]).tokens
    assert ids == made.prompt(text, [two]).tokens
    first = ids.index(made.eager.config.audio_token_id)
    reused = []
    for each in (one, two, two, one):
        found = generator.generate(text, audio=heard([each]), max_new_tokens=24).tokens
        assert found == made.generated(text, [each])
        reused.append(generator.stats["reused_tokens"])
    assert reused == [0, first, len(ids) - 1, first]
    # A text without sound after one with it.
    assert generator.generate("Before all", max_new_tokens=24).tokens == made.generated("Before all", [])


@each_model
def test_batches(made: Made) -> None:
    """Sequences with and without sound, side by side and from a cache of prefixes of them all."""
    place = made.kind.place
    one, two = sound(0.7, 1), sound(0.7, 2)
    prompts = [(f"A {place} b", [one]), ("Text alone", []), (f"A {place} b", [two]), (f"{place}{place} c", [two, one])]
    batch = graft.BatchGenerator(made.package, threads=1, rows=2, prefill_chunk_size=32, prefix_cache_bytes=1 << 24)
    for _ in range(2):
        ids = [batch.submit(text, audio=heard(sounds), max_new_tokens=12) for text, sounds in prompts]
        while batch.step():
            pass
        for (text, sounds), number in zip(prompts, ids):
            assert batch.take(number).tokens == made.generated(text, sounds, 12)


@each_model
def test_messages(made: Made) -> None:
    one, place = sound(0.7, 1), made.kind.place
    content = [{"type": "text", "text": "Hear: "}, {"type": "audio"}, {"type": "text", "text": " Well?"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    found = made.generator.generate(messages, audio=heard([one]), max_new_tokens=8)
    text = f"system:Be brief.user:Hear: {place} Well?assistant:"
    assert found.tokens == made.generated(text, [one], 8)
    # A question that does not say where the sound is becomes a message that begins with it.
    found = made.generator.generate("Well?", audio=heard([one]), max_new_tokens=8)
    assert found.tokens == made.generated(f"user:{place}Well?assistant:", [one], 8)


@each_model
def test_sound_at_another_rate(made: Made) -> None:
    """Resampled as torchaudio does it."""
    one = sound(0.7, 1, rate=24000)
    resampled = graft._C.resample(one.tobytes(), 24000, RATE)
    found = made.generator.logits(made.kind.place, audio=[(one, 24000)])
    close(found, made.logits(made.kind.place, [np.frombuffer(resampled, np.float32)]))


# Files and the command line -------------------------------------------------------------------------------------------


def file_of(path: Path, seconds: float, seed: int = 0) -> np.ndarray:
    """Writes a WAV file, and returns its samples."""
    path.write_bytes(wav(seconds, seed))
    return graft.load_audio(path)[0]


@each_model
def test_the_command_line(made: Made, tmp_path: Path) -> None:
    files = [tmp_path / "one.wav", tmp_path / "two.wav"]
    sounds = [file_of(file, 0.7, i) for i, file in enumerate(files)]
    decode = made.processor.tokenizer.decode
    place = made.kind.place
    given = ("generate", made.package, "--max-new-tokens", "8", "--threads", "1")

    def said(text: str, heard: Sequence[np.ndarray]) -> str:
        return decode(made.generated(text, heard, 8), skip_special_tokens=True)

    found = run_cli(*given, "--audio", files[0], "--prompt", "What is this?").stdout
    assert found == said(f"user:{place}What is this?assistant:", sounds[:1])
    text = f"A {place} and B {place}?"
    assert run_cli(*given, "--audio", files[0], "--audio", files[1], "--prompt", text).stdout == said(text, sounds)
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hear "}, {"type": "audio"}]}]
    (tmp_path / "m.json").write_text(json.dumps(messages))
    found = run_cli(*given, "--audio", files[0], "--messages", tmp_path / "m.json").stdout
    assert found == said(f"user:Hear {place}assistant:", sounds[:1])
    assert made.generator.generate(text, audio=files, max_new_tokens=8).tokens == made.generated(text, sounds, 8)


def test_wrong_use_of_the_command_line(qwen: Made, tmp_path: Path) -> None:
    file, other = tmp_path / "a.wav", tmp_path / "a.txt"
    file_of(file, 0.5)
    other.write_text("no sound")
    given = ("generate", qwen.package, "--prompt")
    assert "expected WAV, FLAC or MP3" in run_cli(*given, "a", "--audio", other, code=1).stderr
    assert "a.ogg" in run_cli(*given, "a", "--audio", tmp_path / "a.ogg", code=1).stderr
    found = run_cli(*given, "<|AUDIO|> and <|AUDIO|>", "--audio", file, code=1).stderr
    assert "the prompt has 2 places of sounds ('<|AUDIO|>'), and there are 1 sounds" in found
    assert "has 1 places of sounds ('<|AUDIO|>'), and there are 0" in run_cli(*given, "An <|AUDIO|>", code=1).stderr
    assert "expected one prompt, found 2" in run_cli(*given, "a", "--prompt", "b", "--audio", file, code=1).stderr
    assert "takes no pictures" in run_cli(*given, "a", "--image", file, code=1).stderr


def test_wrong_sounds_leave_the_generator_usable(qwen: Made, tmp_path: Path) -> None:
    generator, one = qwen.generator, sound(0.7, 1)
    expected = qwen.generated("<|AUDIO|>a", [one], 8)

    def check() -> None:
        assert generator.generate("<|AUDIO|>a", audio=[(one, RATE)], max_new_tokens=8).tokens == expected

    def refused(message: str, *sounds: Any, prompt: Any = "<|AUDIO|>") -> None:
        with pytest.raises((graft.InvalidArgument, ValueError), match=message):
            generator.generate(prompt, audio=list(sounds))
        check()

    (tmp_path / "a.wav").write_bytes(b"no sound")
    refused("expected WAV, FLAC or MP3", tmp_path / "a.wav")
    refused("has 2 places of sounds .'<.AUDIO.>'., and there are 1 sounds", (one, RATE), prompt="<|AUDIO|> <|AUDIO|>")
    refused("has 1 tokens of sounds .258., and there are no sounds")
    refused("has 1 tokens of sounds .258., and there are no sounds", prompt=[5, 258, 6])
    refused("a sound of 2.05 seconds: the model takes 2", (sound(2.05), RATE))
    refused("a sound of 100 samples is shorter than one row of features", (sound(100 / RATE), RATE))
    refused("a sound of 0 samples", (np.zeros(0), RATE))
    refused("a sound of 16000 samples at 0 per second", (sound(1), 0))
    refused("samples that are not finite", (np.full(16000, np.nan), RATE))
    refused("expected samples .n. of one channel", (np.zeros((2, 100)), RATE))
    refused("found token ids", (one, RATE), prompt=[5])
    refused("the context has room for", *[(sound(2), RATE)] * 40, prompt="<|AUDIO|>" * 40)
    with pytest.raises(ValueError, match="expected images or audio, found both"):
        generator.generate("a", audio=[(one, RATE)], images=[np.zeros((2, 2, 3), np.uint8)])
    with pytest.raises(graft.InvalidArgument, match="Qwen2AudioForConditionalGeneration takes no pictures"):
        generator.generate("a", images=[np.zeros((2, 2, 3), np.uint8)])


# Export ---------------------------------------------------------------------------------------------------------------


def test_text_alone(qwen: Made, tmp_path: Path) -> None:
    package = graft.export_llm(qwen.folder, tmp_path / "text.pte", text_only=True)
    generator = graft.TextGenerator(package, threads=1)
    assert generator.generate("Hello", max_new_tokens=8).tokens == qwen.generated("Hello", [], 8)
    with pytest.raises(graft.InvalidArgument, match="Qwen2AudioForConditionalGeneration takes no sound"):
        generator.generate("Hello", audio=[(sound(1), RATE)])
    file_of(tmp_path / "a.wav", 0.5)
    found = run_cli("generate", package, "--prompt", "a", "--audio", tmp_path / "a.wav", code=1)
    assert "takes no sound" in found.stderr


@pytest.mark.parametrize("kind", ["q8_0", "bf16"])
def test_quantized(qwen: Made, tmp_path: Path, kind: str) -> None:
    package = graft.export_llm(qwen.folder, tmp_path / "q.pte", quantize=kind)
    text, sounds = "A <|AUDIO|> b", [sound(0.7, 1)]
    found = graft.TextGenerator(package, threads=1).logits(text, audio=heard(sounds))
    expected = qwen.logits(text, sounds)
    error = float((found - expected).abs().max() / expected.abs().max())
    assert 1e-5 < error < 0.2


def test_a_model_in_memory(qwen: Made, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected the processor of a Qwen2AudioForConditionalGeneration in memory"):
        graft.export_llm(qwen.eager, tmp_path / "m.pte")
    processor = transformers.Qwen2AudioProcessor(qwen.processor.extractor, qwen.processor.tokenizer)
    package = graft.export_llm(qwen.eager, tmp_path / "m.pte", processor=processor)
    one = sound(0.7, 1)
    found = graft.TextGenerator(package, threads=1).generate("<|AUDIO|>a", audio=[(one, RATE)], max_new_tokens=8)
    assert found.tokens == qwen.generated("<|AUDIO|>a", [one], 8)


def test_wrong_exports(qwen: Made, tmp_path: Path) -> None:
    model, target, extractor = qwen.eager, tmp_path / "m.pte", transformers.WhisperFeatureExtractor
    with pytest.raises(ExportError, match="is cut into stages with text_only=True alone"):
        graft.export_llm(qwen.folder, target, stages=2)
    with pytest.raises(ExportError, match="Qwen2AudioForConditionalGeneration is exported for text alone"):
        graft.export_llm(model, target, processor=extractor(), text_only=True)
    with pytest.raises(ExportError, match="expected windows of 200 frames, as the model's tower, found 3000"):
        graft.export_llm(model, target, processor=extractor())
    with pytest.raises(ExportError, match="expected the feature_size of preprocessor_config.json to be num_mel_bins, 80"):
        graft.export_llm(model, target, processor=extractor(feature_size=128, chunk_length=SECONDS))
    with pytest.raises(ExportError, match="expected a WhisperFeatureExtractor, found SeamlessM4TFeatureExtractor"):
        graft.export_llm(model, target, processor=transformers.SeamlessM4TFeatureExtractor())
    with pytest.raises(ExportError, match="AudioFlamingo3ForConditionalGeneration cannot be exported with its sound"):
        config = transformers.AudioFlamingo3Config(
            audio_config=dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32),
            text_config=qwen.eager.config.text_config.to_dict(),
        )  # fmt: skip
        graft.export_llm(transformers.AudioFlamingo3ForConditionalGeneration(config), target)
    assert not target.exists()
