"""A compiled causal language model: what its class does instead of transformers' own."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from graft.errors import InvalidArgument, Unsupported
from graft.hf.cache import adopt, state_of
from graft.hf.masks import real_columns, windows
from graft.hf.state import State

# Arguments of models that do not change the results here.
_HARMLESS = {"cache_position", "num_items_in_batch", "is_first_iteration"}
# Arguments of continuous batching: packed sequences and paged caches.
_PACKED = {"cu_seq_lens_q", "cu_seq_lens_k", "block_table", "read_index", "write_index"}
_PACKED_ADVICE = (
    "continuous batching (generate_batch) keeps its cache in pages of its own; use generate() with a left-padded batch"
)


def check(model: Any, mixed: type | None = None) -> type:
    """The class of a model that can be compiled. Raises Unsupported or InvalidArgument for others. mixed: what is mixed
    into the class of one that is compiled already."""
    _check_adapters(model)
    if not isinstance(model, PreTrainedModel):
        raise InvalidArgument(f"graft.compile: expected a model of transformers, found {type(model).__name__}")
    if model.training:
        raise InvalidArgument(
            "graft.compile: expected a model in evaluation mode (model.eval()), found training mode: graft computes no "
            "gradients"
        )
    if "forward" in vars(model):
        raise Unsupported(
            "graft.compile: expected a model whose forward is its class's, found one replaced on the object (hooks of "
            "accelerate, or torch.compile); load it without device_map"
        )
    kind = type(model)
    if issubclass(kind, mixed or Compiled):
        if any(p.is_meta for p in model.parameters()):
            raise InvalidArgument("graft.compile: this model is compiled and its weights were released; load it again")
        kind = kind._uncompiled
    return kind


def _check_adapters(model: Any) -> None:
    module = type(model).__module__
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    if module.split(".")[0] == "peft" or any(type(part).__module__.split(".")[0] == "peft" for part in parts):
        raise Unsupported(
            "graft.compile: expected a model without separate adapters, found unmerged ones of peft; call "
            "merge_and_unload() and compile what it returns"
        )


def hint(model: Any) -> str:
    """What to use instead of a model that could not be exported."""
    if not getattr(model, "_supports_attention_backend", False):
        return (
            "\nIts attention cannot be replaced, so its cache cannot be graft's. Without a cache it can be exported with "
            "torch.export and graft.export."
        )
    return ""


def take_over(model: PreTrainedModel, kind: type, release_weights: bool, dtype: torch.dtype | None = None) -> None:
    dtype = dtype or model.dtype
    model.__class__ = _class_of(kind)
    model._graft_dtype = dtype
    model._graft_windows = windows(model.config)
    if release_weights:
        with torch.no_grad():
            for module in model.modules():
                for name, parameter in list(module._parameters.items()):
                    if parameter is not None:
                        module._parameters[name] = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
        model.tie_weights()


_classes: dict[type, type] = {}


def _class_of(kind: type) -> type:
    made = _classes.get(kind)
    if made is None:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_uncompiled": kind}
        made = _classes[kind] = type(kind.__name__, (Compiled, kind), names)
    return made


def refuse_outputs(config: Any, wanted: dict[str, Any], advice: str) -> None:
    for name, value in wanted.items():
        if value or (value is None and getattr(config, name, False)):
            raise Unsupported(f"{name}: a compiled model does not give what lies between its layers; {advice}")


class Compiled:
    """Mixed into the class of a model while it is compiled."""

    _uncompiled: type

    # generate() inspects the parameters' names.
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        config = self.config
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        refuse_outputs(config, wanted, "use the model before graft.compile")
        if output_router_logits := kwargs.pop("output_router_logits", None):
            refuse_outputs(config, {"output_router_logits": output_router_logits}, "use the model before graft.compile")
        self._check_call(input_ids, inputs_embeds, kwargs)
        loss_arguments = {name: kwargs[name] for name in ("num_items_in_batch",) if kwargs.get(name) is not None}
        ids = input_ids if input_ids.dtype == torch.int64 else input_ids.long()
        if use_cache is None:
            use_cache = bool(getattr(config, "use_cache", True))
        cache = past_key_values
        if cache is None and use_cache:
            cache = DynamicCache(config=config.get_text_config(decoder=True))
        with torch.no_grad():
            logits = self._logits(ids, attention_mask, position_ids, cache, logits_to_keep)
        loss = None
        if labels is not None:
            size = config.get_text_config().vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **loss_arguments)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache if use_cache else None)
        return output if return_dict is not False else output.to_tuple()

    def _check_call(self, input_ids: Any, inputs_embeds: Any, kwargs: dict[str, Any]) -> None:
        if self.training:
            raise Unsupported("training mode: a compiled model computes no gradients; call model.eval()")
        if packed := _PACKED & set(kwargs):
            raise Unsupported(f"{sorted(packed)[0]}: {_PACKED_ADVICE}")
        for name, value in kwargs.items():
            if value is not None and name not in _HARMLESS:
                raise InvalidArgument(f"forward of a compiled {type(self).__name__} takes no argument '{name}'")
        if inputs_embeds is not None or input_ids is None:
            raise Unsupported("inputs_embeds: a compiled model begins at the embedding of tokens; give input_ids")
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise InvalidArgument(f"input_ids: expected [batch, tokens], found {list(input_ids.shape)}")
        if input_ids.device.type != "cpu":
            raise InvalidArgument(f"input_ids: expected a tensor on the CPU, found one on {input_ids.device}")

    def _logits(self, ids: torch.Tensor, mask: Any, position_ids: Any, cache: Any, to_keep: Any) -> torch.Tensor:
        engine = self.graft
        rows, tokens = ids.shape
        state = engine.new_state((), self._graft_dtype) if cache is None else state_of(cache, engine)
        if state is None:
            past = int(cache.get_seq_length()) if cache.layers else 0
            real = real_columns(mask, rows, past, tokens, None, self._graft_windows, new=True)
            state = adopt(cache, engine, self._graft_dtype, None if real is None else real[:, :past])
        real = real_columns(mask, rows, state.columns, tokens, state.real, self._graft_windows)
        positions = self._positions(position_ids, ids, state, real)
        try:
            return state.compute(ids, positions, real, _kept(to_keep, tokens))
        finally:
            if cache is None:
                state.close()

    def _positions(
        self, position_ids: torch.Tensor | None, ids: torch.Tensor, state: State, real: torch.Tensor | None
    ) -> torch.Tensor:
        rows, tokens = ids.shape
        if position_ids is None:
            if real is not None and self.config.model_type in _POSITIONS_FROM_MASK:
                return (real.cumsum(1) - 1).clamp(min=0)[:, -tokens:].contiguous()
            position_ids = torch.arange(state.columns, state.columns + tokens)[None]
        if position_ids.dim() != 2 or position_ids.shape[1] != tokens or position_ids.shape[0] not in (1, rows):
            raise InvalidArgument(f"position_ids: expected [{rows}, {tokens}], found {list(position_ids.shape)}")
        return position_ids.to(torch.int64).expand(rows, -1).contiguous()

    @staticmethod
    def create_masks_for_generate(*_: Any, attention_mask: Any = None, **__: Any) -> Any:
        """Masks stay as generate() has them: padding by column."""
        return attention_mask

    def _reorder_cache(self, past_key_values: Any, beam_idx: torch.Tensor) -> Any:
        past_key_values.reorder_cache(beam_idx)
        return past_key_values

    def generate_batch(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(f"generate_batch: {_PACKED_ADVICE}")

    def init_continuous_batching(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(f"init_continuous_batching: {_PACKED_ADVICE}")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # also when the parameters are meta tensors

    @property
    def dtype(self) -> torch.dtype:
        return self._graft_dtype


# Models that derive positions from the mask when none are given.
_POSITIONS_FROM_MASK = {"opt"}


def _kept(to_keep: int | torch.Tensor, tokens: int) -> torch.Tensor:
    if isinstance(to_keep, torch.Tensor):
        return torch.arange(tokens)[to_keep]
    return torch.arange(tokens)[slice(-to_keep, None)]


__all__ = ["Compiled", "check", "hint", "refuse_outputs", "take_over"]
