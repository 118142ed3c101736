"""Text from a package of `graft.export_llm`: the engine's own generator, as `graft generate` uses it."""

from __future__ import annotations

import codecs
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graft import _C
from graft.adapters import Adapters, Choice, rank_for
from graft.audio import Sound, samples_of
from graft.llm.grammar import GrammarVocabulary, TokenMask, engine_mask
from graft.runtime import arrays
from graft.vision import Picture, pixels_of

if TYPE_CHECKING:
    from graft.runtime.model import Array

__all__ = ["BatchGenerator", "Generation", "TextGenerator", "token_probabilities"]


@dataclass(frozen=True)
class Generation:
    """What was generated.

    text: of the new tokens.
    tokens: the new ones, with the one that ended them.
    reason: why it ended: "length", "eos", "stop_string", "context", "cancelled" or "complete" (a mask
        lets nothing follow).
    """

    text: str
    tokens: list[int]
    reason: str


class _Generator:
    """What both generators are made of: a model and the engine's generator of this type, with `rows` rows by default."""

    _type: Any
    _rows: int
    _own: tuple[Any, ...] = ()  # what this type takes besides

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] = "",
        weights: Iterable[str | os.PathLike[str]] = (),
        device: str = "",
        threads: int = 0,
        rows: int | None = None,
        length: int = 0,
        kv_type: str = "computed",
        prefill_chunk_size: int = 512,
        buckets: Sequence[int] = (),
        stages: Sequence[str] = (),
        secret: str = "",
        pictures: int = 4,
        max_adapter_rank: int = 0,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        files = [os.fspath(file) for file in weights]
        precision = arrays.matmul_precision()
        rank = rank_for(adapters or {}, max_adapter_rank)
        self.model: Any = _C.LanguageModel.load(os.fspath(path), os.fspath(tokenizer), files, device, precision, rank)
        #: LoRA adapters by name; see `graft.load_adapter`.
        self.adapters: Adapters = Adapters(self.model.program)
        for name, adapter in (adapters or {}).items():
            self.adapters.load(name, adapter)
        rows = self._rows if rows is None else rows
        settings = threads, rows, length, kv_type, prefill_chunk_size, list(buckets), list(stages), secret, pictures
        self._generator: Any = self._type(self.model, *settings, *self._own)

    def _settings(self, settings: dict[str, Any], adapter: Choice) -> dict[str, Any]:
        return settings if adapter is None else {**settings, "adapters": self.adapters.chosen(adapter)}

    @property
    def stats(self) -> dict[str, Any]:
        """Prompt and new tokens, drafts, seconds: of the last call, or of a BatchGenerator since its construction."""
        return self._generator.stats()

    @property
    def plans(self) -> int:
        """How many plans were made ready to run."""
        return self._generator.plans()


