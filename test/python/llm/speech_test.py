"""Models of speech: sound to features and text, against transformers' Whisper in eager PyTorch."""

import json
import struct
import subprocess
import threading
import wave

import numpy as np
import pytest
import torch
import transformers

import graft
from graft import _C
from quick import quick
from runner_test import binary
from speech_models import LANGUAGES, RATE, extractor, save_whisper, sound

LIMIT = 1e-5


class Pair:
    """The same Whisper in graft and in transformers."""

    def __init__(self, folder, seconds=1, **options):
        self.seconds = seconds
        save_whisper(folder / "whisper", seconds=seconds, **options)
        self.eager = transformers.WhisperForConditionalGeneration.from_pretrained(folder / "whisper").eval()
        self.package = graft.export_llm(folder / "whisper", folder / "whisper.pte")
        self.transcriber = graft.Transcriber(self.package)

    def features(self, samples, rate=RATE):
        extract = extractor(self.seconds)
        if len(samples) <= self.seconds * rate:
            return extract(samples, sampling_rate=rate, return_tensors="pt").input_features
        return extract(
            samples, sampling_rate=rate, return_tensors="pt", truncation=False, padding="longest"
        ).input_features

    def eager_segments(self, samples, **settings):
        settings = {"return_timestamps": True, "task": "transcribe", **settings}
        features = self.features(samples)
        found = self.eager.generate(features, return_segments=True, return_dict_in_generate=True, **settings)
        return found["segments"][0]

    def compare(self, samples, eager=None, **settings):
        """The segments of both, which must be equal."""
        expected = self.eager_segments(samples, **settings, **(eager or {}))
        found = self.transcriber(samples, sampling_rate=RATE, **settings)
        assert [s.tokens for s in found.segments] == [s["tokens"].tolist() for s in expected]
        for ours, theirs in zip(found.segments, expected, strict=True):
            assert abs(ours.start - float(theirs["start"])) < 1e-9
            assert abs(ours.end - float(theirs["end"])) < 1e-9
        return found, expected


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair(tmp_path_factory.mktemp("speech"))


# Sound to features ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 201, 7000, 15999, 16000, 16001, 16159, 16160, 53217])
def test_features_are_the_processors(pair, samples):
    signal = sound(4, seed=samples)[:samples]
    expected = pair.features(signal)[0].numpy()
    found = pair.transcriber.features(signal)
    assert found.shape == expected.shape
    # Those of transformers with numpy are in f64; with torch they are in f32 and not right to 1e-5 where it is quiet.
    precise = numpy_features(pair, signal)
    assert np.abs(found - precise).max() < LIMIT
    assert np.abs(found - expected).max() < max(10 * LIMIT, 2 * np.abs(expected - precise).max())


def numpy_features(pair, signal):
    extract = extractor(pair.seconds)
    padded = np.zeros(max(len(signal), pair.seconds * RATE), np.float32)
    padded[: len(signal)] = signal
    return extract._np_extract_fbank_features(padded[None], "cpu")[0]


@pytest.mark.parametrize("signal", [np.zeros(5000), np.ones(5000), np.eye(1, 20000, 7000)[0]], ids=["zero", "one", "click"])
def test_features_of_signals_without_noise(pair, signal):
    signal = signal.astype(np.float32)
    assert np.abs(pair.transcriber.features(signal) - numpy_features(pair, signal)).max() < LIMIT


def torchaudio_resample(samples, rate, wanted):
    """torchaudio.functional.resample as its documentation states it, in f64."""
    divisor = np.gcd(rate, wanted)
    rate, wanted = rate // divisor, wanted // divisor
    base = min(rate, wanted) * 0.99
    width = int(np.ceil(6 * rate / base))
    index = np.arange(-width, width + rate) / rate
    t = (-np.arange(wanted)[:, None] / wanted + index) * base
    t = t.clip(-6, 6)
    window = np.cos(t * np.pi / 6 / 2) ** 2
    kernels = np.sinc(t) * window * base / rate
    padded = torch.nn.functional.pad(torch.tensor(samples, dtype=torch.float64), (width, width + rate))
    made = torch.nn.functional.conv1d(padded[None, None], torch.tensor(kernels)[:, None], stride=rate)
    length = int(np.ceil(wanted * len(samples) / rate))
    return made[0].T.reshape(-1)[:length].numpy()


