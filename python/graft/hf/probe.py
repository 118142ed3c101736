"""Proof that a compiled model computes what the model computes: both run on a few tokens, and must agree.

How a model numbers its tokens and what its masks and caches mean is not stated anywhere; the program rests on what nearly
all models do. So when a program is new, prompts without padding, with padding on the left and on the right, and cached
steps after them go through eager PyTorch and through the engine: 5 calls of at most 3 x 6 tokens, of the engine up to 8. The
verdict is kept beside the program on disk.

Eager PyTorch computes in f32 here, as the engine does: a module's weights are converted while it runs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from graft.errors import ExportError, Unsupported

TOKENS = 6
_CLOSE = 2e-3  # of the largest logit, where both compute in f32
_LOOSE = 0.15  # where weights or keys are stored in few bits, which the probe is not about
_AT_ONCE = 1 << 21  # elements of a linear layer's weight that are converted together
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
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    *,
    takes_positions: bool,
    vocab_size: int,
    padding_id: int | None,
    loose: bool,
) -> dict[str, Any]:
    """Raises Unsupported, which names the model, the probe and the difference. eager: called as the model. compiled: the
    same with `rule`, one of POSITIONS for a call without position_ids. Returns the rule, the largest difference, and
    whether the probe would have shown one."""
    probe = _Probe(name, eager, compiled, _LOOSE if loose else _CLOSE)
    generator = torch.Generator().manual_seed(0)
    high = max(min(vocab_size, 1 << 16), 4)
    ids = torch.randint(3 if high > 8 else 0, high, (3, TOKENS + 1), generator=generator)
    mask = torch.ones(3, TOKENS + 1, dtype=torch.long)
    mask[1, :2] = 0
    mask[2, 4:TOKENS] = 0
    if padding_id is not None and 0 <= padding_id < vocab_size:
        ids[1, 0] = ids[2, TOKENS - 1] = padding_id  # the other columns of padding hold tokens
        ids[0, 2] = padding_id
    prompt, padded = dict(input_ids=ids[:2, :TOKENS]), dict(input_ids=ids[:, :TOKENS], attention_mask=mask[:, :TOKENS])
    step = dict(input_ids=ids[:2, TOKENS:])
    first = [eager(**prompt, use_cache=True), eager(**padded)]
    rules = POSITIONS
    found, begun = {}, {}
    for rule in rules:
        begun[rule] = compiled(**prompt, use_cache=True, rule=rule)
        found[rule] = max(
            probe.difference(first[0], begun[rule]),
            probe.difference(first[1], compiled(**padded, rule=rule), padded["attention_mask"]),
        )
        if found[rule] <= probe.close:
            break
    best = min(found, key=found.get)
    rule: str | None = best
    if found[best] > probe.close:
        if not takes_positions:
            raise probe.failure("a prompt with padding, without position_ids", found[best])
        rule = None  # positions must be given
    worst = [found[best]] if rule else []
    if rule is not None:
        worst.append(probe.steps("a cached step", step, rule, (first[0], begun[rule])))
    left = dict(input_ids=ids[:2, :TOKENS], attention_mask=mask[:2, :TOKENS])
    next_left = dict(step, attention_mask=mask[:2])
    if takes_positions:
        positions = (mask[:2].cumsum(1) - 1).clamp(min=0)
        left["position_ids"], next_left["position_ids"] = positions[:, :TOKENS], positions[:, TOKENS:]
    rule_of_left = rule or "columns"
    prompts = eager(**left, use_cache=True), compiled(**left, use_cache=True, rule=rule_of_left)
    what = "a prompt padded on the left and a cached step"
    worst.append(probe.steps(what, next_left, rule_of_left, prompts, left["attention_mask"]))
    return {"positions": rule, "difference": max(worst), "telling": _telling(first[0])}


def _telling(output: Any) -> bool:
    """Whether a token's logits depend on where it stands."""
    logits = output.logits.float()
    return bool(logits.abs().max() > 0) and bool((logits[:, 1:] - logits[:, :-1]).abs().max() > 0.01 * logits.abs().max())


class _Probe:
    def __init__(self, name: str, eager: Any, compiled: Any, close: float) -> None:
        self.name, self.eager, self.compiled, self.close = name, eager, compiled, close

    def steps(
        self, what: str, step: Mapping[str, Any], rule: str, prompts: tuple[Any, Any], mask: torch.Tensor | None = None
    ) -> float:
        """prompts: what eager PyTorch and the engine gave for one, with caches. mask: the prompt's."""
        worst = self.difference(*prompts, mask)
        caches = [output.past_key_values for output in prompts]
        outputs = [
            self.eager(**step, past_key_values=caches[0], use_cache=True),
            self.compiled(**step, past_key_values=caches[1], use_cache=True, rule=rule),
        ]
        worst = max(worst, self.difference(*outputs))
        if worst > self.close:
            raise self.failure(what, worst)
        return worst

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


