"""What an attention mask says of padding. The engine makes its own masks from positions; nothing else in a given one may
get lost, so one that says more than padding, causality, window and chunk is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graft.errors import InvalidArgument, Unsupported


class OtherMask(Unsupported):
    """A mask that says more than padding, causality, window and chunk."""


@dataclass(frozen=True)
class Window:
    """How far the tokens of a kind of layer see back: `length` tokens, within chunks of `chunk`. 0: no limit."""

    length: int = 0
    chunk: int = 0


def windows(config: Any) -> dict[str, Window]:
    """By kind of layer, as transformers calls them in its dicts of masks."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window, chunk = getattr(config, "sliding_window", None) or 0, getattr(config, "attention_chunk_size", None) or 0
    if not kinds:
        kinds = {"sliding_attention" if window else "chunked_attention" if chunk else "full_attention"}
    known = {"sliding_attention": Window(length=window), "chunked_attention": Window(chunk=chunk)}
    return {kind: known.get(kind, Window()) for kind in kinds}


def real_columns(
    mask: Any,
    rows: int,
    past: int,
    tokens: int,
    held: torch.Tensor | None,
    kinds: Mapping[str, Window],
    *,
    new: bool = False,
) -> torch.Tensor | None:
    """bool [rows, past + tokens]: which columns are tokens and not padding; None: all.

    mask: as generate() hands it over: None, [rows, columns], [rows, 1, tokens, columns] or such by kind of layer.
    held: the same of the past; None: all are tokens. kinds: of the model's layers. new: nothing is known of the past
    but what the mask says.
    """
    if isinstance(mask, Mapping):
        given = [(kind, kinds[kind], entry) for kind, entry in mask.items() if kind in kinds and entry is not None]
        if unknown := set(mask) - set(kinds):
            # generate() may make masks that none of the model's layers uses.
            if not given and any(mask[kind] is not None for kind in unknown):
                raise InvalidArgument(f"attention_mask: expected masks of {sorted(kinds)}, found {sorted(mask)}")
        real = _of_each(given, rows, past, tokens, held)
    elif mask is None:
        real = None
    elif not isinstance(mask, torch.Tensor) or mask.dim() not in (2, 4):
        found = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise InvalidArgument(f"attention_mask: expected 2 or 4 dimensions, found {found}")
    elif mask.dim() == 4:
        real = _of_each([(kind, window, mask) for kind, window in kinds.items()], rows, past, tokens, held)
    else:
        real = _of_columns(mask, rows, past, tokens, held, new)
    if real is None and held is not None:
        real = torch.cat([held, torch.ones(rows, tokens, dtype=torch.bool)], 1)
    return real


def _of_columns(
    mask: torch.Tensor, rows: int, past: int, tokens: int, held: torch.Tensor | None, new: bool
) -> torch.Tensor | None:
    columns = past + tokens
    if mask.shape[0] != rows or mask.shape[1] < columns:
        raise InvalidArgument(
            f"attention_mask: expected [{rows}, {columns}] for {past} tokens of the cache and {tokens} new ones, "
            f"found {list(mask.shape)}"
        )
    real = mask[:, :columns] != 0
    if not new:
        _check_past(real[:, :past], held)
    return None if bool(real.all()) else real


def _check_past(real: torch.Tensor, held: torch.Tensor | None) -> None:
    if real.shape[1] == 0:
        return
    if not bool(real.all() if held is None else torch.equal(real, held)):
        raise Unsupported(
            "attention_mask: expected the same for tokens of the cache as when they were computed; to hide or show "
            "some of them, compute them again with a new cache"
        )


def _of_each(
    given: list[tuple[str, Window, Any]], rows: int, past: int, tokens: int, held: torch.Tensor | None
) -> torch.Tensor | None:
    """Of masks [rows, 1, tokens, columns], which must agree."""
    if not given:
        return None
    seen = [_visible(kind, entry, rows, past, tokens) for kind, _, entry in given]
    before = torch.ones(rows, past, dtype=torch.bool) if held is None else held
    new = [entry[:, :, past:].any(1) for entry in seen]
    real = torch.cat([before, new[0]], 1)
    for (kind, window, entry), visible in zip(given, seen):
        first = _first_column(entry, past, tokens)
        expected = visible_columns(real, window, past)[:, :, first:]
        chosen = real[:, past:]  # rows of padding carry no information
        if not torch.equal(expected[chosen], visible[:, :, first:][chosen]):
            raise OtherMask(
                f"attention_mask: expected a mask of {kind} that is causal, with padding alone besides, found another; "
                "models compiled with graft see what follows from positions"
            )
    return None if bool(real.all()) else real


