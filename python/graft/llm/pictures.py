"""From a model of pictures and text to programs, without its weights, and what a package says of its pictures.

`encode_image` is the tower and the projector: the rows of features that stand where a prompt has placeholders.
    pixel_values [N, 3, H, W] -> features [N * rows, width]                                      towers of one size
    pixel_values [N, 3, H, W], valid [N, side, side] -> features [N * rows, width]               crops (Phi-4)
    pixel_values [G, U, patch], positions [G, U, 2], and what the tower asks for besides -> features    patches (Qwen)
`step` is the decoder, as of a model without a tower. `step_with_images` has features besides, where image_mask is true:
    input_ids [B, T], position_ids [B, T] (or [3, B, T]), cache_position [B, T], logits_to_keep [K],
    image_features [B, T, width], image_mask [B, T] -> logits [B, K, V]
Features are 0 where there is no picture. Both have the same cache. Where tokens see each other both ways (Gemma 3,
PaliGemma), `step_with_images` also has blocks [B, T, 2]: the first and the last row of the cache that a token's block has.
Models whose layers attend to pictures (MLlama) have programs of their own: `graft.llm.attended`.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graft.errors import ExportError
from graft.llm import attended, crops, interface, rope
from graft.llm import trace as decoders
from graft.llm.patches import patch_tower
from graft.llm.trace import layers_of, skeleton_of, traced

_FIXED, _TILES, _PATCHES, _CROPS, _CANVAS = "fixed", "tiles", "patches", "crops", "canvas"
#: model_type: how pictures become the tower's input.
FAMILIES = {
    "gemma3": _FIXED,
    "gemma4": _PATCHES,
    "llava": _FIXED,
    "paligemma": _FIXED,
    "phi4_multimodal": _CROPS,
    "idefics3": _TILES,
    "internvl": _TILES,
    "mllama": _CANVAS,
    "smolvlm": _TILES,
    "qwen2_vl": _PATCHES,
    "qwen2_5_vl": _PATCHES,
    "qwen3_vl": _PATCHES,
}
_MOST_PICTURES = 64  # of a call of encode_image
_MOST_GROUPS = 1 << 16


def blocks_of(config: Any) -> str | None:
    """Whose tokens see each other both ways: those of a picture or of a whole prompt."""
    if config.model_type == "gemma4":
        return "picture" if config.get_text_config().use_bidirectional_attention == "vision" else None
    return {"gemma3": "picture", "paligemma": "prompt"}.get(config.model_type)


def token_of(config: Any) -> int:
    """The id of a placeholder."""
    return config.vision_config.image_token_id if config.model_type == "phi4_multimodal" else config.image_token_id


def takes_pictures(model: torch.nn.Module) -> bool:
    return "image" in getattr(type(model), "input_modalities", ()) and hasattr(model.config, "vision_config")


def check(model: torch.nn.Module) -> None:
    """Raises ExportError for a model whose pictures graft does not take."""
    kind = model.config.model_type
    if kind not in FAMILIES:
        raise ExportError(
            f"{type(model).__name__} cannot be exported with its pictures; expected one of "
            f"{', '.join(sorted(FAMILIES))}. text_only=True (--text-only) exports its text part"
        )
    if FAMILIES[kind] == _FIXED and model.config.vision_config.model_type not in _TOWERS:
        raise ExportError(
            f"{type(model).__name__}: expected a tower of {', '.join(_TOWERS)}, found {model.config.vision_config.model_type}"
        )


_TOWERS = ("clip_vision_model", "siglip_vision_model")  # of llava: pictures of one size


@contextlib.contextmanager
def masks_decide(model: Any) -> Iterator[None]:
    """Within it, a model whose prompts see both ways does not say of its attention that it is not causal: that is for
    kernels that get no mask, and what follows a prompt is causal."""
    if blocks_of(model.config) != "prompt":
        yield
        return
    modules = [m for m in model.model.language_model.modules() if getattr(m, "is_causal", None) is False]
    try:
        for module in modules:
            module.is_causal = True
        with interface.whole_blocks():
            yield
    finally:
        for module in modules:
            module.is_causal = False


@dataclass(frozen=True)
class Pictures:
    """The programs that a model of pictures has besides `step`, and what its package says of them."""

    programs: dict[str, ExportedProgram]
    rows: int  # features of one picture of a tower of one size, or of a tile; 0: by the size of the picture
    width: int  # elements of a row of features


def trace(model: torch.nn.Module, *, context: int, size: tuple[int, int] | None) -> Pictures:
    """context: the most tokens of a call. size: of the pictures that a tower of one size takes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    skeleton = skeleton_of(model, mode).eval()
    rope.make_traceable(skeleton)
    kind = type(skeleton)
    config = model.config.get_text_config()
    family = FAMILIES[model.config.model_type]
    if family == _CANVAS:
        names = ("encode_image", "store_image", "step_with_images")
        programs = dict(zip(names, attended.trace(skeleton, context)))
        decoders.check_layers(programs["step_with_images"], config)
        return Pictures(programs, skeleton.model.vision_model.num_patches, config.hidden_size)
    with_grid = family == _PATCHES and model.config.model_type != "gemma4"  # positions of time, row and column
    if family == _PATCHES:
        tower = patch_tower(skeleton)
        forward, example, dims = tower.forward, tower.example(), tower.dims(_MOST_GROUPS)
        depth = tower.depth
    elif family == _CROPS:
        crop_tower = crops.CropTower(skeleton)
        forward, example, dims = crop_tower.forward, crop_tower.example(), crop_tower.dims(_MOST_PICTURES)
        depth = crop_tower.depth
    else:
        assert size is not None
        encode = _encoder(skeleton, size[0])

        def forward(self: torch.nn.Module, pixel_values: torch.Tensor) -> torch.Tensor:
            return encode(pixel_values).flatten(0, 1)

        example = (torch.zeros(2, 3, *size, dtype=torch.float32),)
        dims = ({0: Dim("pictures", min=1, max=_MOST_PICTURES)},)
        depth = 1
    interface.become(skeleton, kind, forward)
    attend = interface.attend_all if family == _CROPS else _both_ways
    with interface.instead(dict.fromkeys(_tower(skeleton).modules(), attend)):
        encoder = traced(skeleton, example, dims)
    found = output_of(encoder)
    width = int(found.shape[1])
    if width != depth * config.hidden_size:
        raise ExportError(f"expected features of {depth} x {config.hidden_size} elements, found {width}")
    rows = 0 if family == _PATCHES else int(found.shape[0]) // 2
    blocks = blocks_of(model.config)
    interface.become(skeleton, kind, decoder_with_features(skeleton, kind, config, depth, blocks))
    step = traced_step(skeleton, context, width, with_grid, blocks is not None)
    decoders.check_layers(step, config)
    return Pictures({"encode_image": encoder, "step_with_images": step}, rows, width)


