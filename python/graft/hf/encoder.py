"""Models without a cache: encoders, vision models, and what wraps them."""

from __future__ import annotations

from typing import Any


def is_wrapped(model: Any) -> bool:
    return False


def is_encoder(model: Any) -> bool:
    return False
