"""Which cases of a long list every run has; the others are slow, and left to continuous integration."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(first: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters for parametrize: `values`, marked slow unless among `first`."""
    return [value if value in first else pytest.param(value, marks=pytest.mark.slow) for value in values]
