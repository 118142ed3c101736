"""Speech to text from a package of `graft.export_llm`: the engine's own transcriber, as `graft transcribe` uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graft import _C
from graft.audio import as_samples
from graft.errors import InvalidArgument
from graft.llm.generate import _str
from graft.runtime import arrays

if TYPE_CHECKING:
    from graft.runtime.model import Array

__all__ = ["Segment", "Transcriber", "Transcription"]


@dataclass(frozen=True)
class Segment:
    """A part of the text with its time.

    start, end, window: seconds; window is where the model's window begins that it lies in.
    tokens: with those of its time stamps.
    avg_logprob, compression_ratio, no_speech_prob, temperature: of that window, as OpenAI's whisper has them.
    """

    start: float
    end: float
    text: str
    tokens: list[int]
    window: float
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


@dataclass(frozen=True)
class Transcription:
    """language: such as "en"; "" where the model knows one language alone."""

    text: str
    language: str
    segments: list[Segment]


class Transcriber:
    """Turns speech into text by a model such as Whisper, of any length, or one of CTC such as Wav2Vec2 and Parakeet.

    transcriber = graft.Transcriber("whisper.pte")
    print(transcriber("speech.mp3").text)

    tokenizer: a path, instead of the package's own. threads: 0 means as many as the machine has cores.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] = "",
        weights: Iterable[str | os.PathLike[str]] = (),
        device: str = "",
        threads: int = 0,
    ) -> None:
        files = [os.fspath(file) for file in weights]
        precision = arrays.matmul_precision()
        self._transcriber: Any = _C.Transcriber(os.fspath(path), os.fspath(tokenizer), files, device, precision, threads)

    def __call__(
        self,
        audio: str | os.PathLike[str] | Array,
        *,
        sampling_rate: int | None = None,
        on_segment: Callable[[Segment], None] | None = None,
        cancel: _C.CancelToken | None = None,
        **settings: Any,
    ) -> Transcription:
        """audio: a file of WAV, FLAC or MP3, or samples [n] from -1 to 1 with their sampling_rate. on_segment: called with
        each segment as its window is done. settings, as in generate() of transformers' Whisper: language ("en"; by default
        the model says), task ("transcribe" or "translate"), prompt, return_timestamps (True), temperatures ([0]; the next one
        is tried where a window fails a threshold), compression_ratio_threshold, logprob_threshold, no_speech_threshold,
        condition_on_prev_tokens, seed. Models without time stamps take none of these, give one segment, and raise
        InvalidArgument for sound that is longer than they take."""
        if isinstance(audio, (str, os.PathLike)):
            if sampling_rate is not None:
                raise InvalidArgument("expected no sampling_rate: a file has its own")
            samples, rate = _C.load_audio(os.fspath(audio))
        else:
            if sampling_rate is None:
                raise InvalidArgument("expected the sampling_rate of the samples")
            samples, rate = as_samples(audio), sampling_rate
        show = None if on_segment is None else lambda found: on_segment(_segment(found))
        text, language, segments = self._transcriber.transcribe(samples, rate, settings, show, cancel)
        return Transcription(_str(text), language, [_segment(found) for found in segments])

    def features(self, samples: Array) -> np.ndarray:
        """The encoder's input, f32, for samples [n] at `sampling_rate`: of Whisper [mels, frames], of at least one window; of
        Parakeet [frames, mels]; of models that take samples [n]."""
        found = np.frombuffer(self._transcriber.features(as_samples(samples)), dtype=np.float32)
        if not (mels := self._transcriber.mels):
            return found
        return found.reshape((mels, -1) if self._transcriber.mels_first else (-1, mels))

    @property
    def sampling_rate(self) -> int:
        """Of the model, in samples per second."""
        return self._transcriber.sampling_rate

    @property
    def languages(self) -> list[str]:
        """Those that the model tells apart; none where it knows one alone."""
        return self._transcriber.languages()


def _segment(found: dict[str, Any]) -> Segment:
    return Segment(**{**found, "text": _str(found["text"])})
