"""From a model with an encoder and a decoder to two programs, without their weights.

`encode` runs the encoder, makes of its result the keys and values of every decoder layer, and leaves them in the cache:
    input_ids [B, S], attention_mask [B, S], or input_features [B, M, F], or input_values [B, samples]
    -> tokens [B], how many each row has
`step` is the decoder, as of a model without an encoder:
    input_ids [B, T], position_ids [B, T], cache_position [B, T], logits_to_keep [K] -> logits [B, K, V]
A row that is encoded begins anew: its decoder's tokens are gone.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from graft.errors import ExportError
from graft.llm import interface, ops, rope
from graft.llm.trace import skeleton_of, traced

#: What models call the attention of a decoder layer over the encoder's result.
_CROSS = ("encoder_attn", "EncDecAttention")
SAMPLES = 16123  # of an example: a size that no other is equal to
FEWEST_POSITIONS = 2  # of an encoder of samples


def takes_features(model: torch.nn.Module) -> bool:
    return getattr(model, "main_input_name", "input_ids") == "input_features"


def takes_samples(model: torch.nn.Module) -> bool:
    return getattr(model, "main_input_name", "input_ids") == "input_values"


def trace(model: torch.nn.Module, *, context: int, encoder_context: int) -> dict[str, ExportedProgram]:
    """By method. context and encoder_context: the most tokens that a call of the decoder and the encoder takes; of an
    encoder of samples the most that it gives."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    skeleton = skeleton_of(model, mode).eval()
    parts = _Parts(skeleton)
    kind = type(skeleton)
    batch, tokens, kept = Dim("batch", min=1), Dim("tokens", min=1, max=context), Dim("kept", min=1, max=context)
    ids = torch.zeros(2, 5, dtype=torch.long)

    if takes_features(model):
        features = torch.zeros(2, *parts.feature_sizes(), dtype=torch.float32)
        interface.become(skeleton, kind, lambda self, input_features: parts.encode_sound(input_features))
        encode = traced(skeleton, (features,), ({0: batch},))
    elif takes_samples(model):
        rope.make_traceable(skeleton)
        layers = convolutions(model)
        fewest, most = (samples_of(layers, positions) for positions in (FEWEST_POSITIONS, encoder_context + 1))
        # Sizes in convolutions are quotients, of which the tracer cannot prove what models check.
        dims: dict[int, Any] = {0: batch, 1: Dim.DYNAMIC(min=fewest, max=most - 1)}
        interface.become(skeleton, kind, lambda self, input_values: parts.encode_sound(input_values))
        encode = traced(skeleton, (torch.zeros(2, SAMPLES, dtype=torch.float32),), (dims,))
    else:
        dims = {0: batch, 1: Dim("source", min=1, max=encoder_context)}
        interface.become(skeleton, kind, lambda self, input_ids, attention_mask: parts.encode_text(input_ids, attention_mask))
        encode = traced(skeleton, (ids, ids.clone()), (dims, dims))

    def forward(
        self: torch.nn.Module,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache_position: torch.Tensor,
        logits_to_keep: torch.Tensor,
    ) -> torch.Tensor:
        return parts.decode(kind, input_ids, position_ids, cache_position, logits_to_keep)

    interface.become(skeleton, kind, forward)
    example = (ids, ids.clone(), ids.clone(), torch.zeros(3, dtype=torch.long))
    dims = ({0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: batch, 1: tokens}, {0: kept})
    return {"step": traced(skeleton, example, dims), "encode": encode}


