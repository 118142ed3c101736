"""Sound for models that take it: samples of one channel at a rate."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import numpy as np

from graft import _C
from graft.errors import InvalidArgument

__all__ = ["Sound", "load_audio", "save_audio"]

#: A file of WAV, FLAC or MP3, or (samples [n] from -1 to 1, samples per second).
Sound: TypeAlias = "str | os.PathLike[str] | tuple[Any, int]"


def load_audio(path: str | os.PathLike[str]) -> tuple[np.ndarray, int]:
    """The samples [n] in f32, from -1 to 1, and the sampling rate of a WAV, FLAC or MP3 file; of several channels the
    mean. Raises `graft.NotFound`, and `graft.InvalidArgument` for another or a damaged file."""
    samples, rate = _C.load_audio(os.fspath(path))
    return np.frombuffer(samples, dtype=np.float32), rate


def save_audio(path: str | os.PathLike[str], samples: Any, sampling_rate: int) -> None:
    """Writes samples [n], cut to -1 to 1, as a WAV file of 16 bits. A file there is replaced."""
    _C.save_audio(os.fspath(path), as_samples(samples), sampling_rate)


def samples_of(sound: Sound) -> tuple[bytes, int]:
    """The samples in f32, and their rate."""
    if isinstance(sound, (str, os.PathLike)):
        return _C.load_audio(os.fspath(sound))
    samples, rate = sound
    return as_samples(samples), rate


def as_samples(samples: Any) -> bytes:
    array = np.ascontiguousarray(np.asarray(samples), dtype=np.float32)
    if array.ndim != 1:
        raise InvalidArgument(f"expected samples [n] of one channel, found the shape {array.shape}")
    return array.tobytes()
