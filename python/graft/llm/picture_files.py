"""What a package says of its pictures: how a processor of transformers prepares them, and what stands for them in a prompt."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft import vision
from graft.errors import ExportError
from graft.llm import crops
from graft.llm.checkpoint import Checkpoint
from graft.llm.formats import text_files
from graft.llm.pictures import FAMILIES, Pictures, blocks_of, token_of

_LARGEST_EDGE = 4096  # of Idefics3's processor, whatever its settings say
_TILED = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
_COUNTED = ("GotOcr2ImageProcessor",)  # of InternVL: as many tiles as fit the picture's shape best
_PATCHED = ("Qwen2VLImageProcessor",)
_POOLED = ("Gemma4ImageProcessor",)
_CANVAS = ("MllamaImageProcessor",)


@dataclass(frozen=True)
class Preparation:
    """How a model's processor prepares pictures. size: of what a tower of one size takes."""

    settings: dict[str, Any]
    size: tuple[int, int] | None


def preparation(checkpoint: Checkpoint, processor: Any) -> Preparation:
    """processor: of a model in memory, whose tokenizer then becomes the package's; of a folder its own is read. Raises
    ExportError for a processor that does other steps than graft."""
    import transformers

    kind = type(checkpoint.model).__name__
    family = FAMILIES[checkpoint.model.config.model_type]
    if family == "crops" and processor is None and checkpoint.folder is not None:
        return _crops(checkpoint, own_settings(checkpoint.folder, "image_processor"))
    if processor is None and checkpoint.folder is not None:
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(checkpoint.folder, backend="pil")
        except (OSError, ValueError, ImportError) as e:
            raise ExportError(f"'{checkpoint.name}' has no image processor that transformers reads: {e}") from e
    if processor is None:
        raise ExportError(
            f"expected the processor of a {kind} in memory (processor=), or text_only=True for its text part alone"
        )
    take_tokenizer(checkpoint, processor)
    images = getattr(processor, "image_processor", processor)
    about = images.to_dict()
    if family == "crops":
        return _crops(checkpoint, about)
    if family == "fixed":
        settings = vision.settings_of(images)
        settings.pop("labels")
        size = settings.get("crop") or settings.get("size")
        if size is None:
            raise ExportError(f"expected a processor that gives pictures of one size, found {type(images).__name__}")
        _expect_side(checkpoint, size)
        return Preparation({"kind": "fixed", **settings}, (size[0], size[1]))
    if checkpoint.model.config.model_type == "internvl":
        return _counted_tiles(checkpoint, images, about)
    if family == "tiles":
        return _tiles(checkpoint, images, about)
    if family == "canvas":
        return Preparation(_canvas(checkpoint, images, about), None)
    patches = _pooled_patches if checkpoint.model.config.model_type == "gemma4" else _patches
    return Preparation(patches(checkpoint, images, about), None)


def own_settings(folder: Path, part: str) -> dict[str, Any]:
    """Of a part of a folder's processor, without the packages that it needs to run."""
    if (file := folder / "processor_config.json").exists():
        if nested := json.loads(file.read_bytes()).get(part):
            return nested
    if (file := folder / "preprocessor_config.json").exists():
        return json.loads(file.read_bytes())
    raise ExportError(f"'{folder}' has no {part}: expected a preprocessor_config.json")


def _crops(checkpoint: Checkpoint, given: Mapping[str, Any]) -> Preparation:
    settings, about = crops.settings_of(checkpoint.model.config, given)
    return Preparation({**settings, **_plain(about)}, None)


def take_tokenizer(checkpoint: Checkpoint, processor: Any) -> None:
    """A processor's tokenizer and chat template become the package's."""
    if (tokenizer := getattr(processor, "tokenizer", None)) is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        given = text_files(Path(folder))
    if template := getattr(processor, "chat_template", None):
        config = {**json.loads(given.get("tokenizer_config.json", b"{}")), "chat_template": template}
        given["tokenizer_config.json"] = json.dumps(config, ensure_ascii=False).encode()
    checkpoint.files.update(given)


def _expect_side(checkpoint: Checkpoint, size: list[int]) -> None:
    side = checkpoint.model.config.vision_config.image_size
    sides = [side, side] if isinstance(side, int) else list(side)
    if list(size) != sides or sides[0] != sides[1]:
        raise ExportError(
            f"expected a processor that gives square pictures of {sides[0]} x {sides[1]}, found {size[0]} x {size[1]}"
        )


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"resample": int(about["resample"]), "rescale_factor": 1, "mean": [0, 0, 0], "std": [1, 1, 1]}
    if about.get("do_rescale"):
        out["rescale_factor"] = about["rescale_factor"]
    if about.get("do_normalize"):
        out["mean"], out["std"] = list(about["image_mean"]), list(about["image_std"])
    return out


