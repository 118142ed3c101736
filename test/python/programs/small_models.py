"""Small models with random weights of kinds that people run: see small_models_test.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import nn
from torch.export import Dim
from torch.nn import functional as F
from transformers.models.whisper import modeling_whisper


@dataclass
class Kind:
    name: str
    make: Callable[[], nn.Module]
    args: Callable[[int], tuple[torch.Tensor, ...]]  # for a batch, or another size that may change
    dynamic: tuple  # dynamic_shapes of `args`, in terms of SIZE
    sizes: tuple[int, int] = (2, 3)  # exported with the first, called with both


SIZE = Dim("size", min=1, max=8)


def alive(model: nn.Module) -> nn.Module:
    """Weights with which every layer matters: initial ones leave attention uniform and branches near zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() < 2:
                p.copy_(torch.rand_like(p) * 0.6 + (0.7 if name.endswith("weight") else -0.3))
            else:
                p.copy_(torch.randn_like(p) * 1.5 / p[0].numel() ** 0.5)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                b.copy_(torch.randn_like(b) * 0.2)
            elif name.endswith("running_var"):
                b.copy_(torch.rand_like(b) + 0.5)
    return model.eval()


class First(nn.Module):
    """A model of transformers that gives tensors: some fields of its output."""

    def __init__(self, model: nn.Module, *fields: str) -> None:
        super().__init__()
        self.model, self.fields = model, fields

    def forward(self, x, mask=None):
        out = self.model(x) if mask is None else self.model(x, mask)
        return tuple(out[f] for f in self.fields)


def images(size: int, batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    return First(transformers.ViTModel(config), "last_hidden_state", "pooler_output")


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=64)
    return First(transformers.ConvNextForImageClassification(config), "logits")


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24, 32, 40], depths=[1, 2, 1, 1], layer_type="bottleneck"
    )
    return First(transformers.ResNetForImageClassification(config), "logits")


def segformer() -> nn.Module:
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 4, 4],
        decoder_hidden_size=16,
        num_labels=5,
    )
    return First(transformers.SegformerForSemanticSegmentation(config), "logits")


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.CLIPConfig(
            text_config={**size, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98, "bos_token_id": 97},
            vision_config={**size, "image_size": 32, "patch_size": 8},
            projection_dim=24,
        )
        self.model = transformers.CLIPModel(config)

    def forward(self, ids, mask, pixels):
        out = self.model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
        return out.logits_per_image, out.text_embeds, out.image_embeds


def clip_args(batch: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(0, 97, (batch, 9))
    ids[:, 6:] = 98
    mask = torch.ones_like(ids)
    mask[0, 7:] = 0
    return ids, mask, images(32, batch)


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=16, max_source_positions=50
    )
    return First(modeling_whisper.WhisperEncoder(config), "last_hidden_state")


def wav2vec2() -> nn.Module:
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=[16, 16, 16],
        conv_stride=[5, 4, 2],
        conv_kernel=[10, 5, 3],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        vocab_size=20,
    )
    return First(transformers.Wav2Vec2ForCTC(config), "logits")


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    return First(transformers.T5EncoderModel(config), "last_hidden_state")


def t5_args(batch: int) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(batch, 11, dtype=torch.int64)
    mask[0, 8:] = 0
    return torch.randint(0, 99, (batch, 11)), mask


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(i, outputs, 3, padding=1) for i in (inputs, outputs)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.GroupNorm(4, outputs)])

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        return x