def output_of(program: ExportedProgram) -> torch.Tensor:
    """The one output of a program, without data."""
    (node,) = next(node for node in reversed(program.graph.nodes) if node.op == "output").args[0]
    found = node.meta["val"]
    sizes = [int(n.node.hint) if isinstance(n, torch.SymInt) else n for n in found.shape]
    return torch.empty(sizes, dtype=found.dtype, device="meta")


def traced_step(
    skeleton: torch.nn.Module, context: int, width: int, with_grid: bool = False, with_blocks: bool = False
) -> ExportedProgram:
    """The program of a skeleton that became a decoder with features of this width."""
    batch, tokens, kept = Dim("batch", min=1), Dim("tokens", min=1, max=context), Dim("kept", min=1, max=context)
    ids = torch.zeros(2, 5, dtype=torch.long)
    positions = torch.zeros(3, 2, 5, dtype=torch.long) if with_grid else ids.clone()
    features, mask = torch.zeros(2, 5, width, dtype=torch.float32), torch.zeros(2, 5, dtype=torch.bool)
    example = [ids, positions, ids.clone(), torch.zeros(3, dtype=torch.long), features, mask]
    rows = {0: batch, 1: tokens}
    dims = [rows, {1: batch, 2: tokens} if with_grid else rows, rows, {0: kept}, rows, rows]
    if with_blocks:
        example.append(torch.zeros(2, 5, 2, dtype=torch.long))
        dims.append(rows)
    return traced(skeleton, tuple(example), tuple(dims))


