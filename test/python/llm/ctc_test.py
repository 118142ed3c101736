"""Models of speech that are decoded by CTC: features, logits and text against transformers."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import torch
import transformers

import graft
from ctc_models import BY_NAME, CTC_MODELS
from runner_test import binary
from speech_models import RATE, sound, wav

SECONDS = (0.09, 0.7, 1.93, 3.0371)


class Pair:
    """The same model in graft and in transformers."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, kind.save(folder / "model")
        self.eager = getattr(transformers, kind.kind).from_pretrained(self.folder).eval()
        self.processor = transformers.AutoProcessor.from_pretrained(self.folder)
        self.package = graft.export_llm(self.folder, folder / "model.pte")
        self.transcriber = graft.Transcriber(self.package)

    def inputs(self, samples):
        return self.processor.feature_extractor(samples, sampling_rate=RATE, return_tensors="pt")

    def text(self, samples):
        inputs = self.inputs(samples)
        with torch.no_grad():
            if self.kind.name == "parakeet":
                return self.processor.batch_decode(self.eager.generate(**inputs), skip_special_tokens=True)[0]
            return self.processor.batch_decode(self.eager(**inputs).logits.argmax(-1))[0]


@pytest.fixture(scope="module", params=CTC_MODELS, ids=lambda kind: kind.name)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp("ctc"))


def in_f64(extractor, samples):
    """What ParakeetFeatureExtractor computes, in f64 behind the preemphasis."""
    original = extractor._torch_extract_fbank_features
    before = torch.get_default_dtype()

    def exact(waveform, device):
        torch.set_default_dtype(torch.float64)  # of its window
        try:
            return original(waveform.double(), device)
        finally:
            torch.set_default_dtype(before)

    filters = extractor.mel_filters
    extractor._torch_extract_fbank_features, extractor.mel_filters = exact, filters.double()
    try:
        found = extractor(samples, sampling_rate=RATE, return_tensors="pt")
    finally:
        del extractor._torch_extract_fbank_features
        extractor.mel_filters = filters
    return found.input_features[0][found.attention_mask[0].bool()].numpy()


@pytest.mark.parametrize("seconds", SECONDS)
def test_features_are_the_extractors(pair, seconds):
    samples = sound(seconds, 3) * 0.3 + 0.05
    found = pair.transcriber.features(samples)
    if pair.kind.name == "parakeet":
        expected = in_f64(pair.processor.feature_extractor, samples)
    else:
        expected = pair.inputs(samples).input_values[0].numpy()
    assert found.dtype == np.float32 and found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("seconds", SECONDS)
def test_logits_are_those_of_eager(pair, seconds):
    inputs = pair.inputs(sound(seconds, 1))
    with torch.no_grad():
        expected = pair.eager(**inputs).logits
    model = graft.load(pair.package)
    if pair.kind.name == "parakeet":  # which computes a frame of silence more, and masks it
        features = inputs.input_features[:, : int(inputs.attention_mask.sum())]
        found = model.methods["encode"](features)
        expected = expected[:, : found.shape[1]]
    else:
        found = model.methods["encode"](inputs.input_values)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("seconds", SECONDS)
def test_text_is_that_of_the_processor(pair, seconds):
    texts = set()
    for seed in range(4):
        samples = sound(seconds, seed)
        found = pair.transcriber(samples, sampling_rate=RATE)
        expected = pair.text(samples)
        assert found.text == expected
        (segment,) = found.segments
        assert (segment.start, segment.end, segment.text) == (0, len(samples) / RATE, expected) and found.language == ""
        assert segment.avg_logprob < 0
        texts.add(expected)
    assert max(map(len, texts)) > 5 * seconds and len(texts) > 1


def test_text_is_that_of_the_pipeline(pair):
    """Of Parakeet it reads one position of silence more than generate() does, which is decoded to what the model says
    there."""
    if pair.kind.name == "parakeet":
        pytest.skip("the pipeline decodes what the attention mask leaves out")
    pipe = transformers.pipeline(
        "automatic-speech-recognition", pair.eager, feature_extractor=pair.processor.feature_extractor,
        tokenizer=pair.processor.tokenizer,
    )  # fmt: skip
    samples = sound(2.5, 8)
    assert pair.transcriber(samples, sampling_rate=RATE).text == pipe({"raw": samples, "sampling_rate": RATE})["text"]


