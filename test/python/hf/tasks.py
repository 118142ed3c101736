"""Classes of transformers for other tasks than going on with a text, small and with random weights, and how `graft.compile`
compares with eager PyTorch on them: encoders and classifiers of text, pictures and sound, and models of encoder and decoder.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import population
from population import _ALWAYS, _SMALL, STEPS, VOCAB, Result, beside_eager, random_ids, random_weights

#: Tasks by the name that auto classes have for them.
TASKS = {
    "text to text": "SEQ_TO_SEQ_CAUSAL_LM",
    "speech to text": "SPEECH_SEQ_2_SEQ",
    "pictures to text": "IMAGE_TEXT_TO_TEXT",
    "masked tokens": "MASKED_LM",
    "CTC": "CTC",
    "classes of sounds": "AUDIO_CLASSIFICATION",
    "classes of pictures": "IMAGE_CLASSIFICATION",
    "pictures and texts": "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "classes of texts": "SEQUENCE_CLASSIFICATION",
    "classes of tokens": "TOKEN_CLASSIFICATION",
    "answers in texts": "QUESTION_ANSWERING",
    "choices": "MULTIPLE_CHOICE",
    "objects in pictures": "OBJECT_DETECTION",
    "classes of pixels": "SEMANTIC_SEGMENTATION",
    "instances in pictures": "INSTANCE_SEGMENTATION",
    "segments of pictures": "UNIVERSAL_SEGMENTATION",
    "depths": "DEPTH_ESTIMATION",
}
GENERATING = ("text to text", "speech to text", "pictures to text")
TEXTS = ("classes of texts", "classes of tokens", "answers in texts")
PICTURE = 5  # the token whose place a picture's features take


def _classes() -> dict[str, tuple[str, str]]:
    """The first task and model type of each class."""
    found: dict[str, tuple[str, str]] = {}
    for task, name in TASKS.items():
        for kind, classes in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES").items():
            for one in [classes] if isinstance(classes, str) else classes:
                found.setdefault(one, (task, kind))
    return found


CLASSES = _classes()

_SIZES: dict[str, Any] = {
    **_SMALL,
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "num_block", "num_blocks"), 2),
    **dict.fromkeys(("num_decoder_heads", "num_encoder_heads"), 4),
    **dict.fromkeys(("d_ff", "moe_intermediate_size", "encoder_intermediate_size"), 64),
    **dict.fromkeys(("embed_dim", "hidden_dim", "d_embed", "projection_dim", "encoder_hidden_size", "decoder_hidden_size"), 48),
    **dict.fromkeys(("depths", "layer_depths"), 1),
    **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 48),
    "d_kv": 12,
    "image_size": 32,
    "patch_size": 8,
    "mm_tokens_per_image": 4,
    "hidden_sizes": 16,
    **dict.fromkeys(("out_hidden_size", "text_hidden_size", "projector_hidden_size"), 48),
    "conv_dim": 16,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "tdnn_dim": 16,
    "classifier_proj_size": 24,
    "num_codevectors_per_group": 8,
    "codevector_dim": 16,
    "attention_window": 8,
    "block_size": 4,
    "block_sizes": 1,
    "num_hash_buckets": 64,
    "num_queries": 8,
    "depth": 2,
    "deepstack_visual_indexes": [0, 1],
    "fullatt_block_indexes": [1],
}
_RESNET: dict[str, Any] = {
    "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_DIGITS = "ABCDEFGHIJ"
_RATIOS = (("long", 7), ("mid", 5), ("short", 3))
_INTRACLASS = {
    "reduce_channel": [1, 1, 0],
    "return_channel": [1, 1, 0],
    **{f"vertical_long_to_small_conv_{ratio}ratio": [[n, 1], [1, 1], [n // 2, 0]] for ratio, n in _RATIOS},
    **{f"horizontal_small_to_long_conv_{ratio}ratio": [[1, n], [1, 1], [0, n // 2]] for ratio, n in _RATIOS},
    **{f"symmetric_conv_long_{ratio}ratio": [[n, n], [1, 1], [n // 2, n // 2]] for ratio, n in _RATIOS},
}
_OCR = {"neck_out_channels": 32, "intraclass_block_config": _INTRACLASS, "scale_factor_list": [1, 2, 4, 8], "kernel_list": [3, 2, 2]}
_FUSED = {"neck_hidden_sizes": [8, 16, 24, 32], "fusion_hidden_size": 16}
# What these model types have no default for, or sizes by names that mean others elsewhere.
_OWN: dict[str, dict[str, Any]] = {
    "shieldgemma2": {"yes_token_index": 30, "no_token_index": 31},
    "perceiver": {"d_latents": 48, "num_latents": 8, "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 1},
    "luke": {"entity_vocab_size": 50, "entity_emb_size": 16},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
    "align_vision_model": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320},
    "align": {"projection_dim": 80},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 24, 32], "fusion_hidden_size": 16},
    "deformable_detr": {"d_model": 64},
    "beit": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "data2vec-vision": {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "chameleon": {"vocabulary_map": {"<image>": PICTURE, **{f"IMGIMG{_DIGITS[i]}Z": 40 + i for i in range(8)}}},
    "chameleon_vqgan": {"num_embeddings": 8, "base_channels": 32, "embed_dim": 16, "latent_channels": 16},
    "emu3": {"vocabulary_map": {"<image>": PICTURE, "<|extra_200|>": 39, **{f"<|visual token {i:06}|>": 40 + i for i in range(8)}}},
    "emu3_vqgan": {"codebook_size": 8, "base_channels": 32, "embed_dim": 4, "latent_channels": 4, "hidden_size": 128},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24},
    "deepseek_ocr2_sam_vision_model": {"downsample_channels": [48, 48], "window_size": 2, "global_attn_indexes": [1]},
    "glm4v_moe_text": {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}},
    "glm5_next_text": {"index_kpool": 4, "num_key_value_heads": 4, "qk_rope_head_dim": 0},
    "kosmos_2_text_model": {"attention_heads": 4, "layers": 2},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "hunyuan_vl_text": {"rope_parameters": {**_ROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12},
    "bros": {"hidden_size": 64},
    "vibevoice_acoustic_tokenizer": {"num_filters": 4},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 4},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "lw_detr_vit": {"num_windows": 4},
    "pp_ocrv5_server_det": _OCR,
    "pp_ocrv6_medium_det": _OCR,
    "pp_ocrv6_small_det": {"layer_list_out_channels": [16, 24, 32, 48]},
    "pp_lcnet_v4": {
        "block_configs": [[[3, 16, 16, 1, True]], [[3, 16, 24, 2, False]], [[3, 24, 32, 2, True]], [[3, 32, 48, 2, False]]],
        "stem_channels": [3, 8, 16],
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    },
    "sapiens2_head": {"upsample_out_channels": [24, 16], "conv_out_channels": [16]},
    "tipsv2_dpt": {**_FUSED, "num_depth_bins": 16},
    "chmv2": {"post_process_channels": [8, 16, 24, 32], "fusion_hidden_size": 16, "head_hidden_size": 16, "number_output_channels": 16},
    "zoedepth": {**_FUSED, "bottleneck_features": 16},
    "mask2former": {"hidden_dim": 64, "feature_size": 64, "mask_feature_size": 64},
    "oneformer": {"hidden_dim": 64, "conv_dim": 64, "mask_dim": 64, "text_encoder_width": 64},
    "dots3_note_text": {"num_key_value_heads": 4},
    "dots3_note_vision_encoder": {"adapter_in_dim": 48, "adapter_out_dim": 48},
    "dots3_note_audio_encoder": {"adapter_input_size": 48, "adapter_out_dim": 48},
}
_MROPE = re.compile(r"(qwen2_vl|qwen2_5_vl|qwen2_5_omni|glm4v(?!_moe)|glm_ocr|glm46v|ernie4_5_vl).*text")  # their code has larger sections
_EXPONENTS = ("lw_detr", "rf_detr")  # of the sizes of boxes, which their code begins at zero
_NONE: dict[str, Any] = {}
_REST = "what differs from the class's defaults"  # kept too: a backbone's stages, by the configuration around it
_VARIANTS: tuple[tuple[dict[str, Any], frozenset[str]], ...] = (
    (_SIZES, frozenset()),
    (_SIZES, frozenset(("num_heads", "patch_size", "embed_dim", "hidden_sizes", "depths", "image_size", "conv_dim", "head_dim"))),
    ({**_SIZES, "num_key_value_heads": 4, "head_dim": None}, frozenset()),
    ({"num_hidden_layers": 2, "num_layers": 2, "vocab_size": VOCAB}, frozenset()),
    (_SIZES, frozenset((_REST,))),
    (_NONE, frozenset()),
)
_LARGEST = 60_000_000  # weights


def _shrunk(config: Any, sizes: dict[str, Any], left: frozenset[str]) -> Any:
    before, new = config.to_dict(), {}
    layers = next((before[name] for name in ("num_hidden_layers", "num_layers", "depth") if before.get(name)), None)
    for name, value in sizes.items():
        was = before.get(name)
        fits = name in before if name in _ALWAYS else was is not None
        if name in left or not fits or value is None or isinstance(was, (dict, str)):
            continue
        if isinstance(was, (list, tuple)) and not isinstance(value, (list, tuple)):
            if any(not isinstance(one, int) for one in was):
                continue
            count = 2 if len(was) == layers and layers > 4 else len(was)
            value = [value * (i + 1) for i in range(count)] if name == "hidden_sizes" else [value] * count
        new[name] = value
    for name in ("layer_types", "mlp_layer_types"):
        if before.get(name) and "num_hidden_layers" in new:
            kinds = list(dict.fromkeys(before[name]))
            new["num_hidden_layers"] = max(2, len(kinds))
            new[name] = [kinds[i % len(kinds)] for i in range(new["num_hidden_layers"])]
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := before.get(name), dict) and (rope.get("mrope_section") or _MROPE.match(config.model_type)):
            new[name] = {**rope, "mrope_section": [2, 2, 2]}
    if "image_grid_pinpoints" in before:
        new["image_grid_pinpoints"] = [[32, 32]]
    names = [name for name in before if name.endswith(("token_id", "token_index"))]
    special = [name for name in names if isinstance(before[name], int) and before[name] >= VOCAB]
    special += [name for name in names if name.startswith("image_token") and name not in special]
    special.sort(key=lambda name: not name.startswith("image_token"))
    new.update({name: PICTURE + i for i, name in enumerate(special)})
    if _REST in left:
        new.update(_rest(config, before, new))
    new.update(_OWN.get(config.model_type, {}))
    made = {name: getattr(config, name, None) for name in type(config).sub_configs}
    if "vision_config" in made and made["vision_config"] is None:  # models of texts alone otherwise
        made["vision_config"] = type(config).sub_configs["vision_config"]()
    parts: dict[str, Any] = {}
    for name, part in made.items():
        if getattr(part, "model_type", "") == "timm_backbone":  # of a library that tests do without
            parts[name] = transformers.ResNetConfig(**_RESNET)
        elif isinstance(part, transformers.PretrainedConfig):
            kept = name == "backbone_config" and hasattr(part, "hidden_sizes")  # sizes of its stages fit those of others
            parts[name] = (part if kept else _shrunk(part, sizes, left)).to_dict()
    return type(config)(**{**new, **parts})


def _rest(config: Any, before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    default = type(config)().to_dict()
    rest = {n: v for n, v in before.items() if v != default.get(n) and n not in new and not isinstance(v, dict)}
    if "num_hidden_layers" in new and (stages := len(before.get("out_indices") or ())):
        rest = {name: value for name, value in rest.items() if name not in ("out_features", "stage_names")}
        rest.update(num_hidden_layers=max(2, stages), out_indices=list(range(1, stages + 1)))
    return rest


def _made(name: str, shrunk: Callable[[Any], Any]) -> Any:
    kind = getattr(transformers, name)
    config = shrunk(CONFIG_MAPPING[CLASSES[name][1]]())
    if not isinstance(config, kind.config_class):
        parts = [getattr(config, part, None) for part in type(config).sub_configs]
        config = next((part for part in parts if isinstance(part, kind.config_class)), config)
    config._attn_implementation = "eager"
    config.pad_token_id = getattr(config, "pad_token_id", None) or 0
    if getattr(config, "is_encoder_decoder", False) and not hasattr(config, "decoder_start_token_id"):
        config.decoder_start_token_id = 1
    with torch.device("meta"):
        if sum(p.numel() for p in kind(copy.deepcopy(config)).parameters()) > _LARGEST:
            raise ValueError(f"more than {_LARGEST} weights")
    torch.manual_seed(5)
    model = random_weights(kind(config).float().eval()).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if config.model_type in _EXPONENTS and "bbox_embed" in name:
            parameter.mul_(0.1)
    generation = getattr(model, "generation_config", None)
    if generation is not None and getattr(generation, "decoder_start_token_id", 1) is None:
        generation.decoder_start_token_id = 1
    return model


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _masks(ids: torch.Tensor) -> torch.Tensor:
    """Of three rows: without padding, on the left, on the right."""
    mask = torch.ones_like(ids)
    mask[1, ..., :3] = 0
    mask[2, ..., -3:] = 0
    return mask


def _sized(config: Any, name: str, otherwise: Any) -> Any:
    """Of the configuration or the part of it that has it."""
    configs = [config, *(getattr(config, part, None) for part in type(config).sub_configs)]
    return next((v for c in configs if c is not None and (v := getattr(c, name, None)) is not None), otherwise)


def _media(model: Any, rows: int, step: int) -> Iterator[dict[str, torch.Tensor]]:
    """Arguments that a class may take for pictures or sound; step: longer sound."""
    config, takes = model.config, inspect.signature(model.forward).parameters
    if "spatial_shapes" in takes:
        patch = _sized(config, "patch_size", 16)
        sizes = {"pixel_attention_mask": torch.ones(rows, 16, dtype=torch.int64), "spatial_shapes": torch.full((rows, 2), 4)}
        yield {"pixel_values": _random(rows, 16, 3 * patch**2), **sizes}
    if "pixel_values" in takes:
        size = _sized(config, "image_size", 64)
        high, wide = size if isinstance(size, (list, tuple)) else (size, size)
        tasks = {"task_inputs": random_ids(rows, config.task_seq_len)} if "task_inputs" in takes else {}
        yield {"pixel_values": _random(rows, _sized(config, "num_channels", 3), high, wide), **tasks}
    if "pixel_values_videos" in takes:
        side = _sized(config, "image_size", 64)
        yield {"pixel_values_videos": _random(rows, _sized(config, "num_frames", 2), 3, side, side)}
    if "input_values" in takes:
        yield {"input_values": _random(rows, 3200 + 800 * step)}
        yield {"input_values": _random(rows, _sized(config, "max_length", 64), _sized(config, "num_mel_bins", 80))}
    if "input_features" in takes:
        bins = _sized(config, "num_mel_bins", None) or _sized(config, "feature_size", 80)
        yield {"input_features": _random(rows, bins, 2 * _sized(config, "max_source_positions", 64))}
        own = _sized(config, "input_feat_per_channel", 80), _sized(config, "feature_projection_input_dim", 160)
        for size in dict.fromkeys((*own, bins, 4 * bins)):  # 4: frames in one
            yield {"input_features": _random(rows, 64 + 16 * step, size)}


def _forms(model: Any, rows: int) -> tuple[dict[str, torch.Tensor], ...]:
    """Pictures as a class may take them."""
    takes = inspect.signature(model.forward).parameters
    vision = getattr(model.config, "vision_config", model.config)
    size = _sized(vision, "image_size", 32)
    size = size if isinstance(size, int) else size[0]
    patch, frames = _sized(vision, "patch_size", 14), _sized(vision, "temporal_patch_size", 1)
    patch = patch if isinstance(patch, int) else patch[0]
    plain = {"pixel_values": _random(rows, 3, size, size)}
    tiles = {"pixel_values": _random(rows, 1, 3, size, size)}
    patches = {
        "pixel_values": _random(rows * 16, 3 * frames * patch * patch),
        "image_grid_thw": torch.tensor([[1, 4, 4]]).expand(rows, 3).clone(),
    }
    twice = {"pixel_values": _random(rows, 2, 3, size, size)}
    sized = {"image_sizes": torch.full((rows, 2), size)} if "image_sizes" in takes else {}
    if "image_grid_thw" in takes:
        return (patches,)
    if "image_position_ids" in takes:
        pooled = _sized(vision, "pooling_kernel_size", 3)
        side = 2 * pooled
        places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy"), -1).reshape(1, -1, 2)
        placed = {"image_position_ids": places.repeat(rows, 1, 1)}
        sizes = 3 * patch**2, 3 * (patch * pooled) ** 2
        return tuple({"pixel_values": _random(rows, side**2, size), **placed} for size in sizes)
    return plain, tiles, twice, {**plain, **sized}, {**twice, **sized}


def _pictures(model: Any, rows: int, step: int) -> Iterator[dict[str, torch.Tensor]]:
    """Texts with a picture in each, of as many tokens as the model makes features of it; step: longer texts."""
    takes = inspect.signature(model.forward).parameters
    for one in _forms(model, rows):
        with contextlib.suppress(Exception), torch.no_grad():  # another form of pictures
            features = _features(model.get_image_features(**one))
            ids = random_ids(rows, 8 + features // rows + 4 * step).clamp(min=PICTURE + 20)
            ids[:, 3 : 3 + features // rows] = PICTURE
            kinds = {"mm_token_type_ids": (ids == PICTURE).long()} if "mm_token_type_ids" in takes else {}
            question = {"qformer_input_ids": random_ids(rows, 5)} if "qformer_input_ids" in takes else {}
            yield {"input_ids": ids, **kinds, **question, **one}


def _features(found: Any) -> int:
    """How many there are in all."""
    found = getattr(found, "pooler_output", found)
    found = found if isinstance(found, torch.Tensor) else torch.cat([one.flatten(0, -2) for one in found])
    return found.flatten(0, -2).shape[0]


def arguments(model: Any, rows: int, step: int) -> Iterator[dict[str, torch.Tensor]]:
    """Those that a class may take, the likely ones first. step: 0, or longer texts."""
    takes = inspect.signature(model.forward).parameters
    text = {"input_ids": random_ids(rows, 7 + 4 * step)}
    if CLASSES[model.__class__.__name__][0] == "classes of texts" and getattr(model.config, "is_encoder_decoder", False):
        text["input_ids"][:, -1] = model.config.eos_token_id  # whose place is classified
    if CLASSES[model.__class__.__name__][0] == "choices":
        text = {"input_ids": random_ids(rows * 2, 7 + 4 * step).unflatten(0, (rows, 2))}
    if model.config.model_type == "longformer" and CLASSES[model.__class__.__name__][0] in ("answers in texts", "choices"):
        text["input_ids"][..., [1, 3, -1]] = model.config.sep_token_id  # after the question, and twice more
    if "bbox" in takes:
        corners = torch.randint(0, 500, (*text["input_ids"].shape, 2), generator=torch.Generator().manual_seed(step))
        text["bbox"] = torch.cat([corners, corners + 100], -1)
    media = list(_media(model, rows, step))
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    if CLASSES[model.__class__.__name__][0] == "pictures to text" and hasattr(model, "get_image_features"):
        yield from _pictures(model, rows, step)
    for one in media:
        if main in one:
            yield one
    if "input_ids" in takes:
        yield text
        for one in media:
            yield {**text, **one}
        for one in media if "attention_mask" in takes else ():
            yield {**text, **one, "attention_mask": torch.ones_like(text["input_ids"])}
    yield from media


def _with_decoder(model: Any, given: dict[str, torch.Tensor], tokens: int) -> dict[str, torch.Tensor]:
    """Classifiers of texts give the decoder the same text."""
    takes = "decoder_input_ids" in inspect.signature(model.forward).parameters
    takes = takes and CLASSES[type(model).__name__][0] in (*GENERATING, "masked tokens")
    return {**given, "decoder_input_ids": random_ids(len(next(iter(given.values()))), tokens)} if takes else given


def _floats(output: Any) -> list[torch.Tensor]:
    """One that occurs twice counts twice: a program gives it twice."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        parts = [one for name, one in output.items() if name != "past_key_values"]
    else:
        parts = output if isinstance(output, (list, tuple)) else list(getattr(output, "__dict__", {}).values())
    return [tensor for part in parts for tensor in _floats(part)]