@pytest.mark.parametrize("rates", [(44100, 16000), (48000, 16000), (8000, 16000), (22050, 16000), (16000, 11025), (16001, 16000)])
def test_resampling_is_torchaudios(rates):
    samples = sound(0.3, seed=1, rate=rates[0])
    expected = torchaudio_resample(samples, *rates)
    found = np.frombuffer(_C.resample(samples.tobytes(), *rates), np.float32)
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-6


def test_a_rate_that_makes_no_sense():
    with pytest.raises(graft.InvalidArgument, match="from 1 to 768000, got 0"):
        _C.resample(b"", 0, 16000)


# Files ----------------------------------------------------------------------------------------------------------------


def wav(path, data, rate, channels, width):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)


def test_wav_files(tmp_path):
    samples = sound(0.5, seed=2)
    as_16 = np.round(samples * 32767).astype("<i2")
    wav(tmp_path / "16.wav", as_16.tobytes(), RATE, 1, 2)
    found, rate = graft.load_audio(tmp_path / "16.wav")
    assert rate == RATE and np.array_equal(found, as_16 / np.float32(32768))
    as_32 = np.round(samples.astype(np.float64) * 2**31).astype("<i4")
    wav(tmp_path / "24.wav", b"".join(struct.pack("<i", int(v))[1:] for v in as_32), 44100, 1, 3)
    found, rate = graft.load_audio(tmp_path / "24.wav")
    assert rate == 44100 and np.abs(found - samples).max() < 2**-22
    left, right = as_16, as_16[::-1]
    wav(tmp_path / "stereo.wav", np.stack([left, right], 1).tobytes(), RATE, 2, 2)
    found, _ = graft.load_audio(tmp_path / "stereo.wav")
    assert np.abs(found - (left.astype(np.float64) + right) / 65536).max() < 1e-7
    float_wav = b"RIFF" + struct.pack("<I", 36 + samples.nbytes) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, 8000, 32000, 4, 32)
    (tmp_path / "float.wav").write_bytes(float_wav + b"data" + struct.pack("<I", samples.nbytes) + samples.tobytes())
    found, rate = graft.load_audio(tmp_path / "float.wav")
    assert rate == 8000 and np.array_equal(found, samples)


@pytest.mark.parametrize("format, limit", [("FLAC", 1e-4), ("MP3", 2e-3), ("WAV", 1e-4)])
def test_files_as_libsndfile_reads_them(tmp_path, format, limit):
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    path = tmp_path / f"sound.{format.lower()}"
    samples = np.stack([sound(1.3, seed=3, rate=44100), sound(1.3, seed=4, rate=44100)], 1)
    soundfile.write(path, samples, 44100, format=format)
    expected, rate = soundfile.read(path, dtype="float64")
    found, found_rate = graft.load_audio(path)
    assert found_rate == rate
    if format == "MP3":  # decoders differ in what they cut off at both ends
        count = min(len(found), len(expected))
        found, expected = found[:count], expected[:count]
    assert len(found) == len(expected) and np.abs(found - expected.mean(1)).max() < limit