def test_repeats_are_one_and_blanks_none(pair):
    """With logits that are known: those of a model whose last layer gives its bias alone would be one token for ever."""
    samples = sound(3, 2)
    inputs = pair.inputs(samples)
    with torch.no_grad():
        ids = pair.eager(**inputs).logits.argmax(-1)[0].tolist()
    blank = pair.processor.tokenizer.pad_token_id
    collapsed = [i for i, before in zip(ids, [None, *ids]) if i != before and i != blank]
    found = pair.transcriber(samples, sampling_rate=RATE).segments[0].tokens
    assert found == collapsed[: len(found)] and len(collapsed) - len(found) <= (pair.kind.name == "parakeet")
    assert len(collapsed) < len(ids)


def test_other_rates_and_files(pair, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1.2, 4, 22050))
    samples, rate = graft._C.load_audio(str(path))
    samples = np.frombuffer(samples, np.float32)
    at_rate = np.frombuffer(graft._C.resample(samples.tobytes(), rate, RATE), np.float32)
    assert pair.transcriber(path).text == pair.text(at_rate)


def test_wrong_sounds_and_options(pair):
    transcriber = pair.transcriber
    name = pair.kind.kind
    with pytest.raises(graft.InvalidArgument, match="there are no samples"):
        transcriber(np.zeros(0, np.float32), sampling_rate=RATE)
    with pytest.raises(graft.InvalidArgument, match=f"{name} takes from .* samples at 16000 per second, the sound has 100"):
        transcriber(sound(1)[:100], sampling_rate=RATE)
    with pytest.raises(graft.InvalidArgument, match="not finite"):
        transcriber(np.full(RATE, np.nan, np.float32), sampling_rate=RATE)
    for option, value in {
        "language": "en", "task": "translate", "prompt": "Hi", "return_timestamps": True, "temperatures": [0.5],
        "compression_ratio_threshold": 2.0, "logprob_threshold": -1.0, "no_speech_threshold": 0.5,
        "condition_on_prev_tokens": True,
    }.items():  # fmt: skip
        with pytest.raises(graft.InvalidArgument, match=f"'{option}' is not supported by {name}"):
            transcriber(sound(1), sampling_rate=RATE, **{option: value})
    assert transcriber(sound(1), sampling_rate=RATE, return_timestamps=False).text == pair.text(sound(1))


# Of 200 positions of 8 frames, and of a table of 250 positions.
@pytest.mark.parametrize(("name", "least", "most"), [("parakeet", 1440, 200 * 8 * 160 + 159), ("conformer", 720, 250 * 320 + 399)])
def test_sound_that_is_too_long_is_an_error(tmp_path, name, least, most):
    pair = Pair(BY_NAME[name], tmp_path)
    samples = np.tile(sound(4, 1), 5)
    assert pair.transcriber(samples[:most], sampling_rate=RATE).text == pair.text(samples[:most])
    with pytest.raises(graft.InvalidArgument, match=f"from {least} to {most} samples at 16000 per second, the sound has {most + 1}"):
        pair.transcriber(samples[: most + 1], sampling_rate=RATE)


def test_models_in_memory(tmp_path):
    kind = BY_NAME["wav2vec2"]
    model, processor = kind.model(), kind.processor(tmp_path)
    with pytest.raises(graft.ExportError, match="expected the processor of a Wav2Vec2ForCTC"):
        graft.export_llm(model, tmp_path / "a.pte")
    found = graft.Transcriber(graft.export_llm(model, tmp_path / "a.pte", processor=processor))
    again = graft.Transcriber(graft.export_llm(kind.save(tmp_path / "model"), tmp_path / "b.pte"))
    assert found(sound(1), sampling_rate=RATE) == again(sound(1), sampling_rate=RATE)


def test_quantized(pair, tmp_path):
    package = graft.export_llm(pair.folder, tmp_path / "q8.pte", quantize="q8_0")
    assert package.stat().st_size < pair.package.stat().st_size
    inputs = pair.inputs(sound(1, 1))
    inputs = inputs.input_values if "input_values" in inputs else inputs.input_features[:, :-1]
    exact, found = (graft.load(path).methods["encode"](inputs) for path in (pair.package, package))
    assert 0 < (found - exact).abs().max() < 0.1 * exact.abs().max()