@contextlib.contextmanager
def in_f32(model: torch.nn.Module, values: Callable[[str, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within it, each module's parameters and buffers are f32 while it runs. values: of a weight, by its name."""
    handles, linear = [], []
    widest = max((m.in_features for m in model.modules() if isinstance(m, torch.nn.Linear)), default=0)
    room = torch.empty(max(_AT_ONCE, widest), dtype=torch.float32)
    swapped: dict[torch.nn.Module, list[dict[str, Any]]] = {}

    def put(path: str, module: torch.nn.Module) -> None:
        held = swapped.setdefault(module, [])
        held.append({**module._parameters})
        held.append({**module._buffers})
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point() and (tensor.is_meta or tensor.dtype != torch.float32):
                    made = values(f"{path}.{name}" if path else name, tensor).detach()
                    made = made if _looks_up(module) else made.to(torch.float32)
                    parameter = tensors is module._parameters
                    tensors[name] = torch.nn.Parameter(made, requires_grad=False) if parameter else made

    def back(module: torch.nn.Module) -> None:
        if held := swapped.get(module):
            module._buffers.update(held.pop())
            module._parameters.update(held.pop())

    def needs(module: torch.nn.Module) -> bool:
        tensors = (*module._parameters.values(), *module._buffers.values())
        return any(t is not None and t.is_floating_point() and (t.is_meta or t.dtype != torch.float32) for t in tensors)

    try:
        for path, module in model.named_modules():
            if not needs(module):
                continue
            if type(module) is torch.nn.Linear and "forward" not in vars(module):
                module.forward = functools.partial(_linear, module, path, values, room)
                linear.append(module)
            else:
                handles.append(module.register_forward_pre_hook(lambda m, _, path=path: put(path, m), prepend=True))
                handles.append(module.register_forward_hook(lambda m, *_: back(m), always_call=True))
                if _looks_up(module):
                    handles.append(module.register_forward_hook(lambda *called: called[-1].to(torch.float32)))
        yield
    finally:
        for module in linear:
            del module.forward
        for handle in handles:
            handle.remove()
        for module in list(swapped):
            while swapped[module]:
                back(module)


def _linear(
    module: torch.nn.Linear,
    path: str,
    values: Callable[[str, torch.Tensor], torch.Tensor],
    room: torch.Tensor,
    inputs: torch.Tensor,
) -> torch.Tensor:
    """In f32, some rows of the weight at a time: converted ones stay in the caches. room: for them; memory from the system
    would cost as much as the conversion."""
    weight = values(f"{path}.weight", module.weight).detach()
    rows, columns = weight.shape
    flat, found = inputs.reshape(-1, columns), inputs.new_empty(*inputs.shape[:-1], rows)
    flat_found = found.view(-1, rows)
    step = room.numel() // columns if columns else rows
    for first in range(0, rows, step or 1):
        block = weight[first : first + step]
        converted = room[: block.numel()].view(block.shape).copy_(block)
        torch.mm(flat, converted.t(), out=flat_found[:, first : first + step])
    if module.bias is not None:
        found += values(f"{path}.bias", module.bias).detach().to(torch.float32)
    return found


def _looks_up(module: torch.nn.Module) -> bool:
    """Whether it gives back rows of its weight: those are converted, not the table."""
    return type(module) is torch.nn.Embedding and module.max_norm is None


def run_eagerly(
    model: torch.nn.Module, kind: type, values: Callable[[str, torch.Tensor], torch.Tensor]
) -> Callable[..., Any]:
    """Calls of the model as its own class computes them."""

    def call(**arguments: Any) -> Any:
        compiled = type(model)
        model.__class__ = kind
        try:
            with torch.no_grad(), in_f32(model, values):
                return model(**arguments)
        except Exception as e:  # whatever the model's code raises
            raise ExportError(
                f"{kind.__name__}: eager PyTorch cannot run it on {list(arguments['input_ids'].shape)} tokens: "
                f"{type(e).__name__}: {e}"
            ) from e
        finally:
            model.__class__ = compiled

    return call


__all__ = ["POSITIONS", "TOKENS", "in_f32", "positions_by", "run_eagerly", "verify"]
