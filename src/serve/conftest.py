"""The model that tests of the server run: stories260K, with a chat template."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import graft
from serving import Server, export_minilm, export_stories
from test_data import DATA


@pytest.fixture(scope="session")
def stories(tmp_path_factory) -> Path:
    return export_stories(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="session")
def server(stories):
    with Server(stories, "--rows", 8) as running:
        yield running


TEMPLATES = {
    "hermes": "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}Write <tool_call>...</tool_call>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>{% endfor %}\n{% endfor %}a:",
    "llama": "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{# <|python_tag|> #}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}a:",
    "mistral": "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{# [TOOL_CALLS] #}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}a:",
    **{
        family: "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{# " + tags + " #}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.thinking }}\n{% endfor %}a:{# message.thinking #}"
        for family, tags in {
            "mistral_args": "[TOOL_CALLS] [ARGS]",
            "deepseek": "<｜tool▁call▁begin｜>",
            "deepseek_r1": "<｜tool▁call▁begin｜> ```json </think>",
            "gemma": "<|tool_call>call: <channel|>",
            "function_gemma": "<start_function_call>call:",
            "qwen_xml": "<tool_call> <function=",
            "harmony": "<|channel|> <|message|>",
        }.items()
    },
    "thinker": "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{# <tool_call> #}"
    "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}a:",
}


@pytest.fixture(scope="session")
def tools_template(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("template") / "llama.jinja"
    path.write_text(TEMPLATES["llama"])
    return path


@pytest.fixture(scope="session")
def tools(stories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    args = []
    for name, template in TEMPLATES.items():
        (folder / name).mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            if (DATA / "stories260K" / file).exists():
                shutil.copyfile(DATA / "stories260K" / file, folder / name / file)
        (folder / name / "chat_template.jinja").write_text(template)
        args += [f"{name}={stories}", "--tokenizer", f"{name}={folder / name}"]
    with Server(f"plain={stories}", *args, "--rows", 4) as running:
        yield running


@dataclasses.dataclass
class MiniLm:
    path: Path
    folder: Path  # of transformers
    encoder: torch.nn.Module

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"


@pytest.fixture(scope="session")
def minilm_package(tmp_path_factory) -> MiniLm:
    path = tmp_path_factory.mktemp("embeddings") / "minilm.pte"
    folder, encoder = export_minilm(path, {0: Dim("rows", min=1, max=64), 1: Dim("tokens", min=2, max=512)})
    return MiniLm(path, folder, encoder)


@pytest.fixture(scope="session")
def net_package(tmp_path_factory) -> Path:
    """A linear layer from 4 to 2."""
    path = tmp_path_factory.mktemp("net") / "net.pte"
    batch = Dim("batch", min=1, max=16)
    graft.export(torch.nn.Linear(4, 2).eval(), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},), path=path)
    return path