def _called(model: Any, given: dict[str, torch.Tensor], mask: torch.Tensor | None = None) -> list[torch.Tensor]:
    if mask is None:
        return _floats(model(**given))
    found = _floats(model(**given, attention_mask=mask))
    return [t[mask == 1] if t.shape[:2] == mask.shape else t for t in found]


def _generated(model: Any, given: dict[str, torch.Tensor], beams: int) -> list[torch.Tensor]:
    torch.manual_seed(7)  # some begin with random tokens (DiffusionGemma)
    options = dict(max_new_tokens=STEPS, do_sample=False, num_beams=beams, eos_token_id=None, pad_token_id=0)
    if model.config.model_type == "diffusion_gemma":  # further steps go on from tokens that are drawn, beside whose bounds rounding decides
        options["max_denoising_steps"] = 1
    made = model.generate(**given, **options, return_dict_in_generate=True, output_logits=beams == 1)
    return [*(made.logits or () if beams == 1 else ()), made.sequences.float()]


def checks(model: Any, which: int) -> Iterator[tuple[str, Callable[[Any], list[torch.Tensor]]]]:
    """which: of the sets of arguments that the class may take."""

    def given(rows: int, step: int = 0) -> dict[str, torch.Tensor]:
        return list(arguments(model, rows, step))[which]

    decoder = 5
    for rows, step in ((2, 0), (3, 1), (1, 14)):
        one = _with_decoder(model, given(rows, step), decoder + step)
        yield f"batch of {rows}, {step} longer", lambda m, one=one: _called(m, one)
    takes = inspect.signature(model.forward).parameters
    ids = given(3).get("input_ids")
    if ids is not None and "attention_mask" in takes:
        one = _with_decoder(model, given(3), decoder)
        yield "padded", lambda m: _called(m, one, _masks(ids))
    if CLASSES[type(model).__name__][0] in GENERATING and model.can_generate():
        yield "generation", lambda m: _generated(m, given(2), 1)
        yield "beams", lambda m: _generated(m, given(2), 3)
        if ids is not None:
            mask = _masks(ids)
            yield "padded generation", lambda m: _generated(m, {**given(3), "attention_mask": mask}, 1)


