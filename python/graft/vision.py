"""Models of pictures: packages that know how a picture becomes their input, and what makes it so without Python."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from graft import _C
from graft.errors import ExportError

__all__ = ["ImageProcessor", "export_image_model", "load_image"]

_KEY = "graft.image_processor.json"
# Classes of transformers, without "Fast" or "Pil" at the end, that resize, crop, rescale and normalize, in this order.
_KNOWN = {
    f"{name}ImageProcessor"
    for name in (
        *("Beit", "Bit", "CLIP", "ConvNext", "DeiT", "DINOv3ViT", "MobileNetV1", "MobileNetV2", "Pvt", "Siglip", "ViT"),
        *("ChineseCLIP", "Gemma3", "Llava"),
    )
}
# What they may be asked for besides; an image processor that does more than these is refused.
_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"}
_OUTPUTS = "logits", "image_embeds", "pooler_output", "last_hidden_state"


def load_image(path: str | os.PathLike[str]) -> np.ndarray:
    """The pixels [H, W, 3] in u8 of a PNG, JPEG or BMP file. Raises `graft.NotFound`, and `graft.InvalidArgument` for
    another or a damaged file."""
    pixels, height, width = _C.load_image(os.fspath(path))
    return np.frombuffer(pixels, dtype=np.uint8).reshape(height, width, 3)


#: A file of PNG, JPEG or BMP, or pixels [H, W, 3] in u8.
Picture: TypeAlias = "str | os.PathLike[str] | np.ndarray"


def pixels_of(image: Picture) -> tuple[bytes, int, int]:
    """Pixels [H, W, 3] in u8, H and W."""
    if isinstance(image, (str, os.PathLike)):
        return _C.load_image(os.fspath(image))
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"expected pixels [H, W, 3] in u8, found {list(image.shape)} in {image.dtype}")
    return np.ascontiguousarray(image).tobytes(), *image.shape[:2]


class ImageProcessor:
    """What a package's model takes of a picture, as the image processor of transformers that it was exported with.

    processor = graft.ImageProcessor("vit.pte")
    pixels = processor("cat.jpg")  # [3, H, W] in f32
    """

    def __init__(self, package: str | os.PathLike[str]) -> None:
        """Raises `graft.InvalidArgument` for a package that `graft.export_image_model` did not write."""
        self._processor: Any = _C.ImageProcessor.load(os.fspath(package))

    def __call__(self, image: Picture) -> np.ndarray:
        """image: a file of PNG, JPEG or BMP, or pixels [H, W, 3] in u8. Returns [3, H, W] in f32."""
        found, rows, columns = self._processor.pixels(*pixels_of(image))
        return np.frombuffer(found, dtype=np.float32).reshape(3, rows, columns)

    @property
    def labels(self) -> list[str]:
        """Names of the model's classes; none where it has none."""
        return self._processor.labels


def export_image_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    processor: Any = None,
    quantize: str | None = None,
) -> Path:
    """Writes a model of pictures as a package for `graft batch`, with how its processor makes pictures its input.

        graft.export_image_model("google/vit-base-patch16-224", "vit.pte")
        graft batch vit.pte pictures/ -o classes --task classify

    model: a folder or name on the Hugging Face hub, or a transformers model with pixel_values [B, 3, H, W] as its input.
        One for classes of pictures has its logits [B, classes] as output, another its image_embeds, pooler_output or
        last_hidden_state, the first that it has.
    path: of the package, ending in .pte.
    processor: the image processor of a model that is no folder or name.
    quantize: as in `graft.export`.

    Raises `graft.ExportError` for a processor that does more than resize, crop, rescale and normalize, or gives pictures
    of no fixed size; and what `graft.export` raises.
    """
    import torch
    import transformers

    from graft.exporter import torch_export
    from graft.exporter.export import export_for_load

    if isinstance(model, (str, os.PathLike)):
        folder = os.fspath(model)
        processor = processor or transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        config = transformers.AutoConfig.from_pretrained(folder)
        classes = any(name.endswith("ForImageClassification") for name in config.architectures or [])
        auto = transformers.AutoModelForImageClassification if classes else transformers.AutoModel
        model = auto.from_pretrained(folder)
    if processor is None:
        raise ExportError("expected the processor of a model that is no folder or name, found none")
    settings = settings_of(processor)
    size = settings.get("crop") or settings.get("size")
    if size is None:
        raise ExportError(
            f"expected a processor that gives pictures of one size, found {type(processor).__name__} without a crop"
        )
    model = model.eval().float()
    if getattr(model.config, "num_labels", 0) and "ForImageClassification" in type(model).__name__:
        names = model.config.id2label
        settings["labels"] = [names[i] for i in range(len(names))]
    pixels = torch.zeros(2, 3, *size, dtype=torch.float32)
    rows = torch.export.Dim("rows", min=1, max=64)
    program = torch_export.export(_with_one_output(model), (pixels,), dynamic_shapes=({0: rows},))
    return export_for_load(program, Path(path), quantize=quantize, data={_KEY: json.dumps(settings).encode()})


def _with_one_output(model: Any) -> Any:
    import torch

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            found = self.model(pixel_values=pixel_values, return_dict=True)
            return next(found[name] for name in _OUTPUTS if found.get(name) is not None)

    return FirstOutput().eval()


def settings_of(processor: Any) -> dict[str, Any]:
    """Of an image processor of transformers, as `ImageProcessing` of graft/image.h."""
    about = processor.to_dict()
    kind = type(processor).__name__.removesuffix("Fast").removesuffix("Pil")
    if kind not in _KNOWN:
        raise ExportError(f"expected one of {', '.join(sorted(_KNOWN))}, found {type(processor).__name__}")
    more = sorted(name for name, on in about.items() if name.startswith("do_") and on is True and name not in _STEPS)
    if more:
        raise ExportError(f"expected a processor that does {', '.join(sorted(_STEPS))} at most, found {', '.join(more)}")
    out: dict[str, Any] = {"resample": 2, "rescale_factor": 1, "mean": [0, 0, 0], "std": [1, 1, 1], "labels": []}
    if about.get("do_resize"):
        out["resample"] = int(about["resample"])
        size, crop_pct = about["size"], about.get("crop_pct")
        if kind == "ConvNextImageProcessor":
            edge = size["shortest_edge"]
            if edge >= 384:
                out["size"] = [edge, edge]
            else:
                out["shortest_edge"], out["crop"] = int(edge / crop_pct), [edge, edge]
        elif set(size) == {"height", "width"}:
            out["size"] = [size["height"], size["width"]]
        elif set(size) == {"shortest_edge"}:
            out["shortest_edge"] = size["shortest_edge"]
        else:
            raise ExportError(f"expected a size of height and width, or of shortest_edge, found {dict(size)}")
    if about.get("do_center_crop"):
        out["crop"] = [about["crop_size"]["height"], about["crop_size"]["width"]]
    if about.get("do_rescale"):
        out["rescale_factor"] = about["rescale_factor"]
    if about.get("do_normalize"):
        out["mean"], out["std"] = list(about["image_mean"]), list(about["image_std"])
    return out
