"""Folders whose tokenizer is a tekken.json, as Mistral's own have one."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import torch
import transformers

import graft
import llm_models
from graft.errors import ExportError

pytestmark = pytest.mark.usefixtures("one_thread")
_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
_WORDS = ["th", "he", "the", " the", "in", "ing", " a", "an", " an", "er", "\u00e4\u00f6", "12"]
_TEMPLATE = "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] }}[/INST]{% endfor %}"
_TEXTS = [
    "the thing in hand", " an ANTLER, then\n\n  a  1234-5!", "\u00e4\u00f6\u00fc \u65e5\u672c\u8a9e \U0001f600", "[INST] the </s>", "  ",
    "don't THE\tTabs/\n",
]  # fmt: skip


def _folder(tmp_path: Path, **changed: object) -> Path:
    folder = tmp_path / "model"
    pieces = [bytes([i]) for i in range(256)] + [word.encode() for word in _WORDS]
    tekken = {
        "config": {"pattern": _PATTERN, "default_vocab_size": 8 + len(pieces), "default_num_special_tokens": 8},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(piece).decode()} for i, piece in enumerate(pieces)]
        + [{"rank": len(pieces), "token_bytes": base64.b64encode(b"beyond").decode()}],
        "special_tokens": [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(_SPECIAL)],
        **changed,
    }
    small = llm_models.BY_NAME["llama"]
    config = small.config()
    config.vocab_size = 8 + len(pieces)
    llm_models.SmallModel("llama", lambda: config).make().save_pretrained(folder)
    (folder / "tekken.json").write_text(json.dumps(tekken))
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return folder


def test_tokens_and_texts_are_those_of_transformers(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    expected = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(expected) == 8 + 256 + len(_WORDS)
    generator = graft.TextGenerator(graft.export_llm(folder, tmp_path / "m.pte"), threads=1)
    for text in _TEXTS:
        assert generator.model.encode(text.encode()) == expected(text)["input_ids"], text
    messages = [{"role": "user", "content": "the thing"}]
    ids = expected.apply_chat_template(messages, tokenize=True, return_dict=False)
    eager = transformers.AutoModelForCausalLM.from_pretrained(folder)
    found = eager.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    answer = generator.generate(messages, max_new_tokens=8)
    assert answer.tokens == found
    assert answer.text == expected.decode(found, skip_special_tokens=True)


def test_a_tokenizer_json_goes_first(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "tekken.json").write_text("no JSON")
    graft.export_llm(folder, tmp_path / "m.pte")


@pytest.mark.parametrize("changed", [{"config": {}}, {"vocab": [{"rank": 0}]}, {"special_tokens": [{"rank": 3, "token_str": "a"}]}])
def test_files_that_are_none(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(ExportError, match="tekken.json' is no tokenizer that transformers reads"):
        graft.export_llm(_folder(tmp_path, **changed), tmp_path / "m.pte")
