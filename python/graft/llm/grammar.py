"""Texts that must have a form: a mask says before each token which may come next."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graft import _C
from graft.runtime.tokenizer import Tokenizer

__all__ = ["Grammar", "GrammarVocabulary", "TokenMask"]


class TokenMask(abc.ABC):
    """Which tokens may come next in one text: what `BatchGenerator.submit(mask=...)` asks before each token is drawn. Engines
    of others (xgrammar, llguidance) plug in here. An exception from a method ends the request and is raised by step()."""

    @abc.abstractmethod
    def allowed(self, words: np.ndarray) -> None:
        """Sets the bits of the tokens that may come next. words: u32 [n], all 0, with at least one bit for each token of the
        model's vocabulary; token i is bit i % 32 of words[i // 32]. The array is the mask's during the call."""

    @abc.abstractmethod
    def accept(self, token: int) -> None:
        """`token` is the next one of the text. Raises an exception where it may not be."""

    @abc.abstractmethod
    def done(self) -> bool:
        """Whether the text is complete and nothing may follow: it ends here, without an EOS token."""


class _GrammarMask(TokenMask):
    def __init__(self, mask: Any) -> None:
        self._c = mask

    def allowed(self, words: np.ndarray) -> None:
        words[:] = np.frombuffer(self._c.allowed(len(words)), np.uint32)

    def accept(self, token: int) -> None:
        self._c.accept(token)

    def done(self) -> bool:
        return self._c.done()


def engine_mask(mask: TokenMask | None) -> Any:
    """What the engine calls; those of grammars without Python."""
    if mask is None:
        return None
    if isinstance(mask, _GrammarMask):
        return mask._c
    if not isinstance(mask, TokenMask):
        raise TypeError(f"expected a graft.TokenMask, found {type(mask).__name__}")

    def bits(count: int) -> bytes:
        words = np.zeros(count, np.uint32)
        mask.allowed(words)
        return words.tobytes()

    return _C.python_mask(bits, mask.accept, mask.done)


class GrammarVocabulary:
    """The tokens of a vocabulary as bytes, which grammars share; `BatchGenerator.grammar_vocabulary` is that of a model.

    tokens: a tokenizer, or the bytes of each token; special tokens, and those of no bytes, are no part of any text.
    eos_token_ids: may come where a text may end.
    """

    def __init__(self, tokens: Tokenizer | Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        make = _C.GrammarVocabulary
        eos = list(eos_token_ids)
        self._c = make.of_tokenizer(tokens._c, eos) if isinstance(tokens, Tokenizer) else make.of_tokens(list(tokens), eos)

    @classmethod
    def of_model(cls, model: Any) -> GrammarVocabulary:
        """Of a `_C.LanguageModel`."""
        self = cls.__new__(cls)
        self._c = _C.GrammarVocabulary.of_model(model)
        return self


class Grammar:
    """A form of texts. What is not served raises `graft.Unsupported` that names it, and what is wrong
    `graft.InvalidArgument`: no text without the form is ever allowed.

        form = graft.Grammar.json_schema({"enum": ["yes", "no"]}, batch.grammar_vocabulary)
        batch.submit(prompt, mask=form.mask())
    """

    def __init__(self, grammar: Any) -> None:
        self._c = grammar

    @classmethod
    def json_schema(cls, schema: str | bool | Mapping[str, Any], vocabulary: GrammarVocabulary) -> Grammar:
        """A JSON value for a schema of draft 2020-12 (its keywords: docs/serving.md)."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(_C.Grammar.json_schema(text, vocabulary._c))

    @classmethod
    def json_object(cls, vocabulary: GrammarVocabulary) -> Grammar:
        """Any JSON object."""
        return cls(_C.Grammar.json_object(vocabulary._c))

    @classmethod
    def regex(cls, expression: str, vocabulary: GrammarVocabulary) -> Grammar:
        """Texts that match as a whole, in the syntax of `re` without look-around, back references and word boundaries."""
        return cls(_C.Grammar.regex(expression, vocabulary._c))

    @classmethod
    def ebnf(cls, rules: str, vocabulary: GrammarVocabulary) -> Grammar:
        """llama.cpp's GBNF: rules `name ::= ...` that begin with `root`."""
        return cls(_C.Grammar.ebnf(rules, vocabulary._c))

    @classmethod
    def lark(cls, rules: str, vocabulary: GrammarVocabulary) -> Grammar:
        """A grammar of Lark that begins with `start`."""
        return cls(_C.Grammar.lark(rules, vocabulary._c))

    @classmethod
    def choice(cls, texts: Sequence[str], vocabulary: GrammarVocabulary) -> Grammar:
        """One of these texts."""
        return cls(_C.Grammar.choice(list(texts), vocabulary._c))

    def mask(self) -> TokenMask:
        """At the beginning of a text."""
        return _GrammarMask(self._c.mask())

    def matches(self, text: str) -> bool:
        """Whether the whole text has the form."""
        return self._c.matches(text)

    def begins(self, text: str) -> bool:
        """Whether it is the beginning of one that has."""
        return self._c.begins(text)