def test_wrong_exports(tmp_path):
    folder = BY_NAME["wav2vec2"].save(tmp_path / "model")
    for options, said in [({"context": 10}, "no context"), ({"stages": 2}, "no stages"), ({"text_only": True}, "no text_only")]:
        with pytest.raises(graft.ExportError, match=f"expected {said}: Wav2Vec2ForCTC is no language model"):
            graft.export_llm(folder, tmp_path / "a.pte", **options)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "adapter_attn_dim": 16}))
    with pytest.raises(graft.ExportError):
        graft.export_llm(folder, tmp_path / "a.pte")
    model = transformers.SEWForCTC(transformers.SEWConfig(hidden_size=48, num_hidden_layers=1, num_attention_heads=4))
    with pytest.raises(graft.ExportError, match="SEWForCTC cannot be exported; expected one of .*hubert, parakeet_ctc"):
        graft.export_llm(model, tmp_path / "a.pte")


def test_checkpoints_without_the_mask_of_training(tmp_path):
    """facebook/wav2vec2-base-960h has none."""
    from safetensors.torch import load_file, save_file

    folder = BY_NAME["wav2vec2"].save(tmp_path / "model")
    whole = graft.Transcriber(graft.export_llm(folder, tmp_path / "a.pte"))
    weights = load_file(folder / "model.safetensors")
    assert weights.pop("wav2vec2.masked_spec_embed") is not None
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    without = graft.Transcriber(graft.export_llm(folder, tmp_path / "b.pte"))
    assert whole(sound(1), sampling_rate=RATE) == without(sound(1), sampling_rate=RATE)


def test_packages_of_others(pair):
    with pytest.raises(graft.InvalidArgument, match="is not the package of a language model"):
        graft.TextGenerator(pair.package)
    kind = graft.InvalidArgument if pair.kind.name != "parakeet" else graft.NotFound
    with pytest.raises(kind, match="expected no tokenizer" if pair.kind.name != "parakeet" else "nothing"):
        graft.Transcriber(pair.package, tokenizer=pair.folder / "nothing")


def test_damaged_packages(tmp_path):
    """Whose description cannot be read, or does not fit the method."""
    pair = Pair(BY_NAME["wav2vec2"], tmp_path)
    whole = pair.package.read_bytes()
    for old, new, said in [
        (b'"sampling_rate": 16000', b'"sampling_rate": "1600', "'graft.ctc.json' cannot be read"),
        (b'"sampling_rate": 16000', b'"sampling_rate":     0', "'sampling_rate' must be from 1 to 768000, found 0"),
        (b'"vocab_size": 32', b'"vocab_size": 31', "expected pieces of 31 tokens, found 32"),
        (b'"blank_id": 0', b'"blank_id":-1', "the blank -1 is not in the vocabulary of 32 tokens"),
        (b'"normalize": true', b'"n_fft"    : true', "'graft.ctc.json' cannot be read"),
        (b'"normalize"', b'"no_m_lize"', "'graft.ctc.json' cannot be read"),
    ]:
        assert whole.count(old) == 1 and len(old) == len(new)
        path = tmp_path / "damaged.pte"
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(graft.InvalidProgram, match=said):
            graft.Transcriber(path)
    pair = Pair(BY_NAME["parakeet"], tmp_path / "other")
    whole = pair.package.read_bytes()
    for old, new, said in [
        (b'"mels": 80', b'"mels": 40', "the method 'encode' is not the one that 'graft.ctc.json' describes"),
        (b'"win_length": 400', b'"win_length": 999', "'win_length' must be from 1 to 512, found 999"),
        (b'"preemphasis": 0.97', b'"preemphasis": 9.97', "a preemphasis from 0 to 1, found 512 and 9.97"),
    ]:
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(graft.InvalidProgram, match=said):
            graft.Transcriber(path)


def test_command_line(pair, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1.5, 6))
    said = pair.transcriber(path)

    def run(*arguments):
        return subprocess.run([binary(), "transcribe", pair.package, path, *arguments], capture_output=True, text=True)

    assert run().stdout == said.text.strip(" ") + "\n"
    found = json.loads(run("--format", "json").stdout)
    assert found["text"] == said.text.strip() and len(found["segments"]) == 1 and found["language"] == ""
    for arguments, message in [
        (("--format", "srt"), f"--format srt: {pair.kind.kind} has no time stamps, which subtitles need"),
        (("--language", "de"), f"'language' is not supported by {pair.kind.kind}"),
        (("--fallback",), f"'temperatures' is not supported by {pair.kind.kind}"),
    ]:
        done = run(*arguments)
        assert done.returncode != 0 and message in done.stderr