@pytest.mark.parametrize("content", [b"", b"RIFF", b"not sound at all" * 20, b"fLaC" + bytes(50), b"ID3" + bytes(40)])
def test_files_that_are_no_sound(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(graft.InvalidArgument, match="expected WAV, FLAC or MP3|has no samples|is damaged"):
        graft.load_audio(tmp_path / "a.wav")


def test_files_that_are_cut_off_or_damaged(tmp_path):
    """Nothing but sound that is shorter, or a typed error."""
    samples = np.round(sound(0.5, seed=5) * 32767).astype("<i2")
    wav(tmp_path / "whole.wav", samples.tobytes(), RATE, 1, 2)
    whole = (tmp_path / "whole.wav").read_bytes()
    random = np.random.default_rng(0)
    outcomes = set()
    for i in range(300):
        damaged = bytearray(whole[: random.integers(1, len(whole))])
        for at in random.integers(0, min(len(damaged), 60), 2):
            damaged[at] = random.integers(256)
        try:
            found, _ = _C.decode_audio(bytes(damaged))
            outcomes.add("sound")
            assert len(found) <= 4 * 4 * len(damaged)
        except graft.InvalidArgument:
            outcomes.add("refused")
    assert outcomes == {"sound", "refused"}


@pytest.mark.parametrize("name", ["fmt ", "LIST", "fact", "odd "])
@pytest.mark.parametrize("size", [0xFFFFFFFE, 0xFFFFFFF0, 0x7FFFFFFF, 1 << 20])
def test_chunks_that_claim_too_much(tmp_path, name, size):
    """miniaudio takes a large size for a step backwards, and read the same chunk without an end."""
    samples = np.zeros(100, "<i2").tobytes()
    fields = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    chunks = b"" if name == "fmt " else b"fmt " + struct.pack("<I", 16) + fields
    chunks += name.encode() + struct.pack("<I", size) + fields
    (tmp_path / "a.wav").write_bytes(b"RIFF" + struct.pack("<I", 4) + b"WAVE" + chunks + b"data" + struct.pack("<I", 200) + samples)
    with pytest.raises(graft.InvalidArgument, match="expected WAV, FLAC or MP3"):
        graft.load_audio(tmp_path / "a.wav")


def test_sound_of_unknown_length(tmp_path):
    """As programs write it that cannot seek in their output."""
    samples = np.arange(100, dtype="<i2").tobytes()
    head = b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    (tmp_path / "a.wav").write_bytes(head + b"data" + struct.pack("<I", 0xFFFFFFFF) + samples)
    found, rate = graft.load_audio(tmp_path / "a.wav")
    assert rate == 8000 and np.array_equal(found * 32768, np.arange(100))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_no_numbers(tmp_path, value):
    samples = np.array([0, value, 0], np.float32).tobytes()
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, 8000, 32000, 4, 32)
    (tmp_path / "a.wav").write_bytes(head + b"data" + struct.pack("<I", len(samples)) + samples)
    with pytest.raises(graft.InvalidArgument, match="a sample that is no number, after 1"):
        graft.load_audio(tmp_path / "a.wav")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(graft.NotFound, match="none.wav"):
        graft.load_audio(tmp_path / "none.wav")


# Text -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", quick(range(3), range(12)))
def test_long_sound_is_transformers(tmp_path, seed):
    pair = Pair(tmp_path, seed=seed)
    lengths = [0.4, 1.0, 1.005, 3.3, 6.7]
    segments = 0
    for length in lengths:
        found, _ = pair.compare(sound(length, seed=seed))
        segments += len(found.segments)
        assert found.language in LANGUAGES
    assert segments > len(lengths)


def test_all_ways_that_a_window_ends(pair):
    """Pairs of time stamps, with a single one at the end or not, none: each was seen, and begins the next window where it
    must. (A single one alone does not come up here: speech_rules_test.cpp.)"""
    seen = set()
    first = pair.eager.generation_config.no_timestamps_token_id + 1
    for seed in range(12):
        found, _ = pair.compare(sound(4, seed=seed))
        windows = {}
        for segment in found.segments:
            windows.setdefault(segment.window, []).extend(segment.tokens)
        for said in windows.values():
            stamps = [token >= first for token in said]
            pairs = any(a and b for a, b in zip(stamps, stamps[1:]))
            seen.add((pairs, stamps[-2:] == [False, True]))
    assert seen >= {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("settings", [
    {"language": "de"}, {"language": "fr", "task": "translate"}, {"condition_on_prev_tokens": True},
    {"language": "en", "condition_on_prev_tokens": True},
], ids=str)  # fmt: skip
def test_settings_are_transformers(pair, settings):
    found, _ = pair.compare(sound(5, seed=9), **settings)
    assert len({segment.window for segment in found.segments}) > 1
    if "language" in settings:
        assert found.language == settings["language"]


def test_without_time_stamps(pair):
    samples = sound(0.8, seed=4)
    features = pair.features(samples)
    expected = pair.eager.generate(features, return_segments=True, return_timestamps=False, task="transcribe")
    found = pair.transcriber(samples, sampling_rate=RATE, return_timestamps=False)
    assert [s.tokens for s in found.segments] == [s["tokens"].tolist() for s in expected["segments"][0]]


@pytest.mark.parametrize("condition", [False, True])
def test_a_prompt(pair, condition):
    samples = sound(2.5, seed=6)
    ids = [pair.eager.generation_config.prev_sot_token_id, *tokenizer(pair).encode(" Graft, ggml", add_special_tokens=False)]
    eager = {"prompt_ids": torch.tensor(ids)}
    expected = pair.eager_segments(samples, condition_on_prev_tokens=condition, **eager)
    found = pair.transcriber(samples, sampling_rate=RATE, prompt="Graft, ggml ", condition_on_prev_tokens=condition)
    assert [s.tokens for s in found.segments] == [s["tokens"].tolist() for s in expected]
    assert [s.tokens for s in pair.transcriber(samples, sampling_rate=RATE).segments] != [s.tokens for s in found.segments]


def tokenizer(pair):
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(pair.package.parent / "whisper" / "tokenizer.json"))