class TextGenerator(_Generator):
    """Generates text. The prefix that a new prompt shares with the last call's tokens is not computed again. For a
    model with a text encoder (T5, BART) the prompt is the encoder's input.

    rows: the largest batch (1). length: tokens of the cache; 0 means the model's context. kv_type: how keys and values are
    stored: computed (as the model computes them), f32, f16, bf16, q8_0 or q4_0. prefill_chunk_size: tokens of a prompt that are
    computed at once. buckets: widths, ascending, up to that, which runs of a prompt are padded up to: prompts of all lengths
    share as many plans. By default each length has its own. stages: where the other stages of the model run (docs/stages.md):
    "HOST:PORT" or "unix:PATH" of each in order. secret: that these know. pictures: of a model whose layers
    attend to them (MLlama), how many of a prompt there is room for. max_adapter_rank: the largest rank of LoRA adapters
    (`graft.load_adapter`), 0: there are none. adapters: those to begin with, paths by name; the rank is then 64 by default.
    """

    _type, _rows = _C.TextGenerator, 1

    def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        images: Sequence[Picture] = (),
        audio: Sequence[Sound] = (),
        on_text: Callable[[str], None] | None = None,
        cancel: _C.CancelToken | None = None,
        adapter: str | None = None,
        **settings: Any,
    ) -> Generation:
        """Generates from one prompt: a string, token ids, or chat messages ({"role": ..., "content": ...}).

        images: of a model that takes them, files of PNG, JPEG or BMP, or pixels [H, W, 3] in u8, in the order of their
        places: the model's token for pictures (<image>, ...) in a string, the parts {"type": "image"} of a message whose
        content is a list. A string without places becomes a message that begins with the pictures.
        audio: of a model that takes sound, files of WAV, FLAC or MP3, or (samples [n] from -1 to 1, samples per second),
        likewise: the model's token for sound (<|AUDIO|>, ...), the parts {"type": "audio"}.
        on_text: called with new text as it comes. adapter: name of one of `adapters`.
        settings: max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, ignore_eos, eos_token_ids, stop_strings, skip_special_tokens,
        prompt_lookup_num_tokens, max_matching_ngram_size, do_sample, as in Hugging Face's GenerationConfig; a
        temperature of 0 is greedy. Defaults are those of the model's generation_config.json, else greedy.
        """
        show = None if on_text is None else lambda _, text: on_text(_str(text))
        return self._run([_prompt(self.model, prompt, images, audio)], self._settings(settings, adapter), show, cancel)[0]

    def generate_batch(
        self,
        prompts: Iterable[Any],
        *,
        cancel: _C.CancelToken | None = None,
        adapter: Choice = None,
        **settings: Any,
    ) -> list[Generation]:
        """One generation per prompt, computed as a batch. At most `rows` prompts. adapter: name of one of `adapters` for
        all of them, or a name or None for each."""
        made = [_prompt(self.model, prompt) for prompt in prompts]
        return self._run(made, self._settings(settings, adapter), None, cancel)

    def generate_from_features(
        self, features: Array, *, cancel: _C.CancelToken | None = None, **settings: Any
    ) -> list[Generation]:
        """One generation per input of a model whose encoder takes features (Whisper): f32 [batch, mels, frames]."""
        plain = _as_f32(features)
        begin = self._generator.encode_features(plain.tobytes(), list(plain.shape))
        return self._run([_C.ImagePrompt(list(begin)) for _ in range(plain.shape[0])], settings, None, cancel)

    def logits(
        self,
        ids: Sequence[int] | str | Sequence[Mapping[str, Any]],
        *,
        images: Sequence[Picture] = (),
        audio: Sequence[Sound] = (),
        adapter: str | None = None,
    ) -> Array:
        """Those of every token of a prompt, [tokens, vocabulary] in f32: a torch tensor in a program that has imported
        torch, else a numpy array. ids: the prompt, token ids or what else `generate` takes."""
        made = _prompt(self.model, ids, images, audio)
        return _of_f32(self._generator.logits(made, self.adapters.chosen(adapter))).reshape(len(made.tokens), -1)

    def _run(self, prompts: list[Any], settings: dict[str, Any], show: Any, cancel: Any) -> list[Generation]:
        results = self._generator.generate(prompts, settings, show, cancel)
        return [Generation(_str(text), tokens, reason) for tokens, text, reason in results]


