"""The tower of Phi-4 multimodal, which sees pictures in crops of one size, as a program.

    pixel_values [N, 3, crop, crop], valid [N, side, side] -> features [N * rows, width]
valid is 0 for patches behind the picture. Rows are those of a crop's pairs of patches, then two that every crop has, and that stand once for all in a prompt: what
ends each row of a picture, and what stands between its crops and the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim

from graft.errors import ExportError

SIDE = 32  # patches along the side of a crop: Phi4MultimodalImageProcessor counts the rows of no other
# Of Phi4MultimodalImageProcessor, where its settings are not in the file.
_DEFAULTS: dict[str, Any] = {
    "size": {"height": 448, "width": 448},
    "patch_size": 14,
    "dynamic_hd": 36,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_BICUBIC = 3  # of the picture as a whole


def tower_of(model: Any) -> torch.nn.Module:
    return model.model.embed_tokens_extend.image_embed.img_processor


class CropTower:
    """Of a model without weights, which it changes."""

    depth = 1

    def __init__(self, model: Any) -> None:
        self.crop = model.config.vision_config.crop_size
        embed = model.model.embed_tokens_extend.image_embed
        embed.img_processor.head = _Unused()

        def forward(self: Any, pixel_values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            found = embed.get_img_features(pixel_values, attention_mask=valid)
            ends = torch.cat([embed.sub_img_feature_extensor.flatten(0, 1), embed.global_img_feature_extensor], 1)
            rows = torch.cat([found, ends.expand(found.shape[0], -1, -1)], 1).flatten(0, 1)
            return embed.img_projection_down(torch.nn.functional.gelu(embed.img_projection_up(rows)))

        self.forward = forward

    def example(self) -> tuple[torch.Tensor, ...]:
        pixels = torch.zeros(2, 3, self.crop, self.crop, dtype=torch.float32)
        return pixels, torch.ones(2, SIDE, SIDE, dtype=torch.bool)

    def dims(self, most: int) -> tuple[dict[int, Any], ...]:
        pictures = Dim("pictures", min=1, max=most)
        return {0: pictures}, {0: pictures}


class _Unused(torch.nn.Module):
    """In the place of the head that pools a whole picture: features are of a layer before it."""

    def forward(self, hidden_state: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return hidden_state[:, 0]


def settings_of(config: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a package says of its crops, and all settings of its processor. given: those that transformers writes."""
    about, vision = {**_DEFAULTS, **given}, config.vision_config
    kind = str(about.get("image_processor_type", "Phi4MultimodalImageProcessor")).removesuffix("Fast")
    if kind != "Phi4MultimodalImageProcessor":
        raise ExportError(f"expected a Phi4MultimodalImageProcessor, found {kind}")
    size = about["size"]
    sides = [size.get("height"), size.get("width"), vision.image_size]
    if sides != [vision.crop_size] * 3:
        raise ExportError(
            f"expected a processor and a tower of crops of {vision.crop_size} x {vision.crop_size}, found "
            f"{sides[0]} x {sides[1]} and {sides[2]}"
        )
    if about["patch_size"] != vision.patch_size:
        raise ExportError(
            f"expected a processor with patch_size {vision.patch_size}, as the model's tower, found "
            f"{about['patch_size']}"
        )
    if vision.crop_size != SIDE * vision.patch_size:
        raise ExportError(
            f"expected crops of {SIDE} x {SIDE} patches, found {vision.crop_size} pixels in patches of "
            f"{vision.patch_size}"
        )
    if about["resample"] != _BICUBIC:
        raise ExportError(f"expected a processor with resample {_BICUBIC}, bicubic, found {about['resample']}")
    crops = {"crop_size": vision.crop_size, "patch_size": vision.patch_size, "max_crops": about["dynamic_hd"]}
    return {"kind": "crops", **crops}, about


__all__ = ["SIDE", "CropTower", "settings_of", "tower_of"]
