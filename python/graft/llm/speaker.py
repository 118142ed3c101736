"""Text to speech from a package of `graft.export_speaker`: the engine's own speaker, as `graft speak` uses it."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft import _C
from graft.audio import Sound, samples_of

__all__ = ["Speaker", "Voice"]


@dataclass(frozen=True)
class Voice:
    """Who speaks: latents [frames, latent_size] of a sound that the model goes on from."""

    latents: np.ndarray


class Speaker:
    """Turns text into speech.

        speaker = graft.Speaker("tts.pte")
        samples = speaker("Hello, world!", voice="somebody.wav")
        graft.save_audio("hello.wav", samples, speaker.sampling_rate)

    threads: 0 means as many as the machine has cores.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        weights: Iterable[str | os.PathLike[str]] = (),
        device: str = "",
        threads: int = 0,
    ) -> None:
        self._speaker: Any = _C.Speaker(os.fspath(path), [os.fspath(file) for file in weights], device, threads)

    def __call__(
        self,
        text: str,
        *,
        voice: Voice | Sound | None = None,
        on_audio: Callable[[np.ndarray], None] | None = None,
        cancel: _C.CancelToken | None = None,
        **settings: Any,
    ) -> np.ndarray:
        """Samples [n] in f32 at `sampling_rate`.

        voice: what `voice` returns, or what it takes; None: the model's own. on_audio: called with the samples of each
        chunk as it is spoken. settings, as in generate() of transformers' Pocket TTS: temperature (variance of the noise; 0:
        none), seed, eos_threshold, min_frames_before_eos, max_frames (of a chunk), max_tokens (of a chunk: 50; longer texts
        are cut behind sentences)."""
        show = None if on_audio is None else lambda found: on_audio(np.frombuffer(found, np.float32))
        if voice is not None and not isinstance(voice, Voice):
            voice = self.voice(voice)
        who = None
        if voice is not None:
            latents = np.ascontiguousarray(voice.latents, np.float32)
            who = (latents.tobytes(), len(latents))
        found = self._speaker.speak(codecs.encode(text, "utf-8"), who, settings, show, cancel)
        return np.frombuffer(found, np.float32)

    def voice(self, sound: Sound) -> Voice:
        """Of a file of WAV, FLAC or MP3, or (samples [n] from -1 to 1, samples per second): some seconds of somebody who
        speaks."""
        latents, frames = self._speaker.voice(*samples_of(sound))
        return Voice(np.frombuffer(latents, np.float32).reshape(frames, -1))

    def chunks(self, text: str, max_tokens: int = 50) -> list[str]:
        """What a text is spoken in."""
        return self._speaker.chunks(codecs.encode(text, "utf-8"), max_tokens)

    @property
    def sampling_rate(self) -> int:
        """In samples per second."""
        return self._speaker.sampling_rate

    @property
    def plans(self) -> int:
        """How many plans were made ready to run."""
        return self._speaker.plans
