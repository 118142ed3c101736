"""Language models as workloads: random weights of a real shape, in files that the engines read; prompts and steps.

A case is {prompt, steps}: `steps` 0 times the run of the whole prompt, otherwise the steps after it, one by one. A variant
is one sequence of tokens, the same for all cases; rounds take turns with them, so that no prompt follows itself. With
`sequences` there are so many of them, which take each step together.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import large_models
import peers
from language_models import CONFIGS, LARGE, architecture, sizes
from language_models import make as make_model
from peers.language import Text

if TYPE_CHECKING:
    from workloads import Workload

VARIANTS = 7
BATCH_VARIANTS = 3  # each of several sequences
LARGE_VARIANTS = 2  # of a large model, or where texts are long
LONG = 1 << 13  # tokens of a text whose reference takes minutes


def make(workload: Workload, folder: Path) -> None:
    """`hf`: a folder of Hugging Face in bf16, with a tokenizer of as many words; and a GGUF file of the same weights. Of a large model
    the GGUF file, and the folder where a peer reads it."""
    stamp = folder / "made.json"
    large = workload.model in LARGE
    wanted = {"model": workload.model, "weights": workload.weights}
    if with_folder := large and any(peers.get(peer).reads_folder for peer in workload.peers):
        wanted["folder"] = True
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    gguf = folder / f"{workload.weights}.gguf"
    if large:
        large_models.write_gguf(workload.model, workload.weights, gguf)
        if with_folder:
            large_models.write_folder(workload.model, workload.weights, folder / "hf")
            _tokenizer(CONFIGS[workload.model]["vocab_size"]).save_pretrained(folder / "hf")
    else:
        _make_both(workload, folder, gguf)
    stamp.write_text(json.dumps(wanted))


def _make_both(workload: Workload, folder: Path, gguf: Path) -> None:
    import gguf_recurrent
    import gguf_writer
    import torch
    from transformers import AutoModelForCausalLM

    hf = folder.parent.parent / "models" / workload.model  # one for all types of weights
    if not (hf / "model.safetensors").exists():
        make_model(workload.model).to(torch.bfloat16).save_pretrained(hf)
        _tokenizer(CONFIGS[workload.model]["vocab_size"]).save_pretrained(hf)
    (folder / "hf").symlink_to(hf.resolve())
    model, name = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.bfloat16), architecture(workload.model)
    if name in gguf_recurrent.CONFIGS:
        values, tensors = gguf_recurrent.values(model.config, name), gguf_recurrent.tensors(model, name)
    else:
        values, tensors = gguf_writer.values_of(model.config, name), gguf_writer.tensors_of(model, name)
    gguf_writer.write_gguf(gguf, values, tensors, workload.weights)


def _tokenizer(size: int) -> Any:
    """Converters want one; a word is the number of its token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", bos_token="t1", eos_token="t2")


def tokens_of(model: str, variant: int, count: int) -> np.ndarray:
    most = min(150_000, CONFIGS[model]["vocab_size"])
    return np.random.default_rng(variant).integers(3, most, count, dtype=np.int64)


def _ends(workload: Workload) -> list[int]:
    """Where logits are compared."""
    lengths = {case["prompt"] + case["steps"] for case in workload.cases}
    return sorted(lengths | {case["prompt"] for case in workload.cases if "sequences" in case})


def _is_long(workload: Workload) -> bool:
    return _ends(workload)[-1] > LONG


def _texts(workload: Workload) -> tuple[int, int]:
    """Variants, and sequences of each: the same for all cases of a workload."""
    sequences = {case.get("sequences", 0) for case in workload.cases}
    if len(sequences) != 1:
        raise ValueError(f"{workload.name}: cases of {sorted(sequences)} sequences")
    [count] = sequences
    alone = LARGE_VARIANTS if workload.model in LARGE or _is_long(workload) else VARIANTS
    return (BATCH_VARIANTS, count) if count else (alone, 1)


def capacity(workload: Workload) -> tuple[int, int]:
    """Tokens of a sequence and sequences that an engine must hold."""
    sequences = _texts(workload)[1]
    return max(2048 if sequences == 1 else 512, *(case["prompt"] + case["steps"] for case in workload.cases)), sequences


def write_references(workload: Workload, folder: Path) -> None:
    """The logits after every case's last token, eager PyTorch's in f32: `logits` on the weights as stored in the GGUF file,
    `unrounded` on those that they were made from, but of a large model or a long text."""
    stamp = folder / "written.json"
    ends = _ends(workload)
    variants, sequences = _texts(workload)
    wanted = {"model": workload.model, "weights": workload.weights, "ends": ends, "variants": variants, "unrounded": True}
    if sequences > 1:
        wanted["sequences"] = sequences
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return
    texts = [tokens_of(workload.model, variant, ends[-1]) for variant in range(variants * sequences)]
    if workload.model in LARGE:
        found = [{"logits": logits} for logits in large_models.logits(workload.model, workload.weights, texts, ends)]
    else:
        found = _logits(workload, folder.parent / "model" / "hf", texts, ends, unrounded=not _is_long(workload))
    for variant, arrays in enumerate(found):
        np.savez(folder / f"{variant}.npz", **arrays)
    stamp.write_text(json.dumps(wanted))