def convolutions(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Kernel and stride of those that an encoder of samples begins with, in order."""
    found = [m for m in model.get_encoder().children() if isinstance(m, torch.nn.Conv1d)]
    return [(m.kernel_size[0], m.stride[0]) for m in found]


def samples_of(layers: Sequence[tuple[int, int]], positions: int) -> int:
    """The least samples of which convolutions, by kernel and stride, make so many positions."""
    for kernel, stride in reversed(layers):
        positions = (positions - 1) * stride + kernel
    return positions


def positions_of(layers: Sequence[tuple[int, int]], samples: int) -> int:
    """How many they make of so many samples."""
    for kernel, stride in layers:
        samples = (samples - kernel) // stride + 1
    return samples


class _EncoderOutput(BaseModelOutput):
    """All of it is seen; models of sound ask."""

    attention_mask = None


class _EncoderLayer(DynamicLayer):
    """Stands for keys and values that are in the engine's cache: `source_attention` reads them there."""

    def __init__(self, instead: torch.Tensor) -> None:
        super().__init__()
        self.is_initialized = True
        self.keys = self.values = instead

    def get_seq_length(self) -> int:
        return 1


class _Parts:
    """A model's encoder, decoder and the attentions between them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        self.cross = [m for name, m in self.decoder.named_modules() if name.rsplit(".", 1)[-1] in _CROSS]
        if not self.cross or [m.layer_idx for m in self.cross] != list(range(len(self.cross))):
            raise ExportError(
                f"{model.config.model_type}: expected an attention over the encoder in each decoder layer, "
                f"found {len(self.cross)} by the names {', '.join(_CROSS)}"
            )
        self.kv_heads: dict[int, int] = {}
        self.width = model.config.d_model if hasattr(model.config, "d_model") else model.config.hidden_size
        self.kept: torch.Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(lambda _, args: (args[0][:, self.kept],))
        for module in self.decoder.modules():
            if getattr(module, "has_relative_attention_bias", False) and module not in self.cross:
                module.compute_bias = types.MethodType(_bias_by_distance, module)

    def feature_sizes(self) -> tuple[int, int]:
        config = self.model.config
        stride = self.encoder.conv1.stride[0] * self.encoder.conv2.stride[0]
        return config.num_mel_bins, config.max_source_positions * stride

    # --- encode ---

    def encode_text(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        real = attention_mask != 0
        position = torch.where(real, real.to(torch.long).cumsum(1) - 1, -1)
        with interface.instead(dict.fromkeys(self.encoder.modules(), interface.attend_all)):
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        return self._store(hidden, position)

    def encode_sound(self, features: torch.Tensor) -> torch.Tensor:
        """Spectrograms or samples."""
        with interface.instead(dict.fromkeys(self.encoder.modules(), interface.attend_all)):
            hidden = self.encoder(features)[0]
        return self._store(hidden, torch.arange(hidden.shape[1]).expand(hidden.shape[0], -1))

    def _store(self, hidden: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        def store(module, query, key, value, *_):
            nonlocal position
            self.kv_heads[module.layer_idx] = key.shape[1]
            position = ops.store_source(key, value, position, layer=module.layer_idx)
            return query.transpose(1, 2)

        nobody = torch.zeros(hidden.shape[0], 1, self.width, dtype=torch.float32)
        with interface.instead(dict.fromkeys(self.cross, store)):
            for module in self.cross:
                module(nobody, key_value_states=hidden)
        return (position >= 0).sum(1)

    # --- forward ---

    def decode(self, kind, input_ids, position_ids, cache_position, logits_to_keep) -> torch.Tensor:
        def attend(module, query, key, value, mask, scaling, *_):
            layer = module.layer_idx
            return ops.source_attention(query, layer=layer, kv_heads=self.kv_heads[layer], scale=scaling)

        self.kept = logits_to_keep
        learned = getattr(self.decoder, "embed_positions", None)
        if learned is not None:
            places = position_ids + getattr(learned, "offset", 0)
            learned.forward = lambda *_, **__: torch.nn.functional.embedding(places, learned.weight)
        # The others with rotary embeddings, or biases by distance.
        places_given = learned is None and "decoder_position_ids" in inspect.signature(kind.forward).parameters
        more = {"decoder_position_ids": position_ids} if places_given else {}
        encoder_output = torch.zeros(input_ids.shape[0], 1, self.width, dtype=torch.float32)
        layers = len(self.cross)
        cache = EncoderDecoderCache(
            interface.no_cache(layers), Cache(layers=[_EncoderLayer(encoder_output.unsqueeze(1)) for _ in range(layers)])
        )
        with interface.positions(cache_position), interface.instead(dict.fromkeys(self.cross, attend)):
            return kind.forward(
                self.model,
                decoder_input_ids=input_ids,
                encoder_outputs=_EncoderOutput(last_hidden_state=encoder_output),
                past_key_values=cache,
                use_cache=True,
                **more,
            ).logits


def _bias_by_distance(self: torch.nn.Module, *_: Any, **__: Any) -> torch.Tensor:
    """T5's bias of the decoder [heads, distances]: from its largest distance on, all are alike."""
    distances = torch.arange(self.relative_attention_max_distance + 1)
    buckets = self._relative_position_bucket(
        -distances,
        bidirectional=False,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    return self.relative_attention_bias(buckets).t()


__all__ = ["convolutions", "positions_of", "samples_of", "takes_features", "takes_samples", "trace"]