def decoder_with_features(
    skeleton: Any, kind: Any, config: Any, depth: int = 1, blocks: str | None = None
) -> Callable[..., torch.Tensor]:
    hidden, layers = config.hidden_size, layers_of(config)
    per_layer = getattr(config, "hidden_size_per_layer_input", 0)
    if depth > 1:  # features are 0 beside pictures
        text = skeleton.model.language_model
        text._deepstack_process = lambda states, mask, features: states + features

    def forward(
        self: torch.nn.Module,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache_position: torch.Tensor,
        logits_to_keep: torch.Tensor,
        image_features: torch.Tensor,
        image_mask: torch.Tensor,
        image_blocks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if per_layer:  # those of placeholders are of padding
            input_ids = torch.where(image_mask, config.pad_token_id, input_ids)
        words = self.get_input_embeddings()(input_ids)
        given: dict[str, Any] = dict(
            inputs_embeds=torch.where(image_mask.unsqueeze(-1), image_features[..., :hidden], words),
            position_ids=position_ids,
            past_key_values=interface.no_cache(layers, first_call=blocks is not None),
            use_cache=True,
            return_dict=True,
        )
        if blocks is not None:  # masks of which tokens see each other are made of these, in the model's own code
            name = "mm_token_type_ids" if config.model_type == "gemma4_text" else "token_type_ids"
            given[name] = image_mask.long() if blocks == "picture" else torch.zeros_like(input_ids)
        if per_layer:
            given["per_layer_inputs"] = self.model.language_model.get_per_layer_inputs(input_ids)
        with interface.positions(cache_position, image_blocks):
            if depth == 1 and "logits_to_keep" in inspect.signature(kind.forward).parameters:
                return kind.forward(self, logits_to_keep=logits_to_keep, **given).logits
            if depth == 1:
                return self.lm_head(self.model.language_model(**given).last_hidden_state[:, logits_to_keep])
            deep = [image_features[..., i * hidden : (i + 1) * hidden] for i in range(1, depth)]
            states = text(visual_pos_masks=image_mask, deepstack_visual_embeds=deep, **given).last_hidden_state
            return self.lm_head(states[:, logits_to_keep])

    return forward


def _tower(model: Any) -> torch.nn.Module:
    if FAMILIES[model.config.model_type] == _CROPS:
        return crops.tower_of(model)
    for name in ("vision_tower", "vision_model", "visual"):
        if (found := getattr(model.model, name, None)) is not None:
            return found
    raise ExportError(f"{type(model).__name__}: expected a tower, found none")


def _both_ways(module, query, key, value, mask, scaling, position_bias):
    """There is no padding: tiles and patches are whole pictures."""
    return interface.attend_all(module, query, key, value, None, scaling, None)


def _encoder(model: Any, side: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """From pixels [N, 3, side, side] to features [N, rows, width]."""
    if model.config.model_type == "llava":
        return _llava(model)
    if model.config.model_type in ("gemma3", "internvl", "paligemma"):
        return lambda pixels: model.model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return _idefics(model, side)


def _llava(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    config, inner = model.config, model.model
    chosen = config.vision_feature_layer
    layers = [chosen] if isinstance(chosen, int) else list(chosen)
    if config.vision_feature_select_strategy not in ("default", "full"):
        raise ExportError(
            "expected a vision_feature_select_strategy of 'default' or 'full', found "
            f"'{config.vision_feature_select_strategy}'"
        )
    first = 1 if config.vision_feature_select_strategy == "default" else 0  # without the token for the class

    def encode(pixel_values: torch.Tensor) -> torch.Tensor:
        states = inner.vision_tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        return inner.multi_modal_projector(torch.cat([states[layer][:, first:] for layer in layers], -1))

    return encode


def _idefics(model: Any, tile: int) -> Callable[[torch.Tensor], torch.Tensor]:
    inner = model.model
    embeddings = inner.vision_model.embeddings

    def embed(self: Any, pixel_values: torch.Tensor, patch_attention_mask: torch.Tensor) -> torch.Tensor:
        """Every patch of a tile is there: position i of n of the picture is position i of n of the table."""
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + self.position_embedding(_tile_positions(type(self), model.config.vision_config, tile))

    embeddings.forward = types.MethodType(embed, embeddings)

    def encode(pixel_values: torch.Tensor) -> torch.Tensor:
        return inner.connector(inner.vision_model(pixel_values=pixel_values, return_dict=True).last_hidden_state)

    return encode


def _tile_positions(kind: Any, config: Any, tile: int) -> torch.Tensor:
    """The positions that the model's own code gives the patches of a whole tile [1, patches]."""
    about = types.SimpleNamespace(
        hidden_size=1, image_size=config.image_size, patch_size=config.patch_size, num_channels=1
    )
    found: list[torch.Tensor] = []
    module = kind(about)
    module.position_embedding.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    side = tile // config.patch_size
    kind.forward(module, torch.zeros(1, 1, tile, tile, dtype=torch.float32), torch.ones(1, side, side, dtype=torch.bool))
    return found[0]


__all__ = [
    "FAMILIES", "Pictures", "blocks_of", "check", "decoder_with_features", "masks_decide", "output_of", "takes_pictures",
    "token_of", "trace", "traced_step",
]