def _logits(
    workload: Workload, hf: Path, texts: list[np.ndarray], ends: list[int], *, unrounded: bool
) -> list[dict[str, np.ndarray]]:
    import gguf_writer
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32).eval()

    def computed() -> list[np.ndarray]:
        keep = torch.tensor(ends) - 1
        return [model(input_ids=torch.from_numpy(text)[None], logits_to_keep=keep).logits[0].numpy() for text in texts]

    with torch.no_grad():
        exact = [{"unrounded": one} for one in computed()] if unrounded else [{} for _ in texts]
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.shape[-1] % 32 == 0:  # no convolution's taps
                parameter.copy_(gguf_writer.rounded(parameter, workload.weights))
        return [{"logits": one, **more} for one, more in zip(computed(), exact, strict=True)]


def read_references(workload: Workload, folder: Path) -> dict[str, list[tuple[Text, np.ndarray]]]:
    """Of a case of several sequences the expectation is [2, sequences, vocabulary]: after the prompts, after the steps."""
    ends, (variants, sequences) = _ends(workload), _texts(workload)
    logits: list[np.ndarray] = []
    unrounded: list[np.ndarray | None] = []
    for variant in range(variants * sequences):
        with np.load(folder / f"{variant}.npz") as saved:
            logits.append(saved["logits"])
            unrounded.append(saved["unrounded"] if "unrounded" in saved else None)
    cases: dict[str, list[tuple[Text, np.ndarray]]] = {}
    for case in workload.cases:
        prompt, count = case["prompt"], case["prompt"] + case["steps"]
        found = cases[case["name"]] = []
        for variant in range(variants):
            of = range(variant * sequences, (variant + 1) * sequences)
            last = ends.index(count)
            if "sequences" in case:
                tokens = np.stack([tokens_of(workload.model, i, count) for i in of])
                expected = np.stack([[logits[i][ends.index(end)] for i in of] for end in (prompt, count)])
            else:
                tokens, expected = tokens_of(workload.model, variant, count), logits[variant][last]
            exact = None if unrounded[variant] is None else np.stack([unrounded[i][last] for i in of])
            found.append((Text(variant, tokens, prompt, exact), expected))
    return cases


def error(actual: np.ndarray, expected: np.ndarray, inputs: Text) -> float:
    """Largest difference of the logits as a share of the largest logit.

    For an engine that hands out tokens only: how far the reference has its token below the best one, after the prompt;
    the steps are its own, and nothing is compared.
    """
    if inputs.tokens.ndim == 2:
        if actual.dtype != np.int64:
            return _largest_difference(actual, expected[1].reshape(-1))
        return max(_below_the_best(int(token), logits) for token, logits in zip(actual, expected[0], strict=True))
    if actual.dtype == np.int64:
        return 0.0 if inputs.steps else _below_the_best(int(actual[0]), expected)
    return _largest_difference(actual, expected)


def divergence(actual: np.ndarray, inputs: Text) -> float | None:
    """Mean over the sequences of KL(p || q), in nats: p is the next token's distribution by the unrounded weights in f32,
    q the engine's. None of an engine that hands out tokens only."""
    if actual.dtype == np.int64 or inputs.unrounded is None:
        return None
    p, q = (_log_softmax(logits.reshape(inputs.unrounded.shape)) for logits in (inputs.unrounded, actual))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max()) / float(np.abs(expected).max())


def _below_the_best(token: int, logits: np.ndarray) -> float:
    return float(logits.max() - logits[token]) / float(np.abs(logits).max())


def work(workload: Workload, case: dict[str, Any]) -> dict[str, float]:
    """What a case needs at least, by the figures of the roofline probe: operations (two for a product and its sum) of the
    matrices in their precision and of attention in bf16, and bytes read (weights once a run; keys and values of 16 bits,
    states of f32)."""
    of, config = sizes(workload.model), CONFIGS[workload.model]
    matrices, vocabulary = of.matrices, config["vocab_size"] * config["hidden_size"]
    prompt, steps, sequences = case["prompt"], case["steps"], case.get("sequences", 1)
    runs, tokens = (steps, steps * sequences) if steps else (1, prompt)
    seen = sequences * sum(range(prompt + 1, prompt + steps + 1)) if steps else prompt * (prompt + 1) // 2
    bits = {"q8_0": 8.5, "q4_0": 4.5, "q4_K": 4.5, "bf16": 16, "f16": 16, "f32": 32}[workload.weights]
    kind = {"bf16": "gflops_bf16", "f16": "gflops_f32", "f32": "gflops_f32"}.get(workload.weights, "gops_int8")
    cached = 2 * of.keys * 2 * (seen if steps else prompt) + 4 * of.state * runs * sequences
    needs = {"gflops_bf16": 4.0 * seen * of.queries / 1e9, "gb_read": (runs * (matrices + vocabulary) * bits / 8 + cached) / 1e9}
    needs[kind] = needs.get(kind, 0.0) + 2.0 * (tokens * matrices + runs * sequences * vocabulary) / 1e9
    return needs
