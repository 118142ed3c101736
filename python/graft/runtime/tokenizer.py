"""Tokenizers from Python: ids as Hugging Face tokenizers gives them, computed by graft's C++ library.

tokenizer = graft.Tokenizer.load("model-folder")
ids = tokenizer.encode("Hello, world!")
prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graft import _C
from graft.errors import InvalidArgument

__all__ = ["Detokenizer", "Tokenizer"]


def _bytes(text: str | bytes) -> bytes:
    # A lone surrogate stands for a byte that is not UTF-8; the engine replaces it.
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


class Tokenizer:
    """Text to token ids and back, and prompts of chat messages. Ids are those of Hugging Face tokenizers for the same
    file. Immutable; any number of threads may use one. `load` and `from_json` make one."""

    def __init__(self, tokenizer: _C.Tokenizer) -> None:
        self._c = tokenizer

    @staticmethod
    def load(path: str | os.PathLike[str], **limits: int) -> Tokenizer:
        """From a folder of a Hugging Face model, a tokenizer.json, a GGUF file, or a package that carries one.

        limits, for files of strangers: max_vocabulary (tokens, and ids), beyond which loading raises `graft.Unsupported`;
        max_template_steps and max_template_bytes (of the prompt), beyond which `apply_chat_template` raises
        `graft.InvalidArgument`.
        """
        return Tokenizer(_C.Tokenizer.load(os.fspath(path), **limits))

    @staticmethod
    def from_json(tokenizer_json: str | bytes, config_json: str | bytes = b"", **limits: int) -> Tokenizer:
        """From the content of tokenizer.json, and of tokenizer_config.json where there is one. limits: as of `load`."""
        return Tokenizer(_C.Tokenizer.from_json(_bytes(tokenizer_json), _bytes(config_json), **limits))

    def encode(self, text: str | bytes, add_special: bool = True, max_length: int | None = None) -> list[int]:
        """The ids of a text. Bytes that are not UTF-8 become U+FFFD, as in `bytes.decode(errors="replace")`.

        `max_length` limits the number of ids; the file's own limit is `truncation`, which is not applied by itself.
        """
        return self._c.encode(_bytes(text), add_special, _limit(max_length))

    def encode_all(
        self, texts: Sequence[str | bytes], add_special: bool = True, max_length: int | None = None
    ) -> list[list[int]]:
        """`encode` for several strings."""
        return self._c.encode_all([_bytes(text) for text in texts], add_special, _limit(max_length))

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of ids; bytes of tokens that form no character become U+FFFD. Raises `graft.InvalidArgument` for an id
        that has no token."""
        return self._c.decode(list(ids), skip_special).decode("utf-8")

    def stream(self, ids: Iterator[int] | Sequence[int], skip_special: bool = True) -> Iterator[str]:
        """The text of ids as they come, in whole characters."""
        detokenizer = Detokenizer(self, skip_special)
        for token in ids:
            if text := detokenizer.add(token):
                yield text
        if text := detokenizer.finish():
            yield text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt that the tokenizer's Jinja template makes of messages, as in transformers (`tokenize=False`)."""
        given = {
            **variables,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": documents,
        }
        return self._c.apply_chat_template(json.dumps(given, ensure_ascii=False), chat_template)

    def piece(self, token: int) -> str:
        """How the vocabulary writes a token."""
        return self._c.piece(token)

    def find(self, piece: str) -> int | None:
        """The id of a token as the vocabulary writes it; None when there is none."""
        return self._c.find(piece)

    def is_special(self, token: int) -> bool:
        """Whether the files name it as a special token."""
        return self._c.is_special(token)

    @property
    def special_ids(self) -> dict[str, int | None]:
        """`bos`, `eos`, `unk` and `pad` as the files name them."""
        return self._c.special_ids()

    @property
    def chat_template(self) -> str:
        """The Jinja template of the files; "" when they have none."""
        return self._c.chat_template()

    @property
    def truncation(self) -> int | None:
        """The limit that the file states."""
        return self._c.truncation()

    @property
    def identity(self) -> str:
        """The same for the same vocabulary: SHA-256 of all pieces with their ids."""
        return self._c.identity()

    def __len__(self) -> int:
        """One more than the largest id."""
        return self._c.size()


class Detokenizer:
    """The text of ids that come one by one: the strings of `add` and `finish`, joined, are the decoded text of all ids,
    each in whole characters. skip_special: leave special tokens out. For one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._c = _C.Detokenizer(tokenizer._c, skip_special)

    def add(self, token: int) -> str:
        """The text that this id adds, possibly none yet."""
        return self._c.add(token)

    def finish(self) -> str:
        """What is left; bytes of an unfinished character become U+FFFD. The next `add` begins a new text."""
        return self._c.finish()


def _limit(max_length: int | None) -> int:
    if max_length is not None and max_length <= 0:
        raise InvalidArgument(f"max_length must be above 0, got {max_length}")
    return max_length or 0
