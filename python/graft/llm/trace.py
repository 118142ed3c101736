"""From a causal language model to a program, without its weights.

The program has one method, `step`, in float32:
    input_ids [B, T], position_ids [B, T], cache_position [B, T], logits_to_keep [K] (indices along T)
    -> logits [B, K, V]
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from transformers.cache_utils import get_layer_types_and_kwargs

from graft.errors import ExportError
from graft.exporter import torch_export
from graft.llm import interface, kernels, own_states, recurrence, repeats, rope
from graft.llm.untraceable import bounds_sizes, reason

INPUTS = ("input_ids", "position_ids", "cache_position", "logits_to_keep")
# Kinds of layers of transformers' caches (`get_layer_types_and_kwargs`), and whether these attend and recur.
_LAYERS = {
    "full_attention": (True, False),
    "sliding_attention": (True, False),
    "chunked_attention": (True, False),
    "linear_attention": (False, True),
    "conv": (False, True),
    "hybrid": (True, True),
    "hybrid_sliding": (True, True),
    "dummy": (False, False),
}


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Models made within it have parameters without memory, and buffers with their real values."""
    register = torch.nn.Module.register_parameter

    def register_meta(module: torch.nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


class Bounded(ExportError):
    """The model's own code admits some of the sizes alone that were asked for."""


def trace(
    model: torch.nn.Module, *, context: int, lengths_checked: bool = False, recurrent: bool = False, text_part: bool = False
) -> ExportedProgram:
    """The program of a transformers model for causal language modelling.

    Its parameters stay as they are called in the model, and are tensors without data (FakeTensor, float32): what they
    are worth plays no part here. context: the most tokens that one call takes. lengths_checked: whoever runs the program
    refuses positions for which rope type 'dynamic' has other frequencies (`rope.lengths_of`); without it such models are
    refused. recurrent: layers may have recurrent states, which the engine keeps as it keeps keys and values. text_part: the
    program is for sequences without pictures: layers that attend to these alone are left out, without it refused.
    """
    config = model.config.get_text_config()
    kinds = _kinds_of_layers(config)
    # These attend to keys and values of another layer, or not without pictures.
    without_states = {"dummy"} if _shared(config) or (text_part and source_layers(config)) else set()
    if not recurrent and (found := {kind for kind in kinds if _LAYERS[kind] != (True, False)} - without_states):
        raise ExportError(f"expected layers of attention, found {', '.join(sorted(found))}")
    if not lengths_checked and rope.DYNAMIC in rope.lengths_of(model):
        raise ExportError(
            "expected rotary frequencies that do not depend on the prompt's length, found rope_type 'dynamic'"
        )
    try:
        program = _traced_causal(model, context, once=True)
    except repeats.Unlike:
        program = _traced_causal(model, context, once=False)
    check_layers(program, config)
    return program


def _traced_causal(model: torch.nn.Module, context: int, *, once: bool) -> ExportedProgram:
    """once: layers that are alike are not traced again."""
    config = model.config.get_text_config()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    skeleton = _with_positions(skeleton_of(model, mode), layers_of(config), source_layers(config)).eval()
    rope.make_traceable(skeleton)
    batch, tokens, kept = Dim("batch", min=1), Dim("tokens", min=1, max=context), Dim("kept", min=1, max=context)
    # Different sizes, since export would unify equal ones.
    ids = torch.zeros(2, 5, dtype=torch.long)
    example = (ids, ids.clone(), ids.clone(), torch.zeros(3, dtype=torch.long))
    dims = ({0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: kept})
    groups = repeats.groups_of(skeleton) if once else []
    try:
        with repeats.standing_in(skeleton, groups):
            program = traced(skeleton, example, dims)
    except Bounded:
        raise
    except ExportError as e:
        if groups:
            raise repeats.Unlike(str(e)) from e
        raise
    repeats.expand(program, groups)
    return program


def traced(skeleton: torch.nn.Module, example: tuple[Any, ...], dims: tuple[Any, ...]) -> ExportedProgram:
    """torch.export of a skeleton with graft's attention and recurrences."""
    try:
        recurrences = kernels.in_place(skeleton, kernels.CACHED)
        with interface.registered(skeleton), traceable_hooks(skeleton), recurrences, torch.no_grad():
            return torch_export.export(skeleton, example, dynamic_shapes=dims, strict=False)
    except ExportError:
        raise
    except Exception as e:  # whatever the model's code or the tracer raises
        kind = type(skeleton).__name__
        with_encoder = getattr(skeleton.config, "is_encoder_decoder", False)  # these do not set the flag below
        if not with_encoder and not getattr(skeleton, "_supports_attention_backend", False):
            raise ExportError(
                f"{kind} cannot be exported: it does not use transformers' AttentionInterface"
            ) from e
        raise (Bounded if bounds_sizes(e) else ExportError)(f"{kind} cannot be traced: {reason(e)}") from e


def records_outputs(hook: Any) -> bool:
    """Whether transformers itself put the hook there, for output_hidden_states and output_attentions."""
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


@contextlib.contextmanager
def traceable_hooks(model: torch.nn.Module) -> Iterator[None]:
    """Within it, the model itself has no hooks: they run around the compiled forward. What those of inner modules give
    back becomes part of the program; one that gives nothing back would never run again, and is an error."""
    tables = [getattr(m, kind) for m in model.modules() for kind in ("_forward_pre_hooks", "_forward_hooks")]
    before = [dict(table) for table in tables]

    def checked(path: str, hook: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = hook(*args, **kwargs)
            if result is None:
                name = getattr(hook, "__qualname__", type(hook).__name__)
                raise ExportError(
                    f"{path}: expected hooks that give back what takes the place of inputs or outputs, found '{name}', "
                    "which gives nothing back; a compiled model does not call it, so remove it first"
                )
            return result

        return run

    try:
        for path, module in model.named_modules():
            for kind in ("_forward_pre_hooks", "_forward_hooks"):
                table = getattr(module, kind)
                if module is model:
                    table.clear()
                for key, hook in table.items():
                    if not records_outputs(hook):
                        table[key] = checked(path, hook)
        yield
    finally:
        for table, held in zip(tables, before):
            table.clear()
            table.update(held)


def _with_positions(model: torch.nn.Module, layers: int, sources: Sequence[int] = ()) -> torch.nn.Module:
    """The same model with cache_position among its arguments. Not a module around it, so that names stay."""
    kind = type(model)

    takes = inspect.signature(kind.forward).parameters
    name = "past_key_values" if "past_key_values" in takes else "cache_params"  # of models without attention
    stateless = own_states.hand_over(model)
    own = [] if "position_ids" in takes else [m for m in model.modules() if _numbers_tokens(m)]

    def forward(
        self: torch.nn.Module,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache_position: torch.Tensor,
        logits_to_keep: torch.Tensor,
    ) -> torch.Tensor:
        given = {"position_ids": position_ids} if "position_ids" in takes else {}
        if "logits_to_keep" in takes:
            given["logits_to_keep"] = logits_to_keep
        for module in own:
            module.forward = functools.partial(_embed_positions, type(module).forward, module, position_ids)
        cache = {"use_cache": False} if stateless else {"use_cache": True, name: interface.no_cache(layers, sources=sources)}
        with interface.positions(cache_position):
            output = kind.forward(self, input_ids=input_ids, return_dict=True, **cache, **given)
        if not hasattr(output, "logits"):
            raise ExportError(f"expected a model that gives logits, found {kind.__name__}, which gives {', '.join(output)}")
        return output.logits if "logits_to_keep" in takes else output.logits[:, logits_to_keep]

    interface.become(model, kind, forward)
    return model


def _numbers_tokens(module: torch.nn.Module) -> bool:
    """Whether a module embeds positions that it counts from the length of the cache."""
    return {"past_key_values_length", "position_ids"} <= inspect.signature(module.forward).parameters.keys()


def _embed_positions(
    forward: Callable[..., Any], module: torch.nn.Module, positions: torch.Tensor, tokens: Any, *_: Any, **__: Any
) -> torch.Tensor:
    """The embeddings of these positions [B, T], by a module that takes them one row at a time."""
    return forward(module, tokens, 0, position_ids=positions.reshape(-1)).reshape(*positions.shape, -1)


def skeleton_of(model: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """A copy with float32 parameters that have no data. Buffers keep theirs."""
    made: dict[int, Any] = {}
    with mode:
        for tensor in model.parameters():
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            made[id(tensor)] = torch.nn.Parameter(torch.empty(tensor.shape, dtype=dtype), requires_grad=False)
    for tensor in model.buffers():
        if tensor.is_meta:
            raise ExportError("expected buffers with values, found one on the meta device")
        if tensor.is_floating_point():
            made[id(tensor)] = tensor.detach().to(torch.float32).clone()
    return copy.deepcopy(model, made)


def layers_of(config: Any) -> int:
    """Of the decoder: num_hidden_layers of a configuration of encoder and decoder is the encoder's."""
    return getattr(config, "decoder_layers", None) or config.num_hidden_layers


def source_layers(config: Any) -> list[int]:
    """Those that attend to pictures beside the sequence and to no token."""
    return list(getattr(config, "cross_attention_layers", None) or [])


def _shared(config: Any) -> int:
    """How many layers, the last ones, attend to keys and values of another layer."""
    return getattr(config, "num_kv_shared_layers", None) or 0


def _kinds_of_layers(config: Any) -> list[str]:
    """Of each layer, as transformers calls them."""
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "decoder_layers", None):
        return ["full_attention"] * layers_of(config)  # transformers would say those of the encoder
    if config.model_type == "rwkv":  # which has no cache of transformers
        return ["linear_attention"] * layers_of(config)
    kinds = get_layer_types_and_kwargs(config)[0]
    if unknown := set(kinds) - _LAYERS.keys():
        raise ExportError(f"expected layers of attention, found {', '.join(sorted(unknown))}")
    sources = source_layers(config)
    return ["dummy" if i in sources else kind for i, kind in enumerate(kinds)]


def attends(config: Any) -> bool:
    """Whether a layer of a decoder has keys and values."""
    return any(_LAYERS[kind][0] for kind in _kinds_of_layers(config))


def check_layers(program: ExportedProgram, config: Any) -> None:
    """Each layer attends through graft's operator, once, and recurs through one, where its kind does. Layers without keys
    and values of their own attend to those of another one."""
    kinds = _kinds_of_layers(config)

    def layers(*targets: Any) -> list[int]:
        return sorted(node.kwargs["layer"] for node in program.graph.nodes if node.target in targets)

    expected = [layer for layer, kind in enumerate(kinds) if _LAYERS[kind][0]]
    attending = layers(torch.ops.graft.attention.default)
    if sorted(set(attending)) != expected or len(attending) != len(expected) + _shared(config):
        raise ExportError(
            f"expected one attention through transformers' AttentionInterface in each of {len(expected)} layers, found "
            f"them in {attending}; {config.model_type} cannot be exported"
        )
    recurrent = sorted(set(layers(*recurrence.CACHED)))
    if recurrent != [layer for layer, kind in enumerate(kinds) if _LAYERS[kind][1]]:
        raise ExportError(
            f"expected a recurrence that graft knows in each layer of its kind, of {', '.join(kinds)}, found them in "
            f"{recurrent}; {config.model_type} cannot be exported"
        )