def _first_column(entry: torch.Tensor, past: int, tokens: int) -> int:
    """Masks of layers that keep only a window begin later than the first token."""
    return max(past + tokens - entry.shape[3], 0)


def _visible(kind: str, entry: Any, rows: int, past: int, tokens: int) -> torch.Tensor:
    """bool [rows, tokens, past + tokens]."""
    if not isinstance(entry, torch.Tensor) or entry.dim() != 4 or entry.shape[2] != tokens or entry.shape[3] < tokens:
        found = list(entry.shape) if isinstance(entry, torch.Tensor) else type(entry).__name__
        raise InvalidArgument(f"attention_mask of {kind}: expected [{rows}, 1, {tokens}, columns], found {found}")
    seen = entry if entry.dtype == torch.bool else entry > torch.finfo(entry.dtype).min / 2
    if entry.shape[1] > 1 and not torch.equal(seen, seen[:, :1].expand_as(seen)):
        raise OtherMask(
            f"attention_mask of {kind}: expected one mask for all heads, found {entry.shape[1]} different"
        )
    seen = seen[:, 0].expand(rows, -1, -1)
    first = _first_column(entry, past, tokens)
    return torch.nn.functional.pad(seen[:, :, : past + tokens - first], (first, 0))


def visible_columns(real: torch.Tensor, window: Window, past: int) -> torch.Tensor:
    """bool [rows, tokens, columns]: what each token from column `past` on sees. Windows and chunks count tokens, padding
    left out."""
    positions = real.cumsum(1) - 1
    query, key = positions[:, past:, None], positions[:, None, :]
    visible = (key <= query) & real[:, None, :]
    if window.length:
        visible &= key > query - window.length
    if window.chunk:
        visible &= key // window.chunk == query // window.chunk
    return visible


def ends_in_padding(mask: Any) -> bool:
    """Whether a mask [rows, columns] has a row whose last column is padding, with tokens before it."""
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[1] == 0:
        return False
    real = mask != 0
    return bool((real[:, :-1].any(1) & ~real[:, -1]).any())


def padding_after_tokens(real: torch.Tensor) -> torch.Tensor:
    """bool [rows, columns]: padding with a token before it in its row. PyTorch computes such columns (they see the
    tokens before them), graft does not. Columns before the first token see nothing, and mean nothing."""
    return ~real & (real.cumsum(1) > 0)


def check_gaps(real: torch.Tensor | None, past: int, kinds: Mapping[str, Window]) -> None:
    """Padding between tokens: windows and chunks of transformers count its columns, graft's do not. Raises Unsupported
    where a token from column `past` on would see other keys by that."""
    limits = [window for window in kinds.values() if window.length or window.chunk]
    if real is None or not limits:
        return
    gaps = padding_after_tokens(real)
    gaps &= real.flip(1).cumsum(1).flip(1) > 0
    rows = gaps.any(1) & real[:, past:].any(1)
    if not bool(rows.any()):
        return
    real = real[rows]
    columns = torch.arange(real.shape[1])
    query, key = columns[past:, None], columns[None, :]
    first = real.long().argmax(1)[:, None, None]
    for window in limits:
        seen = (key <= query) & real[:, None, :]
        if window.length:
            seen = seen & (key > query - window.length)
        if window.chunk:
            seen = seen & ((key - first) // window.chunk == (query - first) // window.chunk)
        asked = real[:, past:]
        if not torch.equal(seen[asked], visible_columns(real, window, past)[asked]):
            what = f"a window of {window.length}" if window.length else f"chunks of {window.chunk}"
            raise OtherMask(
                f"attention_mask: expected padding before the tokens alone in a model whose layers see {what}, found some "
                "between them: it takes up part of what transformers lets them see"
            )


__all__ = ["OtherMask", "Window", "check_gaps", "ends_in_padding", "padding_after_tokens", "real_columns", "visible_columns", "windows"]
