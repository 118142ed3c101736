"""From a model that speaks (Pocket TTS) to programs, without its weights.

`step` is the backbone and the head that draws the next frame of sound:
    input_ids [1, T], position_ids [1, T], cache_position [1, T], latents [1, T, D] (of tokens that are a frame of the
    voice or of what was said), noise [1, D] -> latent [1, D], logit [1] of the end of speech
`decode_audio` is the codec's decoder:  latents [1, F, D], as `step` gives them -> samples [1, F * frame]
`encode_voice` is its encoder:          samples [1, 1, F * frame] -> latents [1, F, D]
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from graft.errors import ExportError
from graft.llm import interface, rope
from graft.llm.trace import skeleton_of, traced

#: model_type of models that speak.
FAMILIES = ("pocket_tts",)
_MOST_FRAMES = 4096  # of a call of the codec


def speaks(model: str) -> bool:
    """Whether a folder is of such a model."""
    about = Path(model) / "config.json"
    return about.is_file() and json.loads(about.read_bytes()).get("model_type") in FAMILIES


class Speech(torch.nn.Module):
    """A model that speaks and its codec, as one module with the parameters of both."""

    _supports_attention_backend = True

    def __init__(self, speaker: Any, codec: Any) -> None:
        super().__init__()
        self.speaker, self.codec = speaker, codec


def check(model: Any, codec: Any) -> None:
    """Raises ExportError for what graft does not speak with."""
    if model.config.model_type not in FAMILIES:
        raise ExportError(f"{type(model).__name__} cannot be exported; expected one of {', '.join(FAMILIES)}")
    if codec is None or codec.config.model_type != "pocket_tts_audio_tokenizer":
        raise ExportError(f"expected a processor with an audio tokenizer, found {type(codec).__name__}")
    if codec.config.decoder_config is None:
        raise ExportError("expected an audio tokenizer with a decoder, found decoder_config=None")
    if codec.config.latent_dim != model.config.latent_dim:
        raise ExportError(
            f"expected an audio tokenizer of latents of {model.config.latent_dim} elements, found {codec.config.latent_dim}"
        )
    for half in (codec.config.encoder_config, codec.config.decoder_config):
        if half is not None and not half.use_causal_conv:
            raise ExportError("expected causal convolutions in the audio tokenizer, found use_causal_conv=False")


def trace(speech: Speech, *, context: int, flow_steps: int) -> dict[str, ExportedProgram]:
    """context: the most tokens of a text with its sound. flow_steps: how often the head is asked for a frame."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    skeleton: Any = skeleton_of(speech, mode).eval()
    rope.make_traceable(skeleton)
    for module in skeleton.codec.modules():
        if hasattr(module, "_get_extra_padding_for_conv1d"):
            module.forward = types.MethodType(_causal_convolution, module)
    dim = speech.speaker.config.latent_dim
    tokens = Dim("tokens", min=1, max=context)
    ids = torch.zeros(1, 5, dtype=torch.long)
    example = (ids, ids.clone(), ids.clone(), _zeros(1, 5, dim), _zeros(1, dim))
    programs = {
        "step": _traced(skeleton, _stepping(flow_steps), example, ({1: tokens}, {1: tokens}, {1: tokens}, {1: tokens}, {}))
    }
    attention = {m: _windowed for m in skeleton.codec.modules() if hasattr(m, "sliding_window")}
    frames = Dim("frames", min=1, max=_MOST_FRAMES)
    with interface.instead(attention):
        programs["decode_audio"] = _traced(skeleton, _decode, (_zeros(1, 3, dim),), ({1: frames},))
        if speech.codec.config.encoder_config is not None:
            frame = speech.codec.config.frame_size
            programs["encode_voice"] = _traced(skeleton, _encode, (_zeros(1, 1, 3 * frame),), ({2: frame * frames},))
    return programs


def _zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(*sizes, dtype=torch.float32)


def _traced(skeleton: Speech, forward: Callable[..., Any], example: Any, dims: Any) -> ExportedProgram:
    interface.become(skeleton, Speech, forward)
    skeleton.config = skeleton.speaker.config
    return traced(skeleton, example, dims)


def _stepping(flow_steps: int) -> Callable[..., Any]:
    def step(
        self: Any,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        cache_position: torch.Tensor,
        latents: torch.Tensor,
        noise: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        speaker, config = self.speaker, self.speaker.config
        model = speaker.model

        def where(token: int, there: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
            return torch.where((input_ids == token).unsqueeze(-1), there, otherwise)

        words = model.embed_tokens(input_ids)
        words = where(config.audio_bos_token_id, model.embed_audio_latents(model.bos_latent), words)
        words = where(config.audio_prompt_token_id, model.audio_prompt_proj(latents), words)
        words = where(config.audio_latent_token_id, model.embed_audio_latents(latents), words)
        # The model itself would look for tokens among the embeddings.
        model.get_token_mask = lambda ids, embeds, token: torch.zeros_like(embeds[..., :1], dtype=torch.bool)
        with interface.positions(cache_position):
            hidden = model(
                inputs_embeds=words,
                position_ids=position_ids,
                past_key_values=interface.no_cache(config.num_hidden_layers),
                use_cache=True,
                return_dict=True,
            ).last_hidden_state[:, -1]
        return speaker.sample_latent(hidden, noise, flow_steps), speaker.eos_head(hidden)[:, 0]

    return step


def _decode(self: Any, latents: torch.Tensor) -> torch.Tensor:
    given = self.speaker.denormalize_latents(latents)
    cache = _no_cache(self.codec.config.decoder_config)
    return self.codec.decode(given, decoder_past_key_values=cache, return_dict=True).audio_values[:, 0]


def _encode(self: Any, samples: torch.Tensor) -> torch.Tensor:
    cache = _no_cache(self.codec.config.encoder_config)
    return self.codec.encode(samples, encoder_past_key_values=cache, return_dict=True).latents


def _no_cache(config: Any) -> Any:
    return interface.no_cache(config.num_hidden_layers)


def _causal_convolution(self: Any, hidden_states: torch.Tensor, padding_cache: Any = None) -> torch.Tensor:
    """Of whole strides, behind which nothing is padded."""
    left = (self.conv.kernel_size[0] - 1) * self.conv.dilation[0] + 1 - self.conv.stride[0]
    return self.conv(torch.nn.functional.pad(hidden_states, (left, 0), mode=self.pad_mode))


def _windowed(module, query, key, value, mask, scaling, position_bias):
    """Each position sees as many as the window has, up to itself."""
    place = torch.arange(query.shape[2])
    back = place[:, None] - place[None, :]
    seen = (back >= 0) & (back < module.sliding_window)
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)
    return found.transpose(1, 2).contiguous()


__all__ = ["FAMILIES", "Speech", "check", "speaks", "trace"]
