"""All causal classes of transformers as small models with random weights, and how `graft.compile` compares with eager
PyTorch on them: prompts of 1, 7 and 64 tokens without padding and padded on either side, cached steps and 16 generated
tokens."""

from __future__ import annotations

import contextlib
import copy
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

import graft

VOCAB, CONTEXT, STEPS, CLOSE = 199, 128, 16, 1e-4
SECONDS = 1200  # of CPU time, for one class: DeepSeek V4, whose calls differ in what its layers have compressed, takes half

# Sizes by the names that configurations use.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embedding_size", "emb_dim", "word_embed_proj_dim"),
        48,
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
        4,
    ),
    **dict.fromkeys(
        (
            "intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "n_inner", "dff",
            "inner_dim", "ffn_intermediate_size", "mlp_hidden_size",
        ),
        64,
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions"), CONTEXT),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 9),  # shorter than the prompts
    **dict.fromkeys(
        ("first_k_dense_replace", "n_group", "num_expert_group", "topk_group", "n_shared_experts", "zero_expert_num"), 1
    ),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim", "query_pre_attn_scalar", "mamba_d_head"), 12),
    **dict.fromkeys(
        (
            "qk_rope_head_dim", "mamba_d_state", "state_size", "mamba_n_heads", "linear_key_head_dim",
            "linear_value_head_dim", "hidden_size_per_layer_input", "laurel_rank", "index_topk",
        ),
        8,
    ),
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "linear_num_value_heads": 4,
    "time_step_rank": 4,
    "rotary_dim": 4,
    "moe_num_shared_experts": 1,
    "num_image_tokens": 4,
    "max_source_positions": 64,
    "pronunciation_vocab_size": 50,
    "shape_vocab_size": 50,
    "num_kv_shared_layers": 0,
    "moe_layers": [],
    "moe_k": 2,
    "encoder_hash_byte_group_vocab": 64,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 12,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "num_dense_layers": 1,
    "attn_layer_indices": [1],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "axial_pos_shape": [8, 16],
    "axial_pos_embds_dim": [16, 32],
    "default_language": "en_XX",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
# Set also where the configuration has None.
_ALWAYS = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "attn_layer_indices", "default_language"}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ALL = "all sizes, also those that are None in the configuration"
# Heads of state-space layers have expand * hidden_size values in all.
_HYBRID = {"mamba_n_heads": 8, "num_heads": 8, "n_groups": 2, "mamba_d_head": 12, "mamba_d_ssm": 96}
# Some classes fit together only otherwise: the first that eager PyTorch runs is taken. None: as the class has it.
_VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 4, "head_dim": None},
    {"head_dim": None},
    {"num_key_value_heads": 4, "qk_nope_head_dim": 4},
    {"layer_types": None},
    {"layer_types": None, "num_key_value_heads": 4, "head_dim": None},
    {"hidden_size": 64, "num_key_value_heads": 4, "head_dim": 16},
    {_ALL: True},
    {_ALL: True, "num_key_value_heads": 4, "head_dim": None},
    {"num_key_value_heads": 4, "head_dim": 8},
    {"rope_parameters": {kind: _ROPE for kind in ("full_attention", "sliding_attention")}},
    {"layer_types": ["conv", "full_attention"]},
    {**_HYBRID, "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"]},
    {**_HYBRID, "layer_types": ["linear_attention", "full_attention"]},
    {**_HYBRID, "layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 4, "head_dim": None},
    {"hidden_size": 128, "embedding_dim": 128, "num_heads": 4},
)


@dataclass
class Result:
    kind: str
    result: str  # exact, refused, wrong, error, or no model
    why: str = ""
    route: str = ""  # fast or general, of compiled ones
    positions: str = ""  # how it numbers tokens, of those of the fast route
    differences: dict[str, float] = field(default_factory=dict)


