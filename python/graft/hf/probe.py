"""Proof that a compiled model computes what the model computes: both run on a few tokens, and must agree.

How a model numbers its tokens and what its masks and caches mean is not stated anywhere; the program rests on what nearly
all models do. So when a program is new, prompts without padding, with padding on the left and on the right, and cached
steps after them go through eager PyTorch (`graft.hf.eager`) and through the engine: 5 calls of at most 2 x 6 tokens, of the
engine up to 9. The verdict is kept beside the program on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graft.errors import Unsupported

TOKENS = 6
_CLOSE = 2e-3  # of the largest logit, where both compute in f32
_LOOSE = 0.15  # where weights or keys are stored in few bits, which the probe is not about
POSITIONS = ("columns", "mask", "ids")


def positions_by(
    rule: str, ids: torch.Tensor, real: torch.Tensor | None, past: int, padding_id: int | None
) -> torch.Tensor:
    """position_ids [rows, tokens] as a model makes them when it is given none. real: bool [rows, past + tokens].

    columns: all columns are counted. mask: those that are no padding. ids: as Roberta does, tokens other than padding_id,
    whose position that is; those of the cache are counted by column."""
    rows, tokens = ids.shape
    if rule == "mask" and real is not None:
        return (real.cumsum(1) - 1).clamp(min=0)[:, -tokens:].contiguous()
    if rule == "ids" and padding_id is not None:
        counted = (ids != padding_id).long()
        return (counted.cumsum(1) + past) * counted + padding_id
    return torch.arange(past, past + tokens).expand(rows, -1).contiguous()


def verify(
    name: str,
    eager: Callable[[Sequence[Mapping[str, Any]]], list[Any]],
    compiled: Callable[..., Any],
    *,
    takes_positions: bool,
    vocab_size: int,
    padding_id: int | None,
    loose: bool,
) -> dict[str, Any]:
    """Raises Unsupported, which names the model, the probe and the difference. eager: the outputs of some calls of the
    model, by their arguments. compiled: called as the model, with `rule`, one of POSITIONS for a call without
    position_ids. Returns the rule, the largest difference, and whether the probe would have shown one."""
    probe = _Probe(name, _LOOSE if loose else _CLOSE)
    generator = torch.Generator().manual_seed(0)
    high = max(min(vocab_size, 1 << 16), 4)
    ids = torch.randint(3 if high > 8 else 0, high, (3, TOKENS + 1), generator=generator)
    mask = torch.ones(3, TOKENS + 1, dtype=torch.long)
    mask[1, :2] = 0
    mask[2, 4:TOKENS] = 0
    if padding_id is not None and 0 <= padding_id < vocab_size:
        ids[1, 0] = ids[2, TOKENS - 1] = padding_id  # the other columns of padding hold tokens
        ids[0, 2] = padding_id
    prompt, step = dict(input_ids=ids[:1, :TOKENS]), dict(input_ids=ids[:1, TOKENS:])
    padded = dict(input_ids=ids[1:, :TOKENS], attention_mask=mask[1:, :TOKENS])
    left = dict(input_ids=ids[:2, :TOKENS], attention_mask=mask[:2, :TOKENS])
    left_step = dict(input_ids=ids[:2, TOKENS:], attention_mask=mask[:2])
    if takes_positions:
        positions = (mask[:2].cumsum(1) - 1).clamp(min=0)
        left["position_ids"], left_step["position_ids"] = positions[:, :TOKENS], positions[:, TOKENS:]
    cached = dict(use_cache=True)
    of_prompt, of_padded, of_left = eager([prompt | cached, padded, left | cached])
    found, begun = {}, {}
    for rule in POSITIONS:
        begun[rule] = compiled(**prompt, **cached, rule=rule)
        found[rule] = max(
            probe.difference(of_prompt, begun[rule]),
            probe.difference(of_padded, compiled(**padded, rule=rule), padded["attention_mask"]),
        )
        if found[rule] <= probe.close:
            break
    best = min(found, key=found.get)
    known = found[best] <= probe.close  # otherwise positions must be given
    if not known and not takes_positions:
        raise probe.failure("a prompt with padding, without position_ids", found[best])
    left_step |= cached | dict(past_key_values=of_left.past_key_values)
    step |= cached | dict(past_key_values=of_prompt.past_key_values)
    *of_step, of_left_step = eager([step, left_step] if known else [left_step])
    worst = []
    if known:
        step["past_key_values"] = begun[best].past_key_values
        worst.append(found[best])
        worst.append(probe.checked("a cached step", *of_step, compiled(**step, rule=best)))
    what, rule = "a prompt padded on the left and a cached step", best if known else "columns"
    begun_left = compiled(**left, **cached, rule=rule)
    worst.append(probe.checked(what, of_left, begun_left, left["attention_mask"]))
    left_step["past_key_values"] = begun_left.past_key_values
    worst.append(probe.checked(what, of_left_step, compiled(**left_step, rule=rule)))
    return {"positions": best if known else None, "difference": max(worst), "telling": _telling(of_prompt)}


def _telling(output: Any) -> bool:
    """Whether a token's logits depend on where it stands."""
    logits = output.logits.float()
    return bool(logits.abs().max() > 0) and bool((logits[:, 1:] - logits[:, :-1]).abs().max() > 0.01 * logits.abs().max())


class _Probe:
    def __init__(self, name: str, close: float) -> None:
        self.name, self.close = name, close

    def checked(self, what: str, expected: Any, found: Any, mask: torch.Tensor | None = None) -> float:
        """Their difference, which is close."""
        difference = self.difference(expected, found, mask)
        if difference > self.close:
            raise self.failure(what, difference)
        return difference

    def difference(self, expected: Any, found: Any, mask: torch.Tensor | None = None) -> float:
        """Relative to the largest logit."""
        a, b = expected.logits.float(), found.logits.float()
        if mask is not None:
            a, b = a[mask == 1], b[mask == 1]
        scale = float(a.abs().max())
        if not bool(a.isfinite().all()):
            return 0.0 if torch.equal(a.isfinite(), b.isfinite()) else float("inf")
        difference = float((a - b).abs().max()) / (scale or 1.0)
        return difference if difference == difference else float("inf")

    def failure(self, what: str, difference: float) -> Unsupported:
        return Unsupported(
            f"{self.name}: expected the logits of eager PyTorch within {self.close} of the largest, found a difference of "
            f"{difference:.2g} in {what}: the model numbers its tokens, masks them or keeps its cache in a way that graft "
            "does not follow"
        )


__all__ = ["POSITIONS", "TOKENS", "positions_by", "verify"]
