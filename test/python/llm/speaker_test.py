"""Text to speech with a small Pocket TTS, against eager PyTorch: frames, sound, voices, long texts, the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import graft
import speaker_models
from graft.errors import ExportError
from pictures_test import close, run_cli
from speaker_models import FRAME, RATE
from speech_models import sound

pytestmark = pytest.mark.usefixtures("one_thread")
LONG = (
    "One and 2.5 and three. Four is here! Is five, six, or seven there? Eight... nine, ten; eleven: twelve and "
    "thirteen, and fourteen and fifteen, and sixteen and seventeen and eighteen and so on."
)


class Made:
    """A model and its processor, its package and its speaker."""

    def __init__(self, path: Path, flow_type: str = "lsd", **options: Any) -> None:
        self.model, self.processor = speaker_models.make(flow_type)
        self.package = graft.export_speaker(self.model, path, processor=self.processor, **options)
        self.speaker = graft.Speaker(self.package, threads=1)

    def frames(self, text: str, voice: np.ndarray | None, **settings: Any) -> torch.Tensor:
        """Those that generate() draws without noise."""
        content = [{"type": "text", "text": text}]
        if voice is not None:
            content.insert(0, {"type": "audio"})
        prompt = self.processor.apply_chat_template([{"role": "user", "content": content}])
        audio = {} if voice is None else {"audio": [voice], "sampling_rate": RATE}
        given = self.processor(text=[prompt], return_tensors="pt", **audio)
        return self.model.generate(**given, do_sample=False, **settings)[0]

    def said(self, text: str, voice: np.ndarray | None, **settings: Any) -> torch.Tensor:
        return self.processor.decode(self.frames(text, voice, **settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("speaker") / "tts.pte")


def spoken(made: Made, text: str, **settings: Any) -> torch.Tensor:
    return torch.from_numpy(made.speaker(text, temperature=0, **settings).copy())


SOMEBODY = sound(1.3, 3, RATE)


@pytest.mark.parametrize("threshold", [-1e9, 0.0, 1e9], ids=["ends at once", "ends", "never ends"])
@pytest.mark.parametrize("text", ["Hi", "Some words that somebody says"])
@pytest.mark.parametrize("voice", [None, SOMEBODY], ids=["own voice", "voice"])
def test_sound_is_that_of_generate(made: Made, voice: np.ndarray | None, text: str, threshold: float) -> None:
    settings = {"eos_threshold": threshold, "min_frames_before_eos": 3}
    expected = made.said(text, voice, **settings)
    found = spoken(made, text, voice=None if voice is None else (voice, RATE), **settings)
    close(found, expected)
    if threshold == -1e9:  # three frames, the one that ends, and those behind it: more for a short text
        assert len(found) == (3 + 1 + (4 if text == "Hi" else 2)) * FRAME


def test_the_most_frames(made: Made) -> None:
    for most in (1, 2, 7):
        close(spoken(made, "Hi", max_frames=most), made.said("Hi", None, max_new_tokens=most))
        assert len(spoken(made, "Hi", max_frames=most, eos_threshold=1e9)) == most * FRAME


@pytest.mark.parametrize("seconds", [0.005, 0.01, 0.5, 1.3, 3.0])
def test_voices_are_those_of_the_codec(made: Made, seconds: float) -> None:
    samples = np.concatenate([sound(seconds, 5, RATE), np.zeros(round(0.3 * RATE * (seconds > 1)), np.float32)])
    given = made.processor.feature_extractor([samples], sampling_rate=RATE)
    with torch.no_grad():
        expected = made.processor.audio_tokenizer.encode(given["input_values"], given["padding_mask"])
    voice = made.speaker.voice((samples, RATE))
    close(torch.from_numpy(voice.latents.copy()), expected.latents[0])
    close(spoken(made, "Hi", voice=voice), made.said("Hi", samples))


@pytest.mark.parametrize("most", [1, 5, 20, 50, 1000])
def test_chunks_of_texts(made: Made, most: int) -> None:
    for text in (LONG, "Short.", "no sentence at all", "a, b, c", "  spaces  around . ", "Ünïcödé. 漢字!", "...?!"):
        assert made.speaker.chunks(text, most) == made.processor.split_text(text, most)


def test_long_texts_are_chunks_in_turn(made: Made) -> None:
    heard: list[np.ndarray] = []
    found = spoken(made, LONG, voice=(SOMEBODY, RATE), on_audio=heard.append, max_tokens=40, max_frames=5)
    chunks = made.processor.split_text(LONG, 40)
    assert len(chunks) > 3
    expected = [made.said(chunk, SOMEBODY, max_new_tokens=5) for chunk in chunks]
    assert [len(one) for one in heard] == [len(one) for one in expected]
    close(found, torch.cat(expected))
    assert np.array_equal(np.concatenate(heard), found.numpy())


def test_steps_make_no_plans(made: Made) -> None:
    spoken(made, "Hello", max_frames=5, eos_threshold=1e9)
    before = made.speaker.plans
    spoken(made, "Hallo", max_frames=5, eos_threshold=1e9)
    assert made.speaker.plans == before


def test_noise_is_of_its_seed(made: Made) -> None:
    def drawn(seed: int) -> np.ndarray:
        return made.speaker("Hi", temperature=0.5, seed=seed, max_frames=8, eos_threshold=1e9)

    assert np.array_equal(drawn(1), drawn(1))
    assert not np.allclose(drawn(1), drawn(2), atol=1e-3)
    assert not np.allclose(drawn(1), made.speaker("Hi", temperature=0, max_frames=8, eos_threshold=1e9), atol=1e-3)


@pytest.mark.parametrize(("flow_type", "steps"), [("lsd", 3), ("drifting", 1)])
def test_other_heads(tmp_path: Path, flow_type: str, steps: int) -> None:
    made = Made(tmp_path / "tts.pte", flow_type, flow_steps=steps)
    close(spoken(made, "Hello", max_frames=6), made.said("Hello", None, max_new_tokens=6, num_flow_steps=steps))


def test_defaults_are_those_of_the_generation_config(tmp_path: Path) -> None:
    model, processor = speaker_models.make()
    for name, value in dict(do_sample=True, temperature=0.7, eos_threshold=1e9, min_frames_before_eos=2).items():
        setattr(model.generation_config, name, value)
    speaker = graft.Speaker(graft.export_speaker(model, tmp_path / "tts.pte", processor=processor), threads=1)
    assert np.array_equal(speaker("Hi", seed=3), speaker("Hi", seed=3, temperature=0.7, eos_threshold=1e9))
    assert not np.array_equal(speaker("Hi", seed=3), speaker("Hi", seed=3, temperature=0))


def test_a_folder_and_quantized(tmp_path: Path) -> None:
    folder = speaker_models.save(tmp_path / "model")
    graft.export_speaker(folder, tmp_path / "f32.pte")
    run_cli("export", folder, "-o", tmp_path / "q8.pte", "--quantize", "q8_0")
    model, processor = speaker_models.make()
    expected = processor.decode(_frames(model, processor, "Hello", 3))
    exact, near = (
        torch.from_numpy(graft.Speaker(tmp_path / f"{kind}.pte", threads=1)("Hello", temperature=0, max_frames=3).copy())
        for kind in ("f32", "q8")
    )
    close(exact, expected)
    assert 1e-5 < float((near - expected).abs().max() / expected.abs().max()) < 0.2


def _frames(model: Any, processor: Any, text: str, count: int) -> torch.Tensor:
    prompt = processor.apply_chat_template([{"role": "user", "content": [{"type": "text", "text": text}]}])
    return model.generate(**processor(text=[prompt], return_tensors="pt"), do_sample=False, max_new_tokens=count)[0]


def test_without_the_encoder_there_are_no_voices(tmp_path: Path) -> None:
    model, processor = speaker_models.make(encoder_config=None)
    speaker = graft.Speaker(graft.export_speaker(model, tmp_path / "tts.pte", processor=processor), threads=1)
    assert len(speaker("Hi", max_frames=2, eos_threshold=1e9)) == 2 * FRAME
    with pytest.raises(graft.InvalidArgument, match="takes no voice: the package was exported without the encoder"):
        speaker.voice((SOMEBODY, RATE))


# Files and the command line -------------------------------------------------------------------------------------------


def test_the_command_line(made: Made, tmp_path: Path) -> None:
    graft.save_audio(tmp_path / "voice.wav", SOMEBODY, RATE)
    voice, rate = graft.load_audio(tmp_path / "voice.wav")
    assert rate == RATE
    given = ("speak", made.package, "--temperature", "0", "--threads", "1", "-o", tmp_path / "out.wav")
    run_cli(*given, "--text", "Hello there", "--voice", tmp_path / "voice.wav")
    found, rate = graft.load_audio(tmp_path / "out.wav")
    assert rate == RATE
    expected = spoken(made, "Hello there", voice=(voice, RATE)).numpy()
    # lround takes halves away from zero, numpy's round to the even number: one sample in a thousand is a half in f32.
    scaled = (np.clip(expected, -1, 1) * np.float32(32767)).astype(np.float64)
    assert np.array_equal(found, np.trunc(scaled + np.copysign(0.5, scaled)) / 32768)
    (tmp_path / "text.txt").write_text("Hello there")
    run_cli(*given, "--text-file", tmp_path / "text.txt", "--voice", tmp_path / "voice.wav")
    assert np.array_equal(graft.load_audio(tmp_path / "out.wav")[0], found)
    assert "expected one of --text and --text-file" in run_cli(*given, code=1).stderr
    assert "the text has no words" in run_cli(*given, "--text", " ", code=1).stderr
    assert "is no model that speaks" in run_cli(*given[:1], _other(tmp_path), *given[2:], "--text", "a", code=1).stderr


def _other(folder: Path) -> Path:
    return graft.export(torch.nn.ReLU(), (torch.zeros(2),), path=folder / "relu.pte")


def test_wrong_use_leaves_the_speaker_usable(made: Made) -> None:
    expected = spoken(made, "Hi", max_frames=3)

    def refused(message: str, text: str = "Hi", **settings: Any) -> None:
        with pytest.raises((graft.InvalidArgument, ValueError), match=message):
            made.speaker(text, **settings)
        assert torch.equal(spoken(made, "Hi", max_frames=3), expected)

    refused("the text has no words", " \n")
    refused("temperature is at least 0", temperature=-1)
    refused("max_frames is at least 0", max_frames=-1)
    refused("max_tokens is at least 1", max_tokens=0)
    refused("there is no setting 'speed'", speed=2)
    refused("do not fit into 1024", "a" * 1100, max_frames=1)
    refused("a voice of 3 frames with 9 numbers: the model has 8 per frame", voice=graft.Voice(np.zeros((3, 3))))
    refused("a voice needs samples", voice=(np.zeros(0), RATE))
    refused("not finite", voice=(np.full(100, np.inf), RATE))
    refused("does not fit into 1024 with a text", voice=(sound(11, 1, RATE), RATE))
    cancel = graft.CancelToken()
    cancel.cancel()
    with pytest.raises(graft.Cancelled):
        made.speaker("Hi", cancel=cancel)


def test_wrong_exports(tmp_path: Path) -> None:
    model, processor = speaker_models.make()
    target = tmp_path / "m.pte"
    with pytest.raises(ExportError, match="expected the processor of a PocketTTSForConditionalGeneration in memory"):
        graft.export_speaker(model, target)
    with pytest.raises(ExportError, match="expected a context from 1 to 1024, found 2000"):
        graft.export_speaker(model, target, processor=processor, context=2000)
    with pytest.raises(ExportError, match="expected a path that ends in .pte"):
        graft.export_speaker(model, tmp_path / "m.bin", processor=processor)
    with pytest.raises(ExportError, match="expected an audio tokenizer with a decoder"):
        graft.export_speaker(model, target, processor=speaker_models.make(decoder_config=None)[1])
    with pytest.raises(ExportError, match="is no model that speaks"):
        graft.export_speaker(tmp_path / "nothing", target)
    processor.feature_extractor.sampling_rate = 16000
    with pytest.raises(ExportError, match="expected a feature extractor of 2400 samples per second, as the codec, found 16000"):
        graft.export_speaker(model, target, processor=processor)
    processor.audio_tokenizer = None
    with pytest.raises(ExportError, match="expected a processor with an audio tokenizer, found NoneType"):
        graft.export_speaker(model, target, processor=processor)
    gpt = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=16))
    with pytest.raises(ExportError, match="GPT2LMHeadModel cannot be exported; expected one of pocket_tts"):
        graft.export_speaker(gpt, target, processor=processor)
    assert not target.exists()