def _known(images: Any, about: Mapping[str, Any], names: tuple[str, ...]) -> None:
    name = type(images).__name__
    if name.removesuffix("Fast").removesuffix("Pil") not in names:
        raise ExportError(f"expected one of {', '.join(names)}, found {name}")
    if not about.get("do_resize"):
        raise ExportError(f"expected a {name} that resizes, found do_resize={about.get('do_resize')}")


def _tiles(checkpoint: Checkpoint, images: Any, about: Mapping[str, Any]) -> Preparation:
    _known(images, about, _TILED)
    size, tile = dict(about["size"]), about["max_image_size"]["longest_edge"]
    if {name for name, value in size.items() if value} != {"longest_edge"}:
        raise ExportError(f"expected a size of longest_edge, found {size}")
    most = math.ceil(min(size["longest_edge"], _LARGEST_EDGE) / tile)
    places = [
        (int(found[1]), int(found[2]))
        for content in added_tokens(checkpoint).values()
        if (found := re.fullmatch(r"<row_(\d+)_col_(\d+)>", content))
    ]
    rows, columns = (max(p[i] for p in places) for i in range(2)) if places else (most, most)
    settings = {
        "kind": "tiles",
        "longest_edge": size["longest_edge"],
        "largest_edge": _LARGEST_EDGE,
        "tile": tile,
        "split": bool(about["do_image_splitting"]),
        "max_rows": rows,
        "max_columns": columns,
        **_plain(about),
    }
    return Preparation(settings, (tile, tile))


def _counted_tiles(checkpoint: Checkpoint, images: Any, about: Mapping[str, Any]) -> Preparation:
    """InternVLProcessor has crop_to_patches, whatever its image processor says."""
    _known(images, about, _COUNTED)
    side = about["size"]["height"]
    _expect_side(checkpoint, [side, about["size"]["width"]])
    tiles = {"min_tiles": about["min_patches"], "max_tiles": about["max_patches"]}
    return Preparation({"kind": "tiles", "tile": side, **tiles, **_plain(about)}, (side, side))