class UNet(nn.Module):
    """Halves twice and doubles twice by transposed convolutions; what was seen before each halving is skipped over."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Block(3, 8), Block(8, 16)])
        self.middle = Block(16, 32)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1)]
        )
        self.join = nn.ModuleList([Block(32, 16), Block(16, 8)])
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        skipped = []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), skipped.pop()], 1))
        return self.head(x)


class GraphNet(nn.Module):
    """Messages along edges: a sum, a softmax over the edges of each node and a maximum, all by scatter; any number of
    edges."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.into = nn.Linear(5, width)
        self.edge = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])
        self.score = nn.ModuleList([nn.Linear(width, 1) for _ in range(layers)])
        self.node = nn.ModuleList([nn.Linear(3 * width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 3)

    def forward(self, nodes, edges):
        source, target = edges
        x = torch.tanh(self.into(nodes))
        for edge, score, node in zip(self.edge, self.score, self.node, strict=True):
            message = F.gelu(edge(torch.cat([x[source], x.index_select(0, target)], 1)))
            spread = target[:, None].expand_as(message)
            weight = torch.exp(score(message).clamp(max=8))
            total = torch.zeros(x.shape[0], 1).index_add(0, target, weight)
            mixed = torch.zeros_like(x).scatter_add(0, spread, message * weight / total[target])
            most = torch.full_like(x, -1.0).scatter_reduce(0, spread, message, "amax")
            x = x + node(torch.cat([x, mixed, most], 1))
        return self.head(x)


class Mamba(nn.Module):
    """Selective state spaces in plain torch operators: gate, causal convolution, and a scan over the steps."""

    def __init__(self, width: int = 16, inner: int = 24, state: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.norm = nn.ModuleList([nn.RMSNorm(width) for _ in range(layers)])
        self.into = nn.ModuleList([nn.Linear(width, 2 * inner, bias=False) for _ in range(layers)])
        self.conv = nn.ModuleList([nn.Conv1d(inner, inner, 4, groups=inner, padding=3) for _ in range(layers)])
        self.select = nn.ModuleList([nn.Linear(inner, 2 * state + 1, bias=False) for _ in range(layers)])
        self.step = nn.ModuleList([nn.Linear(1, inner) for _ in range(layers)])
        self.out = nn.ModuleList([nn.Linear(inner, width, bias=False) for _ in range(layers)])
        self.decay = nn.ParameterList([torch.rand(inner, state) for _ in range(layers)])
        self.skip = nn.ParameterList([torch.ones(inner) for _ in range(layers)])
        self.state = state

    def scan(self, x, layer: int):
        step, b, c = self.select[layer](x).split([1, self.state, self.state], -1)
        delta = F.softplus(self.step[layer](step))  # [batch, steps, inner]
        decay = torch.exp(-delta[..., None] * torch.exp(self.decay[layer]))
        inputs = delta[..., None] * b[:, :, None, :] * x[..., None]  # [batch, steps, inner, state]
        h, ys = torch.zeros_like(inputs[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + inputs[:, t]
            ys.append((h @ c[:, t, :, None]).squeeze(-1))
        return torch.stack(ys, 1) + x * self.skip[layer]

    def forward(self, x):
        for layer in range(len(self.norm)):
            y, gate = self.into[layer](self.norm[layer](x)).chunk(2, -1)
            y = F.silu(self.conv[layer](y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            x = x + self.out[layer](self.scan(y, layer) * F.silu(gate))
        return x


KINDS = [
    Kind("vit", vit, lambda n: (images(32, n),), ({0: SIZE},)),
    Kind("convnext", convnext, lambda n: (images(64, n),), ({0: SIZE},)),
    Kind("resnet", resnet, lambda n: (images(64, n),), ({0: SIZE},)),
    Kind("segformer", segformer, lambda n: (images(64, n),), ({0: SIZE},)),
    Kind("clip", Clip, clip_args, ({0: SIZE}, {0: SIZE}, {0: SIZE})),
    Kind("whisper_encoder", whisper, lambda n: (torch.randn(n, 16, 100),), ({0: SIZE},)),
    Kind("wav2vec2", wav2vec2, lambda n: (torch.randn(n, 1600),), ({0: SIZE},)),
    Kind("t5_encoder", t5, t5_args, ({0: SIZE}, {0: SIZE})),
    Kind("unet", UNet, lambda n: (images(32, n),), ({0: SIZE},)),
    Kind(
        "graph_network",
        GraphNet,
        lambda n: (torch.randn(12, 5), torch.randint(0, 12, (2, n))),
        (None, {1: Dim("edges", min=2, max=64)}),
        (30, 41),
    ),
    Kind("mamba", Mamba, lambda n: (torch.randn(n, 6, 16),), ({0: SIZE},)),
]