def _shrunk(config: Any, variant: dict[str, Any]) -> Any:
    small = {name: value for name, value in {**_SMALL, **variant}.items() if value is not None}
    before = config.to_dict()
    always = set(small) if _ALL in variant else _ALWAYS
    new = {k: v for k, v in small.items() if k in before and (before[k] is not None or k in always or k in variant)}
    for name in ("layer_types", "mlp_layer_types"):
        if before.get(name) and "layer_types" not in variant:
            kinds = list(dict.fromkeys(before[name]))
            if "num_hidden_layers" in new:  # one of each kind
                new["num_hidden_layers"] = max(new["num_hidden_layers"], len(kinds))
            new[name] = [kinds[i % len(kinds)] for i in range(new.get("num_hidden_layers", 4))]
    made = {}
    for name in type(config).sub_configs:
        if isinstance(part := getattr(config, name, None), transformers.PretrainedConfig):
            made[name] = _shrunk(part, variant)
    try:
        return type(config)(**new, **{name: part.to_dict() for name, part in made.items()})
    except Exception:  # whatever the class checks
        config = copy.deepcopy(config)
        for name, value in {**new, **made}.items():
            setattr(config, name, value)
        return config


def _of_class(kind: type, config: Any) -> Any:
    """The part that the class takes, of a configuration of several."""
    parts = [getattr(config, name, None) for name in type(config).sub_configs]
    fitting = [part for part in (config, *parts) if isinstance(part, kind.config_class)]
    return fitting[0] if fitting else config


def _made(kind: str, variant: dict[str, Any]) -> Any:
    made = getattr(transformers, CLASSES[kind])
    config = _of_class(made, _shrunk(CONFIG_MAPPING[kind](), variant))
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    return random_weights(made._from_config(config).float().eval()).requires_grad_(False)


def random_weights(model: Any) -> Any:
    """Drawn wide, so that what is left out shows; those of convolutions by all that they add up: many in a row would amplify rounding."""
    convolutions = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.modules.conv._ConvNd)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() <= 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif any(part in name for part in ("embed", "wte", "wpe", "position")):
                parameter.copy_(torch.randn_like(parameter))
            else:
                added = parameter[0].numel() if id(parameter) in convolutions else parameter.shape[-1]
                parameter.copy_(torch.randn_like(parameter) * 1.2 / added**0.5)
    return model


# Names of the number of layers.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")


def make(kind: str, layers: int | None = None) -> Any:
    """A small model that eager PyTorch runs, with so many layers, else with few. Raises what the class raises at these sizes."""
    first = None
    deep = {} if layers is None else dict.fromkeys(_LAYERS, layers)
    for variant in _VARIANTS:
        try:
            model = _made(kind, {**variant, **deep})
            with torch.no_grad():
                for name, check in checks(prompts=(7,)):
                    if name != "cached steps":  # not all have a cache
                        check(model)
            return model
        except Exception as e:  # whatever the class raises
            first = first or e
    raise first