class BatchGenerator(_Generator):
    """Continuous batching: generates many sequences side by side, and requests join and leave between steps. Each
    result equals what TextGenerator gives for its prompt alone.

    rows: sequences that run at once (8); more requests wait in order. prefix_cache_bytes: of keys and values that are kept
    of all sequences, for prompts that begin with the same tokens (0: none). prefix_cache_file: keeps them there, for later
    processes too; the file holds what was asked and answered. The rest as in TextGenerator.

        batch = graft.BatchGenerator("model.pte", rows=8)
        ids = [batch.submit(prompt, max_new_tokens=100) for prompt in prompts]
        while batch.step():
            pass  # submit more, cancel some
        texts = [batch.take(id).text for id in ids]
    """

    _type, _rows = _C.BatchGenerator, 8

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix_cache_bytes: int = 0,
        prefix_cache_file: str | os.PathLike[str] = "",
        **options: Any,
    ) -> None:
        self._own = prefix_cache_bytes, os.fspath(prefix_cache_file)
        super().__init__(path, **options)

    def submit(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        images: Sequence[Picture] = (),
        audio: Sequence[Sound] = (),
        on_text: Callable[[str], None] | None = None,
        adapter: str | None = None,
        mask: TokenMask | None = None,
        **settings: Any,
    ) -> int:
        """Queues a request; prompt, images, audio, adapter and settings as in TextGenerator.generate. Returns its number.

        mask: which tokens may come next, of this request alone: `graft.Grammar.mask`, or a `graft.TokenMask` of one's own.
        An exception from on_text or mask ends the request and is raised by step()."""
        show = None if on_text is None else lambda text: on_text(_str(text))
        made = _prompt(self.model, prompt, images, audio)
        return self._generator.submit(made, self._settings(settings, adapter), show, engine_mask(mask))

    @functools.cached_property
    def grammar_vocabulary(self) -> GrammarVocabulary:
        """What grammars for this model are made with. Raises `graft.InvalidArgument` where it has no tokenizer."""
        return GrammarVocabulary.of_model(self.model)

    def step(self, *, cancel: _C.CancelToken | None = None) -> bool:
        """Computes a chunk of one prompt or a token of every sequence that has begun, in turn where there is both. False
        when no request is left."""
        return self._generator.step(cancel)

    def cancel(self, request: int) -> bool:
        """Ends it with what it has. False when it has ended already."""
        return self._generator.cancel(request)

    def take(self, request: int) -> Generation | None:
        """The result of a request that has ended, once; None while it runs."""
        result = self._generator.take(request)
        return None if result is None else Generation(_str(result[1]), result[0], result[2])

    def prepare(self, *, prompt_lookup_num_tokens: int = 0) -> None:
        """Makes the plans of all steps, so that none is made later."""
        self._generator.prepare(prompt_lookup_num_tokens)

    @property
    def waiting(self) -> int:
        return self._generator.waiting

    @property
    def running(self) -> int:
        return self._generator.running


def _str(text: bytes) -> str:
    """Tokens of single bytes need not be text: U+FFFD for each part that is none, as tokenizers of Hugging Face decode."""
    return text.decode(errors="replace")


def _prompt(model: Any, prompt: Any, images: Sequence[Picture] = (), audio: Sequence[Sound] = ()) -> Any:
    if images and audio:
        raise ValueError("expected images or audio, found both")
    media = [samples_of(sound) for sound in audio] if audio else [pixels_of(image) for image in images]
    if isinstance(prompt, str):
        make = model.audio_prompt if audio else model.image_prompt
        return make(codecs.encode(prompt, "utf-8"), media)
    if prompt and isinstance(prompt[0], Mapping):
        if not media and all(isinstance(message["content"], str) for message in prompt):
            return _C.ImagePrompt(model.chat_prompt([[message["role"], message["content"]] for message in prompt]))
        make = model.chat_audio_prompt if audio else model.chat_image_prompt
        return make([(message["role"], _parts(message["content"])) for message in prompt], media)
    if media:
        raise ValueError(f"expected a string or chat messages with {'audio' if audio else 'images'}, found token ids")
    return _C.ImagePrompt(list(prompt))


def _parts(content: str | Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Of a message: (text, what stands there instead: "", "image" or "audio")."""
    if isinstance(content, str):
        return [(content, "")]
    for part in content:
        if part["type"] not in ("text", "image", "audio"):
            raise ValueError(f"expected parts of type 'text', 'image' or 'audio', found {part['type']!r}")
    return [(part["text"], "") if part["type"] == "text" else ("", part["type"]) for part in content]


def _as_f32(array: Array) -> np.ndarray:
    if arrays.TORCH.holds(array):
        array = array.detach().float().contiguous().numpy()
    return np.ascontiguousarray(array, np.float32)


def _of_f32(data: bytes) -> Any:
    flat, torch = np.frombuffer(bytearray(data), np.float32), arrays.torch()
    return flat if torch is None else torch.from_numpy(flat)


def token_probabilities(logits: Array, tokens: Sequence[int], **settings: Any) -> Array:
    """The probabilities [vocabulary] that the next token is drawn from, given its logits and the tokens before it."""
    return _of_f32(_C.token_probabilities(_as_f32(logits).tobytes(), list(tokens), settings))
