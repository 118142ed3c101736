"""Small models of pictures and text with random weights, as folders that transformers saves, with a tokenizer of bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import tokenizers
import torch
import transformers

import phi4_models

_SIZES = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
_SPECIAL = ["<s>", "</s>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
_SPECIAL += ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_SPECIAL += ["<IMG_CONTEXT>", "<img>", "</img>"]
_SPECIAL += ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
_SPECIAL += [f"<row_{r}_col_{c}>" for r in (1, 2, 3) for c in (1, 2, 3)]
_SPECIAL += ["<|image|>"]  # of MLlama, the last one: there are no logits for it
CONTEXT = 512
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ':' }}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}PLACE{% elif c['type'] == 'audio' %}<|video_pad|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def tokens() -> dict[str, int]:
    """The vocabulary: 256 bytes and what stands around pictures."""
    names = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), *_SPECIAL]
    return {name: i for i, name in enumerate(names)}


def tokenizer(template: str | None = None, **named: str) -> transformers.PreTrainedTokenizerFast:
    ids = tokens()
    model = tokenizers.models.BPE(vocab={name: i for name, i in ids.items() if i < 256}, merges=[])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    for name in _SPECIAL:
        made.add_tokens([tokenizers.AddedToken(name, special=True, normalized=False)])
    assert made.get_vocab() == ids
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<s>", chat_template=template,
        extra_special_tokens=named,
    )  # fmt: skip


def _text(**more: Any) -> dict[str, Any]:
    ids = tokens()
    return dict(
        _SIZES, num_key_value_heads=2, head_dim=12, vocab_size=len(ids), max_position_embeddings=CONTEXT,
        bos_token_id=ids["<s>"], eos_token_id=ids["</s>"], pad_token_id=ids["<s>"], **more,
    )  # fmt: skip


def _tower(**more: Any) -> dict[str, Any]:
    return dict(_SIZES, image_size=32, patch_size=8, **more)


_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}


def _qwen(**vision: Any) -> dict[str, Any]:
    ids = tokens()
    return dict(
        vision_config=dict(depth=3, num_heads=4, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, **vision),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip


def _llava() -> tuple[Any, Any]:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_tower()), text_config=transformers.LlamaConfig(**_text()),
        image_token_index=tokens()["<image>"],
    )  # fmt: skip
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return config, images


def _llava_siglip() -> tuple[Any, Any]:
    config = transformers.LlavaConfig(
        vision_config=transformers.SiglipVisionConfig(**_tower()), text_config=transformers.Qwen2Config(**_text()),
        image_token_index=tokens()["<image>"], vision_feature_select_strategy="full", vision_feature_layer=[-1, -2],
    )  # fmt: skip
    return config, transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})


def _idefics3() -> tuple[Any, Any]:
    config = transformers.Idefics3Config(
        vision_config=_tower(), text_config=_text(model_type="llama"), image_token_id=tokens()["<image>"], scale_factor=2
    )
    sizes = dict(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    return config, transformers.Idefics3ImageProcessorPil(**sizes)


def _smolvlm() -> tuple[Any, Any]:
    config = transformers.SmolVLMConfig(
        vision_config=_tower(), text_config=_text(model_type="llama"), image_token_id=tokens()["<image>"], scale_factor=2
    )
    sizes = dict(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return config, transformers.SmolVLMImageProcessorPil(**sizes)


def _internvl() -> tuple[Any, Any]:
    tower = _tower(use_qk_norm=True, norm_type="rms_norm")
    config = transformers.InternVLConfig(
        vision_config=tower, text_config=_text(model_type="qwen2"), image_token_id=tokens()["<IMG_CONTEXT>"],
        image_seq_length=4,
    )  # fmt: skip
    images = transformers.GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, min_patches=2, max_patches=6)
    return config, images


def _patches(**sizes: Any) -> Any:
    given = dict(size={"shortest_edge": 256, "longest_edge": 64 * 64}, patch_size=4, merge_size=2, temporal_patch_size=2)
    return transformers.Qwen2VLImageProcessorPil(**{**given, **sizes})


def _qwen2_vl() -> tuple[Any, Any]:
    vision = _qwen(embed_dim=48, mlp_ratio=2, hidden_size=48)
    return transformers.Qwen2VLConfig(text_config=_text(rope_parameters=_ROPE), **vision), _patches()


def _qwen2_5_vl() -> tuple[Any, Any]:
    vision = _qwen(hidden_size=48, intermediate_size=64, out_hidden_size=48, window_size=24, fullatt_block_indexes=[1])
    return transformers.Qwen2_5_VLConfig(text_config=_text(rope_parameters=_ROPE), **vision), _patches()


def _qwen3_vl() -> tuple[Any, Any]:
    vision = _qwen(
        hidden_size=48, intermediate_size=64, out_hidden_size=48, deepstack_visual_indexes=[0, 2], num_position_embeddings=25
    )
    rope = {**_ROPE, "mrope_interleaved": True}
    return transformers.Qwen3VLConfig(text_config=_text(rope_parameters=rope), **vision), _patches()


def _gemma3() -> tuple[Any, Any]:
    ids = tokens()
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**_tower(vision_use_head=False)), mm_tokens_per_image=16,
        text_config=transformers.Gemma3TextConfig(**_text(sliding_window=6, query_pre_attn_scalar=12, layer_types=[
            "sliding_attention", "full_attention"
        ])),
        boi_token_index=ids["<start_of_image>"], eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )  # fmt: skip
    return config, transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})


def _paligemma(**text: Any) -> tuple[Any, Any]:
    config = transformers.PaliGemmaConfig(
        vision_config=_tower(model_type="siglip_vision_model", vision_use_head=False), projection_dim=48,
        text_config=_text(**text), image_token_index=tokens()["<image>"],
    )  # fmt: skip
    return config, transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32}, image_seq_length=16)


def _gemma4(**text: Any) -> tuple[Any, Any]:
    ids = tokens()
    given = _text(
        sliding_window=6, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, global_head_dim=24,
        vocab_size_per_layer_input=len(ids), **text,
    )  # fmt: skip
    given.update(num_hidden_layers=4)
    config = transformers.Gemma4Config(
        text_config=transformers.Gemma4TextConfig(**given),
        vision_config=transformers.Gemma4VisionConfig(
            **_SIZES, num_key_value_heads=4, head_dim=12, patch_size=4, pooling_kernel_size=2, position_embedding_size=300,
            standardize=not text.get("num_kv_shared_layers"),
        ),
        audio_config=None, boi_token_id=ids["<start_of_image>"], eoi_token_id=ids["<end_of_image>"],
        image_token_id=ids["<image_soft_token>"], video_token_id=ids["<|video_pad|>"], audio_token_id=ids["<s>"],
    )  # fmt: skip
    return config, transformers.Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)


def _gemma4_moe() -> tuple[Any, Any]:
    """As Gemma 4 26B-A4B: experts, values that are the keys, pictures that see both ways."""
    return _gemma4(
        use_bidirectional_attention="vision", attention_k_eq_v=True, enable_moe_block=True, num_experts=4, top_k_experts=2,
        moe_intermediate_size=16, hidden_size_per_layer_input=0, num_global_key_value_heads=1,
    )  # fmt: skip


def _gemma4_e() -> tuple[Any, Any]:
    """As Gemma 4 E2B: inputs of each layer, keys and values that layers share."""
    return _gemma4(hidden_size_per_layer_input=8, num_kv_shared_layers=2, use_double_wide_mlp=True, final_logit_softcapping=9.0)


def _phi4_multimodal() -> tuple[Any, Any]:
    ids = tokens()
    return phi4_models.config(_text(), ids["<image>"], ids["<|video_pad|>"]), phi4_models.Files()


def _mllama() -> tuple[Any, Any]:
    """Two layers side by side attend to pictures, and the last one; a tile has 17 patches, which the tower pads."""
    place = tokens()["<|image|>"]
    text = _text(cross_attention_layers=[1, 2, 4], rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    text.update(vocab_size=place, num_hidden_layers=5)
    config = transformers.MllamaConfig(
        vision_config=dict(
            hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_global_layers=2, attention_heads=4, image_size=32,
            patch_size=8, intermediate_layers_indices=[0, 2], vision_output_dim=3 * 48,
        ),
        text_config=text, image_token_index=place,
    )  # fmt: skip
    return config, transformers.MllamaImageProcessorPil(size={"height": 32, "width": 32}, max_image_tiles=4)


@dataclass(frozen=True)
class PictureModel:
    name: str
    make: Callable[[], tuple[Any, Any]]
    place: str = "<image>"  # of a picture, in the text of a prompt
    named: tuple[tuple[str, str], ...] = ()  # special tokens that its processor asks the tokenizer for
    whole: bool = False  # its prompts are one block: of another prompt nothing can be reused
    auto: Any = transformers.AutoModelForImageTextToText
    attended: bool = False  # its prompts depend on all of their pictures: of other pictures nothing can be reused

    def save(self, folder: Path) -> Path:
        config, images = self.make()
        config._attn_implementation = "eager"
        torch.manual_seed(len(self.name))
        model = self.auto.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
                elif "embed" in re.sub(r"embed_tokens_extend\.\w+", "", name) and parameter.dim() == 2:
                    parameter.copy_(torch.randn_like(parameter))
                else:
                    parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter[0].numel() ** 0.5)
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        images.save_pretrained(folder)
        tokenizer(TEMPLATE.replace("PLACE", self.place), **dict(self.named)).save_pretrained(folder)
        return folder

    def processor(self, folder: Path) -> Any:
        if self.name == "phi4_multimodal":
            return phi4_models.Processor(folder, transformers.AutoConfig.from_pretrained(folder))
        if self.named:
            return WholeProcessor(folder, transformers.AutoConfig.from_pretrained(folder))
        return Processor(folder, transformers.AutoConfig.from_pretrained(folder))


_NAMED = (("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"), ("image_token", "<image_soft_token>"))
_IMAGE = (("image_token", "<image>"),)
_ATTENDED = (("image_token", "<|image|>"),)
PICTURE_MODELS = (
    PictureModel("llava", _llava),
    PictureModel("llava_siglip", _llava_siglip),
    PictureModel("idefics3", _idefics3),
    PictureModel("smolvlm", _smolvlm),
    PictureModel("internvl", _internvl, "<IMG_CONTEXT>"),
    PictureModel("qwen2_vl", _qwen2_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
    PictureModel("qwen2_5_vl", _qwen2_5_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
    PictureModel("gemma3", _gemma3, "<start_of_image>", _NAMED),
    PictureModel("gemma4_moe", _gemma4_moe, "<image_soft_token>"),
    PictureModel("gemma4_e", _gemma4_e, "<image_soft_token>"),
    PictureModel("paligemma", lambda: _paligemma(model_type="gemma"), named=_IMAGE, whole=True),
    PictureModel("paligemma2", lambda: _paligemma(model_type="gemma2", sliding_window=6), named=_IMAGE, whole=True),
    PictureModel("phi4_multimodal", _phi4_multimodal, auto=transformers.AutoModelForCausalLM),
    PictureModel("mllama", _mllama, "<|image|>", _ATTENDED, attended=True),
    PictureModel("qwen3_vl", _qwen3_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
)
BY_NAME = {kind.name: kind for kind in PICTURE_MODELS}


class Processor:
    """The model's processor of transformers, whose video part needs packages that tests do not: its replacement of
    placeholders alone."""

    def __init__(self, folder: Path, config: Any) -> None:
        self.images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.config = config
        kind, module = {
            "llava": ("LlavaProcessor", "llava"),
            "idefics3": ("Idefics3Processor", "idefics3"),
            "smolvlm": ("SmolVLMProcessor", "smolvlm"),
            "internvl": ("InternVLProcessor", "internvl"),
            "gemma4": ("Gemma4Processor", "gemma4"),
        }.get(config.model_type, ("Qwen2_5_VLProcessor", "qwen2_5_vl"))
        self.kind = getattr(__import__(f"transformers.models.{module}.processing_{module}", fromlist=[kind]), kind)
        self.patch_size = getattr(config.vision_config, "patch_size", None)
        self.vision_feature_select_strategy = getattr(config, "vision_feature_select_strategy", None)
        self.num_additional_image_tokens = 1 if config.vision_config.model_type == "clip_vision_model" else 0
        self.image_token = self.tokenizer.decode([config.image_token_id])
        self.fake_image_token, self.global_image_token = "<fake_token_around_image>", "<global-img>"
        self.global_image_tag = self.global_image_token
        self.image_processor = self.images
        side = 32 // 8 // 2
        self.image_seq_len = self.image_seq_length = side * side
        self.start_image_token, self.end_image_token = "<img>", "</img>"
        self.boi_token, self.eoi_token = "<start_of_image>", "<end_of_image>"

    def prepared(self, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
        more = {"return_row_col_info": True} if self.config.model_type in ("idefics3", "smolvlm") else {}
        if self.config.model_type == "internvl":
            files = [PIL.Image.fromarray(image) for image in pictures]
            return dict(self.images(images=files, return_tensors="pt", crop_to_patches=True)) if pictures else {}
        files = [PIL.Image.fromarray(image) for image in pictures]  # of arrays it guesses what the channels are
        nested = [files] if more else files
        return dict(self.images(images=nested, return_tensors="pt", **more)) if pictures else {}

    def __call__(self, text: str, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
        given = self.prepared(pictures)
        parts = text.split(self.image_token)
        assert len(parts) == len(pictures) + 1
        for i in range(len(pictures)):
            parts[i] += self.kind.replace_image_token(self, given, i)
        for name in ("rows", "cols", "num_patches", "num_soft_tokens_per_image"):
            given.pop(name, None)
        ids = torch.tensor([self.tokenizer("".join(parts))["input_ids"]])
        out = dict(given, input_ids=ids, attention_mask=torch.ones_like(ids))
        if "image_grid_thw" in given or self.config.model_type.startswith(("qwen", "gemma4")):
            out["mm_token_type_ids"] = (ids == self.config.image_token_id).int()
        return out


class WholeProcessor:
    """The model's processor of transformers, as it is."""

    def __init__(self, folder: Path, config: Any) -> None:
        self.images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.config = config
        more = {}
        if config.model_type == "gemma3":
            kind, more = transformers.Gemma3Processor, {"image_seq_length": config.mm_tokens_per_image}
        elif config.model_type == "mllama":
            kind = transformers.MllamaProcessor
        else:
            kind = transformers.PaliGemmaProcessor
        self.processor = kind(self.images, transformers.AutoTokenizer.from_pretrained(folder), **more)
        self.image_token = self.processor.image_token
        self.image_processor = self.images

    def prepared(self, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
        files = [PIL.Image.fromarray(image) for image in pictures]
        return dict(self.images(images=files, return_tensors="pt")) if pictures else {}

    def __call__(self, text: str, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
        if not pictures:
            return dict(self.tokenizer(text, return_tensors="pt"))
        files = [PIL.Image.fromarray(image) for image in pictures]
        found = dict(self.processor(images=[files], text=[text], return_tensors="pt"))
        found.pop("labels", None)
        return found


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """[H, W, 3] in u8: colours that run into each other, and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(y * random.uniform(0.02, 0.3) + x * random.uniform(0.02, 0.3) + random.uniform(0, 6)) for _ in range(3)]
    return np.clip(np.stack(waves, -1) * 90 + 128 + random.normal(0, 25, (height, width, 3)), 0, 255).astype(np.uint8)