def make(name: str) -> tuple[Any, int]:
    """A small model that eager PyTorch runs, and which arguments it takes. Raises what the class raises at these sizes."""
    first = None
    shrunk = [lambda one, by=by: _shrunk(one, *by) if by[0] else one for by in _VARIANTS]
    if CLASSES[name][0] in TEXTS:  # many of decoders
        shrunk += [lambda one, by=by: population._shrunk(one, by) for by in population._VARIANTS]
    for one in shrunk:
        try:
            model = _made(name, one)
        except Exception as e:  # whatever the class raises
            first = first or e
            continue
        for which in range(len(list(arguments(model, 1, 0)))):
            try:
                with torch.no_grad():
                    call = next(checks(model, which))[1]
                    call(model)
                    _settle(model, call)
                    found = call(model)
                if found and all(bool(t.isfinite().any() and not t.isnan().any()) for t in found):
                    return model, which
            except Exception as e:  # whatever the class raises
                first = first or e
    raise first or ValueError("no arguments that it takes")


def _settle(model: Any, call: Callable[[Any], Any]) -> None:
    """Batch norms divide by the deviation of what they get, as trained ones do; else values grow from layer to layer, and
    rounding with them."""

    def measured(module: Any, given: tuple[torch.Tensor, ...]) -> None:
        module.running_var.fill_(given[0].square().mean())

    norms = [part for part in model.modules() if isinstance(getattr(part, "running_var", None), torch.Tensor)]
    hooks = [norm.register_forward_pre_hook(measured) for norm in norms]
    call(model)
    for hook in hooks:
        hook.remove()


def compare(name: str, change: Callable[[Any], None] = lambda model: None) -> Result:
    """change: made to the compiled model's twin, for negative controls."""

    taken: list[str] = []

    def made() -> tuple[Any, Callable[[Any], Any]]:
        model, which = make(name)
        taken.extend(list(arguments(model, 2, 0))[which])
        return model, lambda _: checks(model, which)  # with eager PyTorch's arguments: those of texts with pictures are made by the model

    generates = CLASSES[name][0] in GENERATING and getattr(transformers, name).can_generate()
    found = beside_eager(name, made, change, _largest, **({"route": "general"} if generates else {}))
    if found.result == "exact" and CLASSES[name][0] == "pictures to text" and "pixel_values" not in taken:
        found.why = f"of {', '.join(taken)} alone"
    return found


def _largest(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    if [t.shape for t in expected] != [t.shape for t in found]:
        return float("inf")
    largest = 0.0
    for a, b in zip(expected, found):
        if not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        a, b = a[a.isfinite()], b[b.isfinite()]
        if a.numel():
            largest = max(largest, float((a - b).abs().max() / a.abs().max().clamp(min=1e-9)))
    return largest


__all__ = ["CLASSES", "TASKS", "checks", "compare", "make"]
