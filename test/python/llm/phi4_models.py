"""A small Phi-4 multimodal with random weights, and its processors of transformers."""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import PIL.Image
import torch
import transformers
from transformers import image_processing_backends as backends
from transformers.utils import is_torchvision_available

CROP, PATCH, CROPS = 128, 4, 6  # 32 patches along the side of a crop, as the model's processor expects
CONTEXT = 4096


def config(text: dict[str, Any], image_token: int, audio_token: int) -> transformers.Phi4MultimodalConfig:
    factors = text["head_dim"] // 2
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0,
        "short_factor": [1 + i / 10 for i in range(factors)], "long_factor": [2.0 + i for i in range(factors)],
    }  # fmt: skip
    sizes = dict(hidden_size=48, intermediate_size=64, num_attention_heads=4)
    return transformers.Phi4MultimodalConfig(
        **{**text, "max_position_embeddings": CONTEXT, "original_max_position_embeddings": 1024, "rope_parameters": rope},
        vision_config=dict(
            **sizes, num_hidden_layers=3, image_size=CROP, crop_size=CROP, patch_size=PATCH, image_token_id=image_token
        ),
        audio_config=dict(
            hidden_size=32, intermediate_size=48, num_blocks=3, num_attention_heads=4, ext_pw_out_channel=32,
            depthwise_separable_out_channel=32, nemo_conv_channels=8, bias_max_distance=10, audio_token_id=audio_token,
        ),
    )  # fmt: skip


# Of torchvision the processor uses this alone, and none of its compiled operators.


class _Interpolation(enum.Enum):
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


def _resize(
    image: torch.Tensor, size: Sequence[int], interpolation: Any = _Interpolation.BILINEAR, antialias: bool = True
) -> torch.Tensor:
    if list(image.shape[-2:]) == list(size):
        return image
    mode = dict(mode=interpolation.value, align_corners=False, antialias=antialias)
    return torch.nn.functional.interpolate(image[None], size=list(size), **mode)[0]


def _pad(image: torch.Tensor, padding: Sequence[int], fill: Sequence[int]) -> torch.Tensor:
    left, top, right, bottom = padding
    assert len(set(fill)) == 1
    return torch.nn.functional.pad(image, (left, right, top, bottom), value=fill[0])


def _normalize(image: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    mean, std = (torch.as_tensor(part, dtype=torch.float32).view(-1, 1, 1) for part in (mean, std))
    return (image - mean) / std


@contextlib.contextmanager
def _torchvision() -> Iterator[None]:
    """Its functions for tensors, where it is not installed. Wheels of it fit one build of PyTorch each."""
    if is_torchvision_available():
        yield
        return
    functions = types.SimpleNamespace(InterpolationMode=_Interpolation, resize=_resize, pad=_pad, normalize=_normalize)
    modules = {
        name: types.ModuleType(name) for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    }
    modules["torchvision.transforms.v2"].functional = functions  # type: ignore[attr-defined]
    by_number = {2: _Interpolation.BILINEAR, 3: _Interpolation.BICUBIC}
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(backends, "tvF", functions, create=True),
        mock.patch.object(backends, "pil_torch_interpolation_mapping", by_number),
    ):
        yield


def image_processor(**settings: Any) -> Any:
    with _torchvision():
        module = importlib.import_module("transformers.models.phi4_multimodal.image_processing_phi4_multimodal")
        given = dict(size={"height": CROP, "width": CROP}, patch_size=PATCH, dynamic_hd=CROPS)
        return module.Phi4MultimodalImageProcessor(**{**given, **settings})


def extractor(**settings: Any) -> Any:
    return transformers.Phi4MultimodalFeatureExtractor(**settings)


class Files:
    """The settings of both, in one file as the checkpoint has them."""

    def save_pretrained(self, folder: Path) -> None:
        settings = {**image_processor().to_dict(), **extractor().to_dict()}
        settings["image_processor_type"] = "Phi4MultimodalImageProcessor"
        settings = {name: value for name, value in settings.items() if name != "mel_filters"}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings, default=str))


class Processor:
    """What Phi4MultimodalProcessor makes of a text and pictures or sounds at 16 kHz."""

    def __init__(self, folder: Path, about: Any) -> None:
        self.images = self.image_processor = image_processor()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.config = about
        self.image_token = self.tokenizer.decode([about.vision_config.image_token_id])
        self.audio_processor = extractor()
        self.audio_token = self.tokenizer.decode([about.audio_config.audio_token_id])

    def prepared(self, pictures: Sequence[np.ndarray]) -> dict[str, Any]:
        if not pictures:
            return {}
        with _torchvision():
            return dict(self.images(images=[PIL.Image.fromarray(image) for image in pictures], return_tensors="pt"))

    def __call__(self, text: str, pictures: Sequence[np.ndarray] = ()) -> dict[str, torch.Tensor]:
        given = self.prepared(pictures)
        counts = given.pop("num_img_tokens", [])
        return dict(given, **self._ids(text, self.image_token, counts))

    def _ids(self, text: str, token: str, counts: Sequence[int]) -> dict[str, torch.Tensor]:
        parts = text.split(token)
        assert len(parts) == len(counts) + 1
        whole = "".join(part + token * int(count) for part, count in zip(parts, [*counts, 0]))
        ids = torch.tensor([self.tokenizer(whole)["input_ids"]])
        return dict(input_ids=ids, attention_mask=torch.ones_like(ids))

    def heard(self, sounds: Sequence[np.ndarray]) -> dict[str, Any]:
        return dict(self.audio_processor(list(sounds), sampling_rate=16000, return_tensors="pt")) if sounds else {}

    def with_sounds(self, text: str, sounds: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        given = self.heard(sounds)
        return dict(given, **self._ids(text, self.audio_token, given.get("audio_embed_sizes", [])))

    def features(self, model: Any, given: dict[str, Any]) -> torch.Tensor:
        """Of all pictures [rows, width], as the model puts them in the place of tokens."""
        ids = torch.full((1, int(sum(given["num_img_tokens"]))), self.config.vision_config.image_token_id)
        parts = {name: value for name, value in given.items() if name != "num_img_tokens"}
        embed = model.model.embed_tokens_extend.image_embed
        with torch.no_grad():
            return embed(ids, torch.zeros(*ids.shape, self.config.hidden_size), **parts)[0]
