"""Networks for images and audio with random weights of real shapes: what they cost does not depend on what they know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

# Per call: billions of operations (two per multiplication with its addition) and gigabytes of weights. From
# torch.utils.flop_counter on the modules below; test/python/bench_test.py checks them.
WORK = {
    "mobilenet-v2": (0.60, 0.0140),
    "resnet-18": (3.63, 0.0468),
    "vit-s16": (9.20, 0.0882),
    "whisper-tiny-encoder": (36.94, 0.0328),
    "silero-vad": (0.00136, 0.0),  # its 1.2 MB of weights stay in the caches
}

WHISPER_FRAMES = 3000  # 30 s of audio in steps of 10 ms


def module(model: str) -> Any:
    """The network in eval mode, without gradients; the same weights in every process."""
    import torch

    torch.manual_seed(0)
    made = {
        "mobilenet-v2": _mobilenet_v2,
        "resnet-18": _resnet_18,
        "vit-s16": _vit_s16,
        "whisper-tiny-encoder": _whisper_encoder,
        "silero-vad": _silero_vad,
    }[model]()
    return made.eval().requires_grad_(False)


def inputs(model: str, case: dict[str, Any]) -> list[np.ndarray]:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32)

    model = model.removesuffix("-bf16")
    if model == "silero-vad":
        return [normal(1, 576) * np.float32(0.1), normal(1, 128), normal(1, 128)]
    if model == "whisper-tiny-encoder":
        return [normal(1, 80, WHISPER_FRAMES)]
    return [normal(case["batch"], 3, 224, 224)]


def calibration() -> tuple[np.ndarray, ...]:
    """A few images, other than those that are timed."""
    random = np.random.default_rng(1)
    return tuple(random.standard_normal((1, 3, 224, 224), dtype=np.float32) for _ in range(4))


def quantized(floating: Any, images: tuple[np.ndarray, ...]) -> Any:
    """In 8 bits, weights by output channel, as users of ExecuTorch quantize for its XNNPACK delegate."""
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    example = (torch.from_numpy(images[0]),)
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(floating, example).module(), quantizer)
        for image in images:
            prepared(torch.from_numpy(image))
        return convert_pt2e(prepared)


def _normed(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[torch.nn.Module]:
    """A convolution and its batch norm, with statistics that are not those of a norm that does nothing."""
    from torch import nn

    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_in")
    norm = nn.BatchNorm2d(outputs)
    nn.init.uniform_(norm.weight, 0.8, 1.2)
    nn.init.normal_(norm.bias, std=0.1)
    nn.init.normal_(norm.running_mean, std=0.1)
    nn.init.uniform_(norm.running_var, 0.8, 1.2)
    return [conv, norm]


def _mobilenet_v2() -> Any:
    """Sandler et al. 2018, table 2, width 1.0."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
            super().__init__()
            inner = inputs * expansion
            wider = [*_normed(inputs, inner, 1), nn.ReLU6()] if expansion > 1 else []
            self.layers = nn.Sequential(
                *wider, *_normed(inner, inner, 3, stride, inner), nn.ReLU6(), *_normed(inner, outputs, 1)
            )
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x):
            return x + self.layers(x) if self.adds else self.layers(x)

    settings = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    layers, width = [*_normed(3, 32, 3, 2), nn.ReLU6()], 32
    for expansion, outputs, repeats, stride in settings:
        for i in range(repeats):
            layers.append(Block(width, outputs, stride if i == 0 else 1, expansion))
            width = outputs
    layers += [*_normed(width, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def _resnet_18() -> Any:
    """He et al. 2015, table 1."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                *_normed(inputs, outputs, 3, stride), nn.ReLU(), *_normed(outputs, outputs, 3)
            )
            short = _normed(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else []
            self.short = nn.Sequential(*short)
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(self.layers(x) + self.short(x))

    layers = [*_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for inputs, outputs, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def _vit_s16() -> Any:
    """Touvron et al. 2021 (DeiT-S), by transformers."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, num_labels=1000,
        attn_implementation="sdpa",
    )  # fmt: skip
    return _first_result(ViTForImageClassification(config), "logits")


def _whisper_encoder() -> Any:
    """Radford et al. 2022, the encoder of tiny, by transformers."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, num_mel_bins=80,
        max_source_positions=WHISPER_FRAMES // 2, attn_implementation="sdpa",
    )  # fmt: skip
    return _first_result(WhisperEncoder(config), "last_hidden_state")


def _first_result(model: Any, field: str) -> Any:
    from torch import nn

    class First(nn.Module):
        """The model's one result that is compared."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return getattr(self.model(x), field)

    return First()


def _silero_vad() -> Any:
    """Silero's speech detector at 16 kHz, a frame of 512 samples after 64 of the one before: github.com/snakers4/silero-vad."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class SileroVad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spectrum = nn.Conv1d(1, 258, 256, stride=128, bias=False)
            self.convs = nn.ModuleList(
                nn.Conv1d(i, o, 3, s, 1) for i, o, s in [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
            )
            self.cell = nn.LSTMCell(128, 128)
            self.last = nn.Conv1d(128, 1, 1)

        def forward(self, x, h, c):
            x = self.spectrum(F.pad(x, (0, 64), "reflect")[:, None])
            x = torch.sqrt(x[:, :129] ** 2 + x[:, 129:] ** 2)
            for conv in self.convs:
                x = F.relu(conv(x))
            h, c = self.cell(x.squeeze(-1), (h, c))
            p = torch.sigmoid(self.last(F.relu(h)[:, :, None])).squeeze(-1)
            return torch.cat([p, h, c], 1)  # the next frame's state, too

    return SileroVad()