def random_ids(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def _masks(tokens: int) -> torch.Tensor:
    """Without padding, on the left, on the right."""
    mask = torch.ones(3, tokens, dtype=torch.long)
    pad = min(tokens - 1, 5)
    mask[1, :pad] = 0
    mask[2, tokens - pad :] = 0
    return mask


def _generated(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits of each step and the tokens, in one; these small, so that differences are relative to the logits, but one
    more or less is far above CLOSE."""
    options = dict(max_new_tokens=STEPS, do_sample=False, eos_token_id=None, pad_token_id=0)
    made = model.generate(ids, attention_mask=mask, **options, return_dict_in_generate=True, output_logits=True)
    return torch.cat([torch.stack(made.logits, 1).flatten(), made.sequences.flatten() * 0.01])


def _cached(model: Any, ids: torch.Tensor) -> torch.Tensor:
    first = model(ids, use_cache=True)
    second = model(ids[:, :3], past_key_values=first.past_key_values, use_cache=True)
    third = model(ids[:, :1], past_key_values=second.past_key_values, use_cache=True)
    return torch.cat([second.logits, third.logits], 1)


def checks(prompts: tuple[int, ...] = (1, 7, 64)) -> Iterator[tuple[str, Callable[[Any], torch.Tensor]]]:
    for tokens in prompts:
        ids, mask = random_ids(3, tokens), _masks(tokens)
        yield f"forward of {tokens}", lambda m, ids=ids: m(ids[:2]).logits
        yield f"padded forward of {tokens}", lambda m, ids=ids, mask=mask: m(ids, attention_mask=mask).logits[mask == 1]
        yield f"generation from {tokens}", lambda m, ids=ids, mask=mask: _generated(m, ids[:1], mask[:1])
        yield f"padded generation from {tokens}", lambda m, ids=ids, mask=mask: _generated(m, ids[:2], mask[:2])
    yield "cached steps", lambda m: _cached(m, random_ids(2, 7))


def compare(kind: str, change: Callable[[Any], None] = lambda model: None) -> Result:
    """change: made to the compiled model's twin, for negative controls."""
    return beside_eager(kind, lambda: (make(kind), lambda model: checks()), change, _difference)


def beside_eager(
    kind: str,
    made: Callable[[], tuple[Any, Callable[[Any], Iterator[tuple[str, Callable[[Any], Any]]]]]],
    change: Callable[[Any], None],
    difference: Callable[[Any, Any], float],
    **options: Any,
) -> Result:
    """made: gives a model, and the checks of one. options: of `graft.compile`."""
    try:
        with _limited():
            model, checks_of = made()
    except (Exception, _OutOfTime) as e:  # eager PyTorch does not run it
        return Result(kind, "no model", f"{type(e).__name__}: {' '.join(str(e).split())}")
    expected = {}
    with torch.no_grad():
        for name, check in checks_of(model):
            with contextlib.suppress(Exception):  # prompts that eager PyTorch does not take
                expected[name] = check(model)
    try:
        with _limited():
            compiled = graft.compile(copy.deepcopy(model), threads=1, **options)
            change(compiled)
            with torch.no_grad():
                found = {name: check(compiled) for name, check in checks_of(compiled) if name in expected}
    except graft.Error as e:
        return Result(kind, "refused", str(e).removeprefix("graft.compile: "))
    except (Exception, _OutOfTime) as e:
        return Result(kind, "error", f"{type(e).__name__}: {e}")
    differences = {name: difference(expected[name], given) for name, given in found.items()}
    far = [name for name, value in differences.items() if value > CLOSE]
    wrong = [name for name in far if not _nearer_than_eager(model, checks_of, name, expected[name], found[name], difference)]
    route = getattr(compiled.graft, "route", "")  # encoders have one alone
    positions = (compiled.graft.positions or "must be given") if route == "fast" else ""
    return Result(kind, "wrong" if wrong else "exact", ", ".join(wrong), route, positions, differences)


def _nearer_than_eager(model, checks_of, name, expected, found, difference) -> bool:
    """Whether results differ from eager PyTorch's in float64 by less than its own in float32: models that amplify rounding."""

    def in_double(_, args, kwargs):
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, (args, kwargs))

    try:
        exact = copy.deepcopy(model).double()
        exact.register_forward_pre_hook(in_double, with_kwargs=True)
        with torch.no_grad():
            reference = dict(checks_of(exact))[name](exact)
    except Exception:  # a model that does not run in float64
        return False
    return difference(reference, found) <= difference(reference, expected)


def _difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    difference = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-9))
    return difference if difference == difference else float("inf")


class _OutOfTime(BaseException):  # which code that goes on after an Exception does not catch
    pass


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _OutOfTime(f"{SECONDS} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 5)  # again, where what was raised went into a callback of C++
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


__all__ = ["CLASSES", "Result", "beside_eager", "checks", "compare", "make", "random_ids", "random_weights"]