def test_thresholds_and_what_they_are_measured_by(pair):
    """The mean log-probability, the ratio of compression and the probability of no speech of each window; windows that
    are skipped by them."""
    samples = sound(6, seed=7)
    plain = pair.transcriber(samples, sampling_rate=RATE)
    logprobs = sorted({s.avg_logprob for s in plain.segments})
    speech = sorted({s.no_speech_prob for s in plain.segments})
    ratios = sorted({s.compression_ratio for s in plain.segments})
    assert len(logprobs) > 2
    skipped = 0
    for share in (0.3, 0.6, 0.9):
        at = lambda values: values[int(share * (len(values) - 1))] + 1e-6  # noqa: E731
        thresholds = {"logprob_threshold": at(logprobs), "no_speech_threshold": at(speech) - 2e-6,
                      "compression_ratio_threshold": at(ratios)}  # fmt: skip
        found, expected = pair.compare(samples, eager={"temperature": (0.0,)}, **thresholds)
        skipped += len(found.segments) < len(plain.segments)
        for ours, theirs in zip(found.segments, expected, strict=True):
            result = theirs["result"]
            said = result["sequences"][-len(result["scores"]) :]
            logprob = pair.eager._retrieve_avg_logprobs(result["scores"], said, 0.0)
            assert abs(ours.avg_logprob - float(logprob)) < 1e-4
            ratio = pair.eager._retrieve_compression_ratio(said, pair.eager.config.vocab_size)
            assert ours.compression_ratio == ratio
    assert skipped


def test_other_temperatures_are_tried_where_a_window_fails(pair):
    samples = sound(3, seed=8)
    settings = {"temperatures": [0, 0.2, 0.9], "logprob_threshold": 0.0, "seed": 3}
    found = pair.transcriber(samples, sampling_rate=RATE, **settings)
    assert {s.temperature for s in found.segments} == {0.9}  # no text is certain
    again = pair.transcriber(samples, sampling_rate=RATE, **settings)
    assert [s.tokens for s in again.segments] == [s.tokens for s in found.segments]
    other = pair.transcriber(samples, sampling_rate=RATE, **{**settings, "seed": 4})
    assert [s.tokens for s in other.segments] != [s.tokens for s in found.segments]
    easy = pair.transcriber(samples, sampling_rate=RATE, temperatures=[0, 1], logprob_threshold=-1000.0)
    assert {s.temperature for s in easy.segments} == {0}


def test_a_model_of_one_language(tmp_path):
    pair = Pair(tmp_path, multilingual=False, seed=3)
    samples = sound(2.2, seed=3)
    expected = pair.eager.generate(pair.features(samples), return_timestamps=True, return_segments=True)["segments"][0]
    found = pair.transcriber(samples, sampling_rate=RATE)
    assert [s.tokens for s in found.segments] == [s["tokens"].tolist() for s in expected]
    assert found.language == "" and pair.transcriber.languages == []
    with pytest.raises(graft.InvalidArgument, match="knows one language"):
        pair.transcriber(samples, sampling_rate=RATE, language="en")


@pytest.mark.slow
def test_windows_of_thirty_seconds(tmp_path):
    pair = Pair(tmp_path, seconds=30, context=448, seed=5)
    pair.compare(sound(71, seed=1))


def test_plans_are_few(pair):
    """Windows and their prompts share plans, whatever their lengths."""
    transcriber = graft.Transcriber(pair.package)
    for seed in range(4):
        transcriber(sound(6 + seed, seed=seed), sampling_rate=RATE, condition_on_prev_tokens=True)
    # The encoder, steps, and prompts of 4, 8, 16, 32 and 64 tokens; one token to tell the language.
    assert transcriber._transcriber.plans <= 8


