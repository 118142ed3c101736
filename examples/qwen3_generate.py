"""`generate()` of a Hugging Face model on graft beside the same in eager PyTorch: are the tokens the same?

    python examples/qwen3_generate.py --random-weights --export --device cpu --dtype float32 \
        --max-new-tokens 16 --max-cache-len 128 --temperature 0
    python examples/qwen3_generate.py --model path/to/model --export --max-new-tokens 64 --temperature 0.7 --seed 1
"""

from __future__ import annotations

import argparse
import copy
import sys
import time

import torch
import transformers

import graft

# Qwen3-0.6B.
CONFIG = dict(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    tie_word_embeddings=True,
)
PROMPT_IDS = [9707, 11, 1879, 0, 1446, 525, 264, 10950, 17847, 13, 3555, 374, 5267]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or name of a model; its tokenizer is used")
    parser.add_argument("--random-weights", action="store_true", help="Qwen3-0.6B's configuration with random weights")
    parser.add_argument("--tokenizer", help="a folder or name, to print text of --random-weights")
    parser.add_argument("--export", action="store_true", help="run the model on graft too, and compare")
    parser.add_argument(
        "--route",
        choices=("compile", "static", "static-graft"),
        default="compile",
        help="graft.compile; or graft.hf.export_static and attach, run by PyTorch or by graft",
    )
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--device", default="cpu", help="of graft (graft devices lists them); PyTorch's stays the CPU")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--max-cache-len", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.random_weights == bool(options.model):
        parser.error("give either --model or --random-weights")
    return options


def load(options: argparse.Namespace) -> tuple[torch.nn.Module, object | None, torch.Tensor]:
    dtype = getattr(torch, options.dtype)
    source = options.tokenizer or options.model
    tokenizer = transformers.AutoTokenizer.from_pretrained(source) if source else None
    if options.random_weights:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**CONFIG), dtype=dtype).eval()
        return model, tokenizer, torch.tensor([PROMPT_IDS])
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).eval()
    return model, tokenizer, tokenizer(options.prompt, return_tensors="pt").input_ids


def generate(model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace) -> torch.Tensor:
    torch.manual_seed(options.seed)
    sampling = dict(do_sample=True, temperature=options.temperature, top_p=0.9) if options.temperature else {}
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=options.max_new_tokens,
        pad_token_id=0,
        **{"do_sample": False, **sampling},
        **({"cache_implementation": "static", "max_cache_len": options.max_cache_len} if options.export else {}),
    )[0, ids.shape[1] :]


def on_graft(model: torch.nn.Module, options: argparse.Namespace) -> torch.nn.Module:
    if options.route == "compile":
        device = None if options.device == "cpu" else options.device
        return graft.compile(model, max_length=options.max_cache_len, device=device, progress=True)
    programs = graft.hf.export_static(model, options.max_cache_len, prefill_buckets=(16, 64))
    return graft.hf.attach(model, programs, runtime="torch" if options.route == "static" else "graft")


def main() -> int:
    options = parse()
    model, tokenizer, ids = load(options)
    if ids.shape[1] + options.max_new_tokens > options.max_cache_len:
        sys.exit(f"{ids.shape[1]} tokens and {options.max_new_tokens} new ones need --max-cache-len of their sum")

    def show(title: str, tokens: torch.Tensor, seconds: float) -> None:
        text = tokenizer.decode(tokens) if tokenizer else " ".join(map(str, tokens.tolist()))
        print(f"{title} ({seconds:.1f} s):\n{text}\n")

    # graft computes in f32; PyTorch would round each result of a bfloat16 model.
    original = copy.deepcopy(model).float() if options.export and options.dtype != "float32" else model
    started = time.perf_counter()
    expected = generate(original, ids, options)
    show("Original model output", expected, time.perf_counter() - started)
    if not options.export:
        return 0
    started = time.perf_counter()
    exported = on_graft(model, options)
    print(f"Exported and loaded in {time.perf_counter() - started:.1f} s\n")
    started = time.perf_counter()
    found = generate(exported, ids, options)
    show("Exported model output", found, time.perf_counter() - started)
    same = torch.equal(found, expected)
    print(f"Token ids match: {same}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
