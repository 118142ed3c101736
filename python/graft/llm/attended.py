"""Pictures that layers of a decoder attend to (MLlama), as programs.

Such layers have no keys and values of tokens: theirs are of the pictures' features, which lie beside a sequence. The
tower takes the tiles of a canvas, of which those behind the picture's last one are empty.
`encode_image`: pixel_values [1, tiles, 3, H, W], shape [1, 1] (number of the canvas), valid [1, tiles]
    -> features [tiles * rows, width]
`store_image` leaves their keys and values in the cache: features [1, rows, width] of a tile, position [1, rows]: the first
    one is any up to what there is -> rows
`step_with_images` is `step` with the inputs ranges [B, T, 2], the first and the last row that a token sees (0 and -1: none),
    and image_mask [B, T]: false where no picture was named before the token, whose feed-forward part is then left out.
`step` is without these layers: so is a sequence without pictures.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from graft.errors import ExportError
from graft.llm import interface, ops
from graft.llm.trace import layers_of, source_layers, traced


def shapes(tiles: int) -> list[list[int]]:
    """Of canvases of up to so many tiles, rows and columns: what the number of a canvas means."""
    return [[r, c] for r in range(1, tiles + 1) for c in range(1, tiles + 1) if r * c <= tiles]


def check(model: Any) -> None:
    config = model.config.vision_config
    if config.supported_aspect_ratios != shapes(config.max_num_tiles):
        raise ExportError(
            f"expected a tower that takes all canvases of up to {config.max_num_tiles} tiles, found "
            f"supported_aspect_ratios {config.supported_aspect_ratios}"
        )


def trace(skeleton: Any, context: int) -> tuple[ExportedProgram, ExportedProgram, ExportedProgram]:
    """encode_image, store_image and step_with_images of a model without weights, which it changes."""
    check(skeleton)
    kind, config = type(skeleton), skeleton.config.get_text_config()
    tower = skeleton.model.vision_model
    side, tiles = tower.image_size, tower.max_num_tiles

    def encode(
        self: Any, pixel_values: torch.Tensor, shape: torch.Tensor, valid: torch.Tensor
    ) -> torch.Tensor:
        seen = self.model.vision_model(
            pixel_values=pixel_values.unsqueeze(1), aspect_ratio_ids=shape, aspect_ratio_mask=valid.unsqueeze(1)
        ).last_hidden_state
        return self.model.multi_modal_projector(seen).reshape(-1, config.hidden_size)

    interface.become(skeleton, kind, encode)
    example = (
        torch.zeros(1, tiles, 3, side, side, dtype=torch.float32),
        torch.ones(1, 1, dtype=torch.long),
        torch.ones(1, tiles, dtype=torch.long),
    )
    with interface.instead(dict.fromkeys(tower.modules(), interface.attend_all)):
        encoder = traced(skeleton, example, ({}, {}, {}))

    layers = source_layers(config)
    crossing = {i: skeleton.model.language_model.layers[i].cross_attn for i in layers}
    kv_heads: dict[int, int] = {}

    def store(self: Any, features: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        stored = position

        def keep(module, query, key, value, *_):
            nonlocal stored
            kv_heads[module.layer_idx] = key.shape[1]
            stored = ops.store_source(key, value, stored, layer=module.layer_idx, append=True)
            return query.transpose(1, 2)

        nobody = torch.zeros(1, 1, config.hidden_size, dtype=torch.float32)
        with interface.instead(dict.fromkeys(crossing.values(), keep)):
            for module in crossing.values():
                module(nobody, cross_attention_states=features)
        return (stored >= 0).sum(1)

    interface.become(skeleton, kind, store)
    rows = tower.num_patches
    example = (torch.zeros(1, rows, config.hidden_size, dtype=torch.float32), torch.zeros(1, rows, dtype=torch.long))
    storing = traced(skeleton, example, ({}, {}))

    def step(
        self: Any,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache_position: torch.Tensor,
        logits_to_keep: torch.Tensor,
        ranges: torch.Tensor,
        image_mask: torch.Tensor,
    ) -> torch.Tensor:
        def attend(module, query, key, value, mask, scaling, *_):
            layer = module.layer_idx
            return ops.source_attention(query, ranges=ranges, layer=layer, kv_heads=kv_heads[layer], scale=scaling)

        heads = next(iter(kv_heads.values()))
        stand_in = torch.zeros(1, heads, 1, next(iter(crossing.values())).head_dim, dtype=torch.float32)
        with interface.positions(cache_position), interface.instead(dict.fromkeys(crossing.values(), attend)):
            states = self.model.language_model(
                input_ids=input_ids,
                position_ids=position_ids,
                full_text_row_masked_out_mask=image_mask[:, None, :, None].to(torch.float32),
                past_key_values=interface.no_cache(layers_of(config), sources=layers, stand_in=stand_in),
                use_cache=True,
            ).last_hidden_state
        return self.lm_head(states[:, logits_to_keep])

    interface.become(skeleton, kind, step)
    batch, tokens, kept = Dim("batch", min=1), Dim("tokens", min=1, max=context), Dim("kept", min=1, max=context)
    ids, by_token = torch.zeros(2, 5, dtype=torch.long), {0: batch, 1: tokens}
    example = (
        ids, ids.clone(), ids.clone(), torch.zeros(3, dtype=torch.long), torch.zeros(2, 5, 2, dtype=torch.long),
        torch.zeros(2, 5, dtype=torch.bool),
    )  # fmt: skip
    dims = (by_token, by_token, by_token, {0: kept}, by_token, by_token)
    return encoder, storing, traced(skeleton, example, dims)


__all__ = ["check", "shapes", "trace"]
