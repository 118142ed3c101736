"""Moonshine: samples to text, against transformers in eager PyTorch."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import torch
import transformers

import graft
from runner_test import binary
from speech_models import RATE, save_moonshine, sound, wav

SECONDS = (0.2, 0.7, 1.93, 3.0371)


class Pair:
    """The same model in graft and in transformers."""

    def __init__(self, folder, **options):
        self.folder = save_moonshine(folder / "model", **options)
        self.eager = transformers.MoonshineForConditionalGeneration.from_pretrained(self.folder).eval()
        self.extractor = transformers.AutoFeatureExtractor.from_pretrained(self.folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.package = graft.export_llm(self.folder, folder / "model.pte")
        self.transcriber = graft.Transcriber(self.package)

    def inputs(self, samples):
        return self.extractor(samples, sampling_rate=RATE, return_tensors="pt")

    def tokens(self, samples):
        """As transformers' documentation of Moonshine generates, where that can say anything."""
        inputs = self.inputs(samples)
        most = int((inputs.attention_mask.sum(-1) * 6.5 / RATE).max().item())
        return self.eager.generate(**inputs, max_length=max(most, 2), do_sample=False)[0, 1:].tolist()


@pytest.fixture(scope="module", params=[False, True], ids=["as they are", "normalized"])
def pair(request, tmp_path_factory):
    return Pair(tmp_path_factory.mktemp("moonshine"), normalize=request.param)


@pytest.mark.parametrize("seconds", SECONDS)
def test_features_are_the_extractors(pair, seconds):
    samples = sound(seconds, 3) * 0.3 + 0.05
    found = pair.transcriber.features(samples)
    expected = pair.inputs(samples).input_values[0].numpy()
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("seconds", SECONDS)
def test_logits_are_those_of_eager(pair, seconds):
    """Token by token, by the cache, and of a batch of two sounds."""
    inputs = torch.cat([pair.inputs(sound(seconds, seed)).input_values for seed in (1, 2)])
    tokens = torch.tensor([[1, 7, 30, 99, 5], [1, 42, 8, 3, 77]])
    with torch.no_grad():
        expected = pair.eager(inputs, decoder_input_ids=tokens).logits
    model = graft.load(pair.package, kv_rows=2, kv_length=24)
    encode, step = model.methods["encode"], model.methods["step"]
    assert encode(inputs).tolist() == [pair.eager.get_encoder()(inputs)[0].shape[1]] * 2
    for first, last in ((0, 3), (3, 4), (4, 5)):
        places = torch.arange(first, last).expand(2, -1).contiguous()
        found = step(tokens[:, first:last].contiguous(), places, places, torch.arange(last - first))
        part = expected[:, first:last]
        assert (found - part).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("seconds", SECONDS)
def test_tokens_and_text_are_those_of_generate(pair, seconds):
    texts = set()
    for seed in range(4):
        samples = sound(seconds, seed)
        found = pair.transcriber(samples, sampling_rate=RATE)
        expected = pair.tokens(samples)
        (segment,) = found.segments
        assert segment.tokens == expected
        assert found.text == segment.text == pair.tokenizer.decode(expected, skip_special_tokens=True)
        assert (segment.start, segment.end) == (0, len(samples) / RATE) and segment.avg_logprob < 0
        assert len(expected) <= max(1, int(seconds * 6.5) - 1)
        texts.add(found.text)
    assert len(texts) > 1 or seconds < 0.5


def test_other_rates_and_files(pair, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1.2, 4, 22050))
    samples, rate = graft._C.load_audio(str(path))
    at_rate = np.frombuffer(graft._C.resample(samples, rate, RATE), np.float32)
    assert pair.transcriber(path).segments[0].tokens == pair.tokens(at_rate)


def test_wrong_sounds_and_options(pair):
    transcriber = pair.transcriber
    most = int(25 * RATE / 6.5) - 1  # the context is 24 tokens
    assert transcriber(np.tile(sound(2), 2)[:most], sampling_rate=RATE).text
    with pytest.raises(graft.InvalidArgument, match=f"takes from 1279 to {most} samples at 16000 per second, the sound has {most + 1}"):
        transcriber(np.tile(sound(2), 2)[: most + 1], sampling_rate=RATE)
    with pytest.raises(graft.InvalidArgument, match="the sound has 1278"):
        transcriber(sound(1)[:1278], sampling_rate=RATE)
    assert transcriber(sound(1)[:1279], sampling_rate=RATE).segments
    with pytest.raises(graft.InvalidArgument, match="there are no samples"):
        transcriber(np.zeros(0, np.float32), sampling_rate=RATE)
    for option, value in {"language": "en", "return_timestamps": True, "prompt": "Hi", "temperatures": [0, 0.2]}.items():
        with pytest.raises(graft.InvalidArgument, match=f"'{option}' is not supported by MoonshineForConditionalGeneration"):
            transcriber(sound(1), sampling_rate=RATE, **{option: value})
    assert transcriber.languages == []


def test_models_in_memory(tmp_path):
    folder = save_moonshine(tmp_path / "model")
    model = transformers.MoonshineForConditionalGeneration.from_pretrained(folder)
    with pytest.raises(graft.ExportError, match="expected the processor of a MoonshineForConditionalGeneration"):
        graft.export_llm(model, tmp_path / "a.pte")
    processor = transformers.Wav2Vec2Processor(
        transformers.AutoFeatureExtractor.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    )
    found = graft.Transcriber(graft.export_llm(model, tmp_path / "a.pte", processor=processor))
    again = graft.Transcriber(graft.export_llm(folder, tmp_path / "b.pte"))
    assert found(sound(1), sampling_rate=RATE) == again(sound(1), sampling_rate=RATE)


def test_a_shorter_context(tmp_path):
    folder = save_moonshine(tmp_path / "model")
    transcriber = graft.Transcriber(graft.export_llm(folder, tmp_path / "a.pte", context=10))
    assert transcriber(sound(1.6), sampling_rate=RATE).segments
    with pytest.raises(graft.InvalidArgument, match="takes from 1279 to 27075 samples"):
        transcriber(sound(1.8), sampling_rate=RATE)


def test_command_line(pair, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1.5, 6))
    said = pair.transcriber(path)

    def run(*arguments):
        return subprocess.run([binary(), "transcribe", pair.package, path, *arguments], capture_output=True, text=True)

    assert json.loads(run("--format", "json").stdout)["segments"][0]["tokens"] == said.segments[0].tokens
    done = run("--task", "translate")
    assert done.returncode != 0 and "'task' is not supported by MoonshineForConditionalGeneration" in done.stderr
