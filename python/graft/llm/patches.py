"""Towers that read patches of pictures of any size (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Gemma 4) as programs of open sizes.

What depends on the picture's grid is an input. The patches come in groups of U: those of one window of the tower, where
it has windows (a group that the picture does not fill has patches that are no part of it, and `valid` is 0 there), else
those that become one row of features.
    pixel_values [G, U, patch], positions [G, U, 2] (row and column of each patch)
    valid [G, U]                                    with windows: 1, or 0 where there is no patch
    table_indices, table_weights [G, U, 4]          with a table of positions: between which of its rows a patch lies
    -> features [G * U / merged, width]
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.export import Dim

from graft.errors import ExportError


def patch_tower(model: Any) -> PatchTower | PooledTower:
    return PooledTower(model) if model.config.model_type == "gemma4" else PatchTower(model)


class PooledTower:
    """Of Gemma 4: a row of features is the mean of a group of patches."""

    depth = 1

    def __init__(self, model: Any) -> None:
        config = model.config.vision_config
        side = config.patch_size
        self.group, self.patch = config.pooling_kernel_size**2, 3 * side**2

        def forward(self, pixel_values, positions):
            tower = self.model.vision_tower
            groups = pixel_values.shape[0]
            # The model has the channels of a pixel side by side, and columns before rows.
            pixels = pixel_values.flatten(0, 1).unflatten(-1, (3, side**2)).transpose(1, 2).flatten(1).unsqueeze(0)
            places = positions.flatten(0, 1).flip(-1).unsqueeze(0)
            padding = torch.zeros_like(places[..., 0], dtype=torch.bool)
            states = tower.patch_embedder(pixels, places, padding)
            states = tower.encoder(inputs_embeds=states, attention_mask=None, pixel_position_ids=places).last_hidden_state
            rows = states.reshape(groups, -1, states.shape[-1]).mean(1) * tower.pooler.root_hidden_size
            if tower.config.standardize:
                rows = (rows - tower.std_bias) * tower.std_scale
            return self.model.embed_vision(inputs_embeds=rows)

        self.forward = forward

    def example(self) -> tuple[torch.Tensor, ...]:
        return (
            torch.zeros(4, self.group, self.patch, dtype=torch.float32),
            torch.zeros(4, self.group, 2, dtype=torch.long),
        )

    def dims(self, most: int) -> tuple[dict[int, Any], ...]:
        groups = Dim("groups", min=1, max=most)
        return ({0: groups}, {0: groups})


class PatchTower:
    """Of a model without weights, which it changes."""

    def __init__(self, model: Any) -> None:
        self.visual = model.model.visual
        config = model.config.vision_config
        self.merged = config.spatial_merge_size**2
        self.window = 0  # side of a window in rows of features
        if hasattr(config, "window_size"):
            self.window = config.window_size // config.spatial_merge_size // config.patch_size
            if self.window < 1:
                raise ExportError(f"expected windows of a patch or more, found {config.window_size} pixels")
        self.group = self.merged * max(self.window**2, 1)
        self.has_table = hasattr(self.visual, "pos_embed")
        self.deep = list(getattr(config, "deepstack_visual_indexes", None) or [])
        self.depth = 1 + len(self.deep)
        self.whole = set(getattr(config, "fullatt_block_indexes", ()) or ())
        self.patch = getattr(config, "in_channels", 3) * config.temporal_patch_size * config.patch_size**2
        for block in self.visual.blocks:
            block.attn.forward = types.MethodType(_attend, block.attn)
        tower = self

        if self.window:

            def forward(self, pixel_values, positions, valid):
                return tower.encode(pixel_values, positions, valid=valid)

        elif self.has_table:

            def forward(self, pixel_values, positions, table_indices, table_weights):
                return tower.encode(pixel_values, positions, table=(table_indices, table_weights))

        else:

            def forward(self, pixel_values, positions):
                return tower.encode(pixel_values, positions)

        self.forward = forward

    def example(self) -> tuple[torch.Tensor, ...]:
        groups, size, f32 = 3, self.group, torch.float32
        given = [torch.zeros(groups, size, self.patch, dtype=f32), torch.zeros(groups, size, 2, dtype=torch.long)]
        if self.window:
            given.append(torch.ones(groups, size, dtype=torch.bool))
        if self.has_table:
            given += [torch.zeros(groups, size, 4, dtype=torch.long), torch.zeros(groups, size, 4, dtype=f32)]
        return tuple(given)

    def dims(self, most: int) -> tuple[dict[int, Any], ...]:
        groups = Dim("groups", min=1, max=most)
        return tuple({0: groups} for _ in self.example())

    def encode(self, pixels, positions, valid=None, table=None) -> torch.Tensor:
        visual = self.visual
        projection = visual.patch_embed.proj  # a convolution whose kernel is the whole patch
        states = torch.nn.functional.linear(pixels.flatten(0, 1), projection.weight.flatten(1), projection.bias)
        if table is not None:
            indices, weights = (part.flatten(0, 1) for part in table)
            states = states + (visual.pos_embed(indices) * weights.unsqueeze(-1)).sum(1)
        turned = visual.rotary_pos_emb(states, positions.flatten(0, 1))
        unseen = None if valid is None else torch.where(valid, 0.0, -torch.inf)  # [G, U]
        features = []
        for i, block in enumerate(visual.blocks):
            windows = unseen is not None and i not in self.whole
            states = block(states, cu_seqlens=(self.group if windows else 0, unseen), position_embeddings=turned)
            if i in self.deep:
                features.append(visual.deepstack_merger_list[self.deep.index(i)](states))
        return torch.cat([visual.merger(states), *features], -1)


def _attend(self, hidden_states, cu_seqlens, position_embeddings, **_):
    """Over all patches, or window by window. cu_seqlens: patches of a window (0: no windows), and what is added to scores
    [G, U]."""
    window, unseen = cu_seqlens
    count = hidden_states.shape[0]
    query, key, value = self.qkv(hidden_states).reshape(count, 3, self.num_heads, -1).unbind(1)
    turn = type(self).forward.__globals__["apply_rotary_pos_emb_vision"]
    query, key = turn(query, key, *position_embeddings)
    sides = (-1, window) if window else (1, count)
    query, key, value = (part.reshape(*sides, *part.shape[1:]).transpose(1, 2) for part in (query, key, value))
    mask = None if unseen is None else unseen.reshape(sides)[:, None, None, :]
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self.scaling)
    return self.proj(found.transpose(1, 2).reshape(count, -1))


__all__ = ["PatchTower", "PooledTower", "patch_tower"]