@pytest.mark.parametrize("settings, message", [
    ({"language": "xx"}, "knows no language 'xx'; it knows 3, such as 'en'"),
    ({"task": "sing"}, "knows no task 'sing'"),
    ({"temperatures": []}, "needs a temperature"),
    ({"temperatures": [-1.0]}, "at least 0, got -1"),
    ({"no_speech_threshold": 0.5}, "needs logprob_threshold"),
    ({"prompt": "x" * 400}, "the prompt has 401 tokens, the model takes 31"),
    ({"nonsense": 1}, "no setting 'nonsense'"),
], ids=str)  # fmt: skip
def test_wrong_settings_are_refused(pair, settings, message):
    with pytest.raises(graft.InvalidArgument, match=message):
        pair.transcriber(sound(1), sampling_rate=RATE, **settings)
    assert pair.transcriber(sound(1), sampling_rate=RATE).segments


def test_wrong_sound_is_refused(pair):
    for samples, rate, message in (
        (np.zeros(0, np.float32), RATE, "no samples"),
        (np.zeros((2, 5), np.float32), RATE, r"found the shape \(2, 5\)"),
        (np.zeros(5, np.float32), 0, "no samples|sampling rate"),
        (np.zeros(5, np.float32), None, "expected the sampling_rate"),
    ):
        with pytest.raises(graft.InvalidArgument, match=message):
            pair.transcriber(samples, sampling_rate=rate)


def test_a_model_that_is_not_of_speech(tmp_path):
    import llm_models

    package = graft.export_llm(llm_models.BY_NAME["t5"].make(), tmp_path / "model.pte")
    with pytest.raises(graft.InvalidArgument, match="is no model of speech"):
        graft.Transcriber(package)


def test_it_is_cancelled_between_runs(pair):
    cancel = graft.CancelToken()
    heard = []

    def stop(segment):
        heard.append(segment)
        cancel.cancel()

    with pytest.raises(graft.Cancelled):
        pair.transcriber(sound(6), sampling_rate=RATE, on_segment=stop, cancel=cancel)
    assert heard and pair.transcriber(sound(1), sampling_rate=RATE).segments


def test_an_error_of_the_caller_leaves_it_usable(pair):
    def fail(_):
        raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        pair.transcriber(sound(2), sampling_rate=RATE, on_segment=fail)
    assert pair.transcriber(sound(1), sampling_rate=RATE).segments


def test_one_thread_at_a_time(pair):
    found = []

    def call():
        try:
            pair.transcriber(sound(1), sampling_rate=RATE)
        except graft.Busy as error:
            found.append(error)

    def beside(_):
        if not found:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()

    pair.transcriber(sound(2), sampling_rate=RATE, on_segment=beside)
    assert len(found) == 1


# The command line -----------------------------------------------------------------------------------------------------


def run_cli(*args, code=0):
    done = subprocess.run([binary(), *map(str, args)], capture_output=True)
    assert done.returncode == code, done.stderr
    return (done.stderr if code else done.stdout).decode(errors="replace")


def test_transcribe(pair, tmp_path):
    samples = np.round(sound(3.3, seed=2, rate=8000) * 32767).astype("<i2")
    path = tmp_path / "speech.wav"
    wav(path, samples.tobytes(), 8000, 1, 2)
    expected = pair.transcriber(path)
    assert run_cli("transcribe", pair.package, path).strip() == expected.text.strip()
    found = json.loads(run_cli("transcribe", pair.package, path, "--format", "json"))
    assert [s["tokens"] for s in found["segments"]] == [s.tokens for s in expected.segments]
    assert found["task"] == "transcribe" and found["language"] == expected.language and abs(found["duration"] - 3.3) < 1e-3
    srt = run_cli("transcribe", pair.package, path, "--format", "srt").split("\n\n")
    assert len(srt) - 1 == len(expected.segments) and srt[0].startswith("1\n00:00:0") and "," in srt[0].split("\n")[1]
    vtt = run_cli("transcribe", pair.package, path, "--format", "vtt", "--language", "de")
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert "expected WAV, FLAC or MP3" in run_cli("transcribe", pair.package, pair.package, code=1)
    assert "knows no language 'xx'" in run_cli("transcribe", pair.package, path, "--language", "xx", code=1)
