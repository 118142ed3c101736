"""What the peers of language models share: a case is `prefill` tokens or `steps` tokens one by one after a prompt.

Inputs of a case: [prompt + steps] token ids of one variant, and the length of the prompt; of a case of several sequences
[sequences, prompt + steps], which take their steps together. `before` runs what is not timed
(the prompt of a decode case); the steps are forced, so that every engine computes the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peers import Peer


@dataclass
class Text:
    variant: int
    tokens: np.ndarray  # [prompt + steps] or [sequences, prompt + steps] int64
    prompt: int
    unrounded: np.ndarray | None = None  # [sequences, vocabulary] f32: logits after the last token, by unrounded weights

    @property
    def steps(self) -> list[int]:
        return self.tokens[self.prompt :].tolist()


class LanguagePeer(Peer):
    """`clear` forgets the sequence, `feed` appends tokens in one run and returns the logits of the last."""

    _at: tuple[int, int] = (-1, 0)  # the variant whose first tokens are in the cache, and how many

    def clear(self) -> None:
        raise NotImplementedError

    def feed(self, tokens: list[int], past: int) -> Any:
        raise NotImplementedError

    def before(self, inputs: Text) -> None:
        if not inputs.steps:
            self.clear()
        elif self._at != (inputs.variant, inputs.prompt):
            self.clear()
            self.feed(inputs.tokens[: inputs.prompt].tolist(), 0)

    def run(self, inputs: Text) -> Any:
        output = None
        if inputs.steps:
            for i, token in enumerate(inputs.steps):
                output = self.feed([token], inputs.prompt + i)
        else:
            output = self.feed(inputs.tokens[: inputs.prompt].tolist(), 0)
        self._at = (inputs.variant, len(inputs.tokens))
        return output

    def result(self, output: Any) -> np.ndarray:
        return np.array(output, dtype=np.float32).reshape(-1)


class BatchPeer(LanguagePeer):
    """Several sequences: `feed_all` appends tokens [sequences, n] in one run and returns the logits of the last of each."""

    def feed_all(self, tokens: np.ndarray, past: int) -> Any:
        raise NotImplementedError

    def before(self, inputs: Text) -> None:
        self.clear()
        self.feed_all(inputs.tokens[:, : inputs.prompt], 0)

    def run(self, inputs: Text) -> Any:
        output = None
        for at in range(inputs.prompt, inputs.tokens.shape[1]):
            output = self.feed_all(inputs.tokens[:, at : at + 1], at)
        return output

    def result(self, output: Any) -> np.ndarray:
        return np.array(output, dtype=np.float32).reshape(-1)


def gguf(folder: Path) -> Path:
    """The file of a model's folder that graft and llama.cpp read alike."""
    return next(folder.glob("*.gguf"))