def _expect_sizes(about: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for name, value in sizes.items():
        if about[name] != value:
            raise ExportError(f"expected a processor with {name} {value}, as the model's tower, found {about[name]}")


def _canvas(checkpoint: Checkpoint, images: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    _known(images, about, _CANVAS)
    config = checkpoint.model.config.vision_config
    _expect_side(checkpoint, [about["size"]["height"], about["size"]["width"]])
    if about["max_image_tiles"] != config.max_num_tiles:
        raise ExportError(
            f"expected a processor with max_image_tiles {config.max_num_tiles}, as the model's tower, found "
            f"{about['max_image_tiles']}"
        )
    return {"kind": "canvas", "tile": config.image_size, "max_tiles": config.max_num_tiles, **_plain(about)}


def _pooled_patches(checkpoint: Checkpoint, images: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    _known(images, about, _POOLED)
    config = checkpoint.model.config.vision_config
    _expect_sizes(about, {name: getattr(config, name) for name in ("patch_size", "pooling_kernel_size")})
    return {
        "kind": "patches",
        "patch_size": config.patch_size,
        "merge_size": config.pooling_kernel_size,
        "temporal_patch_size": 1,
        "max_patches": about["max_soft_tokens"] * config.pooling_kernel_size**2,
        "window": 0,
        "table": 0,
        **_plain(about),
    }


def _patches(checkpoint: Checkpoint, images: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    _known(images, about, _PATCHED)
    config, size = checkpoint.model.config.vision_config, dict(about["size"])
    if not size.get("shortest_edge") or not size.get("longest_edge"):
        raise ExportError(f"expected a size of shortest_edge and longest_edge, found {size}")
    sizes = {"patch_size": config.patch_size, "merge_size": config.spatial_merge_size}
    sizes["temporal_patch_size"] = config.temporal_patch_size
    _expect_sizes(about, sizes)
    visual = checkpoint.model.model.visual
    table = 0
    if hasattr(visual, "pos_embed"):
        table = visual.num_grid_per_side
        if (visual.interpolation_mode, visual.interpolation_align_corners) != ("bilinear", True):
            raise ExportError(
                "expected a table of positions that is interpolated bilinearly with aligned corners, found "
                f"{visual.interpolation_mode}, {visual.interpolation_align_corners}"
            )
    window = getattr(config, "window_size", 0) // config.spatial_merge_size // config.patch_size
    return {
        "kind": "patches",
        **sizes,
        "min_pixels": size["shortest_edge"],
        "max_pixels": size["longest_edge"],
        "window": window,
        "table": table,
        **_plain(about),
    }


def added_tokens(checkpoint: Checkpoint) -> dict[int, str]:
    """Of tokenizer.json, by id."""
    tokens = json.loads(checkpoint.files.get("tokenizer.json", b"{}")).get("added_tokens") or []
    return {token["id"]: token["content"] for token in tokens}


def without_places(checkpoint: Checkpoint, vocabulary: int) -> None:
    """Of a text part, the tokens for pictures that have no logit (MLlama) leave the tokenizer: no prompt has them."""
    content = json.loads(checkpoint.files.get("tokenizer.json", b"{}"))
    added = content.get("added_tokens") or []
    if kept := [token for token in added if token["id"] < vocabulary]:
        if len(kept) < len(added):
            checkpoint.files["tokenizer.json"] = json.dumps({**content, "added_tokens": kept}, ensure_ascii=False).encode()


def _special(checkpoint: Checkpoint, name: str, otherwise: str) -> str:
    """A special token of tokenizer_config.json."""
    given = json.loads(checkpoint.files.get("tokenizer_config.json", b"{}"))
    more = given.get("extra_special_tokens")
    token = given.get(name) or (more.get(name) if isinstance(more, dict) else None) or otherwise
    return token["content"] if isinstance(token, dict) else token


def metadata(checkpoint: Checkpoint, prepared: Preparation, pictures: Pictures) -> dict[str, Any]:
    """For `graft.llm.json`."""
    config = checkpoint.model.config
    number = token_of(config)
    names = added_tokens(checkpoint)
    token = names.get(number, "")
    if names and not token:
        raise ExportError(f"expected the token of pictures, {number}, among the added tokens of the tokenizer, found none")
    around: dict[str, Any] = {"place": token}
    if config.model_type == "gemma3":
        _expect_rows(checkpoint, "image_seq_length", pictures)
        begin, end = (_special(checkpoint, f"{which}_token", f"<{text}_of_image>") for which, text in (("boi", "start"), ("eoi", "end")))
        around.update(place=begin, before=f"\n\n{begin}", after=f"{end}\n\n", placeholder=token)
        token = begin
    elif config.model_type == "paligemma":  # as PaliGemmaProcessor builds a text
        around.update(after_last=_special(checkpoint, "bos_token", "<bos>"), end="\n", add_special=False)
    elif config.model_type == "gemma4":
        around.update((side, names.get(getattr(config, f"{which}_token_id"), "")) for side, which in (("before", "boi"), ("after", "eoi")))
    elif config.model_type == "mllama":
        around.update(bos=_special(checkpoint, "bos_token", ""))
    elif config.model_type == "internvl":
        begin, end = (_special(checkpoint, f"{which}_image_token", text) for which, text in (("start", "<img>"), ("end", "</img>")))
        around.update(before=begin, before_tiles=begin, after=end)
    elif prepared.settings["kind"] == "tiles":
        around.update(_around_tiles(checkpoint, token, pictures))
    elif prepared.settings["kind"] == "patches":
        begin, end = (names.get(getattr(config, f"vision_{which}_token_id", None), "") for which in ("start", "end"))
        around["place"] = f"{begin}{token}{end}"
    return {
        "token_id": number,
        "token": token,
        "rows": pictures.rows,
        "width": pictures.width,
        "blocks": blocks_of(config) or "none",
        "attended": prepared.settings["kind"] == "canvas",
        "text": around,
        "processing": prepared.settings,
    }


def _expect_rows(checkpoint: Checkpoint, name: str, pictures: Pictures) -> None:
    folder = checkpoint.folder
    about = folder / "processor_config.json" if folder is not None else None
    rows = json.loads(about.read_bytes()).get(name) if about is not None and about.exists() else None
    if rows is not None and rows != pictures.rows:
        raise ExportError(f"expected an {name} of {pictures.rows} in processor_config.json, found {rows}")


def _around_tiles(checkpoint: Checkpoint, token: str, pictures: Pictures) -> dict[str, str]:
    """The text that Idefics3Processor and SmolVLMProcessor put around the placeholders of tiles."""
    _expect_rows(checkpoint, "image_seq_len", pictures)
    fake = _special(checkpoint, "fake_image_token", "<fake_token_around_image>")
    whole = _special(checkpoint, "global_image_token", "<global-img>")
    return {
        "before": f"{fake}{whole}",
        "after": fake,
        "before_tile": f"{fake}<row_{{row}}_col_{{column}}>",
        "after_row": "\n",
        "before_whole": f"\n{fake}{whole}",
        "place": token,
    }


__all__ = ["Preparation", "added_tokens", "metadata", "own_settings", "preparation", "take_tokenizer", "without_places"]
