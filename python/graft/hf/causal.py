"""A compiled causal language model: what its class does instead of transformers' own."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from graft.errors import InvalidArgument, Unsupported
from graft.hf import adapters, general_calls
from graft.hf.cache import adopt, state_of
from graft.hf.guard import Guard, Outdated, Trusted
from graft.hf.masks import OtherMask, check_gaps, ends_in_padding, padding_after_tokens, real_columns, windows
from graft.hf.probe import positions_by
from graft.hf.state import State
from graft.llm.checkpoint import named_tensors

# Arguments of models that do not change the results here.
_HARMLESS = {"cache_position", "num_items_in_batch", "is_first_iteration", "tokenizer", "assistant_tokenizer"}
# Arguments that are pictures or sound.
MEDIA = frozenset(("pixel_values", "pixel_values_videos", "input_features", "input_values"))
# What the fast route computes or refuses by itself, and what is looked at apart from names.
_FAST = {
    "input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "labels", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "logits_to_keep", *_HARMLESS,
}  # fmt: skip
# Arguments of continuous batching: packed sequences and paged caches.
_PACKED = {"cu_seq_lens_q", "cu_seq_lens_k", "block_table", "read_index", "write_index"}
_PACKED_ADVICE = (
    "continuous batching (generate_batch) keeps its cache in pages of its own; use generate() with a left-padded batch"
)


# Whether generate() runs for another model, which checks what it proposes: the logits need not be exact.
_proposes: contextvars.ContextVar[bool] = contextvars.ContextVar("graft_proposes", default=False)
_INTEGERS = (torch.int64, torch.int32)
_OTHER_WEIGHTS = "the cache was filled with other weights; begin a new one"


def check(model: Any) -> type:
    """The class of a model that can be compiled. Raises Unsupported or InvalidArgument for others."""
    adapters.refuse_unmerged(model)
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
    if double := next((n for n, t in model.named_parameters() if t.dtype == torch.float64), None):
        raise Unsupported(
            f"graft.compile: expected weights of at most 32 bits, found '{double}' of float64: graft computes in float32; "
            "use model.float()"
        )
    kind = type(model)
    if hasattr(kind, "_uncompiled"):
        if any(p.is_meta for p in model.parameters()):
            raise InvalidArgument("graft.compile: this model is compiled and its weights were released; load it again")
        kind = kind._uncompiled
    return kind


def take_over(model: PreTrainedModel, kind: type, release_weights: bool, dtype: torch.dtype | None = None) -> None:
    """model.graft is its engine already."""
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
    model._graft_guard = Guard(model)


_classes: dict[type, type] = {}


def _class_of(kind: type) -> type:
    made = _classes.get(kind)
    if made is None:
        signature = inspect.signature(kind.forward)
        names = list(signature.parameters)[1:]

        @torch.compiler.disable  # torch.compile of a compiled model calls it as it is
        @functools.wraps(kind.forward)  # generate() looks at the parameters' names
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) > len(names):
                raise TypeError(f"forward takes {len(names)} arguments, {len(args)} were given")
            return self._forward(**dict(zip(names, args)), **kwargs)

        @functools.wraps(kind.prepare_inputs_for_generation)  # and at its parameters
        def prepare_inputs_for_generation(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._check_prompt(kwargs.get("attention_mask"))
            return kind.prepare_inputs_for_generation(self, input_ids, *args, **kwargs)

        made = _classes[kind] = type(
            kind.__name__,
            (Compiled, kind),
            {
                "__module__": kind.__module__,
                "__qualname__": kind.__qualname__,
                "_uncompiled": kind,
                "_named": frozenset(names),
                "forward": forward,
                "prepare_inputs_for_generation": prepare_inputs_for_generation,
            },
        )
    return made


def _compiled_again(kind: type, attributes: dict[str, Any], options: dict[str, Any]) -> Any:
    """A compiled model that was pickled."""
    import graft

    return graft.compile(restored(kind, attributes), **options)


def restored(kind: type, attributes: dict[str, Any]) -> Any:
    """The model that was compiled, as it was."""
    model = kind.__new__(kind)
    model.__dict__.update(attributes)
    return model


def attributes_of(model: Any) -> dict[str, Any]:
    """Those of a compiled model that it had before."""
    left_out = ("graft", "_graft_guard", "_graft_lora", "_graft_windows", "_graft_dtype", "_graft_options", "_compiled_call")
    return {name: value for name, value in vars(model).items() if name not in left_out}


def refuse_outputs(config: Any, wanted: dict[str, Any], advice: str) -> None:
    for name, value in wanted.items():
        if value or (value is None and getattr(config, name, False)):
            raise Unsupported(f"{name}: a compiled model does not give what lies between its layers; {advice}")


class Compiled:
    """Mixed into the class of a model while it is compiled."""

    _uncompiled: type
    _named: frozenset[str]  # arguments of its forward
    _graft_lora: adapters.Lora | None = None  # unmerged adapters of peft

    def _forward(
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
        call = dict(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=return_dict,
            **({"logits_to_keep": logits_to_keep} if "logits_to_keep" in self._named else {}),
            **kwargs,
        )
        call = {name: value for name, value in call.items() if value is not None}
        special = general_calls.is_general(config, call) or self._beyond(kwargs)
        if special and (general := self._general(past_key_values)) is not None:
            return self._by_general(general, call)
        if special and general_calls.is_packed(config, call):
            raise Unsupported(
                "position_ids: expected positions that follow each other, or a mask or cache, found those of several sequences "
                "in a row; only a model compiled without quantize, release_weights and adapters takes them"
            )
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
            if len(cache.layers) < len(self.graft.layers):  # those of the encoder, which the configuration counts
                cache = DynamicCache()
        if "logits_to_keep" not in self._named:
            logits_to_keep = 0
        rule = self.graft.positions
        try:
            with torch.no_grad():
                logits = self._logits(ids, attention_mask, position_ids, cache, logits_to_keep, rule)
        except OtherMask:
            if (general := self._general(past_key_values)) is None:
                raise
            return self._by_general(general, call)
        loss = None
        if labels is not None:
            size = config.get_text_config().vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **loss_arguments)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache if use_cache else None)
        return output if return_dict is not False else output.to_tuple()

    def _general(self, cache: Any) -> Any | None:
        """The model under the general route, with weights as they are now; None where that is not possible."""
        if (view := self.graft.view) is None:
            return None
        self._up_to_date(None if cache is None else state_of(cache, self.graft))
        return view(self)

    def _by_general(self, general: Any, call: dict[str, Any]) -> Any:
        tokens = call["inputs_embeds" if "inputs_embeds" in call else "input_ids"].shape[1]
        mask = general_calls.take_cache(self, call.get("past_key_values"), call.get("attention_mask"), tokens)
        return general(**(call if mask is None else {**call, "attention_mask": mask}))

    def _check_call(self, input_ids: Any, inputs_embeds: Any, kwargs: dict[str, Any]) -> None:
        if self.training:
            raise Unsupported("training mode: a compiled model computes no gradients; call model.eval()")
        if packed := _PACKED & set(kwargs):
            raise Unsupported(f"{sorted(packed)[0]}: {_PACKED_ADVICE}")
        for name, value in kwargs.items():
            if value is None or name in _HARMLESS or self._ignores(name, value):
                continue
            advice = "; graft.compile(model, route='general') does" if name in MEDIA else ""
            raise InvalidArgument(f"forward of a compiled {type(self).__name__} takes no argument '{name}'{advice}")
        if inputs_embeds is not None or input_ids is None:
            raise Unsupported("inputs_embeds: a compiled model begins at the embedding of tokens; give input_ids")
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise InvalidArgument(f"input_ids: expected [batch, tokens], found {list(input_ids.shape)}")
        if input_ids.dtype not in _INTEGERS:
            raise InvalidArgument(f"input_ids: expected int64 or int32, found {input_ids.dtype}")
        if input_ids.device.type != "cpu":
            raise InvalidArgument(f"input_ids: expected a tensor on the CPU, found one on {input_ids.device}")

    def _beyond(self, arguments: dict[str, Any]) -> bool:
        """Whether there are arguments, of forward or generate(), that the model's forward takes and the fast route does
        not (`token_type_ids` of GPT-2)."""
        return any(
            value is not None and name in self._named and name not in _FAST and not self._ignores(name, value)
            for name, value in arguments.items()
        )

    def _ignores(self, name: str, value: Any) -> bool:
        """Whether the argument says nothing. Tokenizers give token_type_ids to models that don't look at them, and zeros
        are what BERT and its like take when there are none; the tokens of GPT-2 and its like have no type by default.
        generate() gives models of images and text the encoded images of a prompt, which may be none."""
        if name == "mm_encoder_outputs":
            return not value
        if name != "token_type_ids":
            return False
        if name not in self._named:
            return True
        zeros = isinstance(value, torch.Tensor) and not bool(value.any())
        return zeros and any(part.endswith("token_type_embeddings") for part, _ in self.named_modules())

    def _up_to_date(self, state: State | None) -> None:
        """Raises for what has changed since graft.compile; loads weights that have other values. state: of the cache that
        the call goes on with; None: it begins one."""
        engine = self.graft
        begins = state is None or state.columns == 0
        if begins and self._graft_lora is not None:
            self._graft_lora.find()
        with self._base():
            changed = self._graft_guard.check(self, thorough=begins)
        if changed is None and not engine.stale:
            if state is not None and state.columns and state.generation != engine.generation:
                raise Unsupported(f"past_key_values: {_OTHER_WEIGHTS}")
            return
        if engine.reload is None:
            raise Unsupported(
                f"weight {changed} was changed after graft.compile, which stored all weights in another way; compile the "
                "model again (graft.compile)"
            )
        if not begins:
            raise Unsupported(f"weight {changed} was changed, and past_key_values: {_OTHER_WEIGHTS}")
        with self._base():
            engine.load_again(named_tensors(self))
            self._graft_guard.take_weights(self)

    def _base(self) -> contextlib.AbstractContextManager[None]:
        """Within it, the model is as it was compiled: without adapters."""
        return contextlib.nullcontext() if self._graft_lora is None else self._graft_lora.hidden()

    def _chosen_adapters(self, rows: int, begins: bool) -> list[Any]:
        """By name, or what is active in the layers of peft. begins: a sequence, whose adapters are looked at again."""
        chosen = self.graft.chosen_adapters(rows)
        if chosen or self._graft_lora is None:
            return chosen
        return self._graft_lora.chosen(self.graft.program, rows, thorough=begins)

    def _logits(
        self, ids: torch.Tensor, mask: Any, position_ids: Any, cache: Any, to_keep: Any, rule: str | None
    ) -> torch.Tensor:
        engine = self.graft
        rows, tokens = ids.shape
        state = None if cache is None else state_of(cache, engine)
        self._up_to_date(state)
        if cache is None:
            state = engine.new_state((), self._graft_dtype)
        if state is None:
            past = int(cache.get_seq_length()) if cache.layers else 0
            real = real_columns(mask, rows, past, tokens, None, self._graft_windows, new=True)
            state = adopt(cache, engine, self._graft_dtype, None if real is None else real[:, :past])
        real = real_columns(mask, rows, state.columns, tokens, state.real, self._graft_windows)
        if not _proposes.get():
            check_gaps(real, state.columns, self._graft_windows)
        positions = self._positions(position_ids, ids, state, real, rule)
        engine.lengths.check(type(self).__name__, positions, engine.runs_of(tokens))
        keep = _kept(to_keep, tokens)
        after = None if real is None else padding_after_tokens(real)[:, -tokens:][:, keep]
        if after is not None and bool(after.any()) and self.graft.view is not None:
            raise OtherMask("attention_mask: padding after tokens, whose logits only the general route computes")
        state.adapters = self._chosen_adapters(rows, begins=state.columns == 0)
        try:
            logits = state.compute(ids, positions, real, keep)
        finally:
            if cache is None:
                state.close()
        if after is not None:
            logits[after] = torch.nan
        return logits

    def _positions(
        self, position_ids: torch.Tensor | None, ids: torch.Tensor, state: State, real: torch.Tensor | None, rule: Any
    ) -> torch.Tensor:
        rows, tokens = ids.shape
        if position_ids is None or "position_ids" not in self._named:
            if rule is None:
                raise InvalidArgument(
                    f"position_ids: expected [{rows}, {tokens}], found none: how {type(self).__name__} makes them of its "
                    "other arguments is not known to graft"
                )
            return positions_by(rule, ids, real, state.columns, self.config.get_text_config().pad_token_id)
        if position_ids.dim() != 2 or position_ids.shape[1] != tokens or position_ids.shape[0] not in (1, rows):
            raise InvalidArgument(f"position_ids: expected [{rows}, {tokens}], found {list(position_ids.shape)}")
        if position_ids.dtype not in _INTEGERS:
            raise InvalidArgument(f"position_ids: expected int64 or int32, found {position_ids.dtype}")
        return position_ids.to(torch.int64).expand(rows, -1).contiguous()

    # --- generate() ---

    def generate(self, inputs: Any = None, generation_config: Any = None, **kwargs: Any) -> Any:
        early = kwargs.get("assistant_early_exit") or getattr(generation_config, "assistant_early_exit", None)
        if early or (generation_config is None and getattr(self.generation_config, "assistant_early_exit", None)):
            raise Unsupported("assistant_early_exit: a compiled model computes all of its layers; give an assistant_model")
        if general_calls.generates(self, inputs, generation_config, kwargs) or self._beyond(kwargs):
            cache = kwargs.get("past_key_values")
            if (general := self._general(cache)) is not None:
                tokens = _new_tokens(inputs, kwargs, cache)
                kwargs["attention_mask"] = general_calls.take_cache(self, cache, kwargs.get("attention_mask"), tokens)
                return general.generate(inputs, generation_config, **kwargs)
        token = _proposes.set(bool(getattr(generation_config, "is_assistant", False)))
        try:
            return super().generate(inputs, generation_config, **kwargs)
        finally:
            _proposes.reset(token)

    def _check_prompt(self, mask: Any) -> None:
        if ends_in_padding(mask):
            raise Unsupported(
                "attention_mask: expected prompts padded on the left, found padding in the last column, whose logits "
                "generate() would take the next token from; use a tokenizer with padding_side='left'"
            )

    def get_compiled_call(self, compile_config: Any) -> Any:
        return self.__call__

    @staticmethod
    def create_masks_for_generate(*_: Any, attention_mask: Any = None, **__: Any) -> Any:
        """Masks stay as generate() has them: padding by column."""
        return attention_mask

    def _reorder_cache(self, past_key_values: Any, beam_idx: torch.Tensor) -> Any:
        past_key_values.reorder_cache(beam_idx)
        return past_key_values

    def init_continuous_batching(
        self, generation_config: Any = None, continuous_batching_config: Any = None, workload_hints: Any = None
    ) -> Any:
        """Of continuous_batching_config nothing is read: pages, graphs and kernels are transformers' own."""
        from graft.hf.continuous import Manager

        self._up_to_date(None)
        return Manager(self, generation_config or self.generation_config, workload_hints)

    # --- copies and files ---

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy with weights of its own, which the next call loads."""
        kind = type(self)
        made = memo[id(self)] = kind.__new__(kind)
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        if made._graft_lora is not None:
            made._graft_lora.find()
        try:
            with self._base(), made._base():
                self._graft_guard.check(self, thorough=True)
                made._graft_guard = Guard(made)
        except Unsupported as e:
            made._graft_guard = Outdated(str(e))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._check_kept("pickle")
        return _compiled_again, (type(self)._uncompiled, attributes_of(self), dict(self._graft_options))

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        self._check_kept("save_pretrained")
        with as_class(self, type(self)._uncompiled):
            return self.save_pretrained(*args, **kwargs)

    def _check_kept(self, call: str) -> None:
        if any(parameter.is_meta for parameter in self.parameters()):
            raise Unsupported(f"{call}: the weights of this model were released; load the model again, or use its files")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # also when the parameters are meta tensors

    @property
    def dtype(self) -> torch.dtype:
        return self._graft_dtype


@contextlib.contextmanager
def as_class(model: Any, kind: type) -> Iterator[None]:
    before = type(model)
    model.__class__ = kind
    try:
        yield
    finally:
        model.__class__ = before


@contextlib.contextmanager
def trial(model: PreTrainedModel, kind: type, engine: Any) -> Iterator[None]:
    """Within it, the model runs on the engine; then it is what it was."""
    made = dict(graft=engine, _graft_dtype=torch.float32, _graft_windows=windows(model.config), _graft_guard=Trusted())
    before = {name: vars(model)[name] for name in made if name in vars(model)}
    vars(model).update(made)
    try:
        with as_class(model, _class_of(kind)):
            yield
    finally:
        for name in made:
            vars(model).pop(name)
        vars(model).update(before)


def _new_tokens(inputs: Any, arguments: dict[str, Any], cache: Any) -> int:
    """Tokens of a call of generate() that its cache does not hold."""
    given = next((one for one in (inputs, arguments.get("input_ids"), arguments.get("inputs_embeds")) if one is not None), None)
    held = 0 if cache is None else int(cache.get_seq_length())
    return 0 if given is None else max(given.shape[1] - held, 0)


def _kept(to_keep: int | torch.Tensor, tokens: int) -> torch.Tensor:
    if isinstance(to_keep, torch.Tensor):
        return torch.arange(tokens)[to_keep]
    return torch.arange(tokens)[slice(-to_keep, None)]


__all__ = ["Compiled", "as_class", "check", "refuse_outputs", "take_over", "trial"]
