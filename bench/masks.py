"""What masks of grammars cost beside a step: a vocabulary of 150,000 tokens, the shape of Qwen3-0.6B in Q8_0 with random weights.

    python bench/masks.py [--tokenizer FILE] [--tokens 200] [--rounds 5]

For each form texts are drawn at random from the tokens that its mask allows, which are more different than those of a model. In each
round: a text by a grammar that was just compiled, the same text again by the same grammar, and steps of the model without a mask. Times
are of `allowed` and `accept` of one token together, Python's call included; every text must be one that the form admits.

--tokenizer: a tokenizer.json, or a folder or package that has one; default: that of Qwen3 in the tests' data.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "test" / "python"), str(BENCH.parent / "test" / "python" / "llm")]

import graft  # noqa: E402
import server_load  # noqa: E402
from test_data import DATA  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "role": {"enum": ["admin", "user", "guest"]},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "code": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "code"],
            "additionalProperties": False,
        },
        "friends": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
    },
    "required": ["name", "age", "email", "role", "address", "friends"],
    "additionalProperties": False,
}
SUM = 'start: sum\nsum: product | sum "+" product | sum "-" product\nproduct: atom | product "*" atom\n'
SUM += 'atom: NUMBER | "(" sum ")"\n%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n'
C_LIKE = """root ::= (declaration)*
declaration ::= type " " name "(" (type " " name ("," " "? type " " name)*)? ")" " "? "{" statement* "}" "\\n"
type ::= "int" | "float" | "char"
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= "\\n"? " "* (name " = " expression ";" | "return " expression ";" | "while (" expression ") {" statement* "}")
expression ::= term ([-+*/<>] term)*
term ::= name | [0-9]+ | "(" expression ")"
"""
Make = Callable[[graft.GrammarVocabulary], graft.Grammar]
FORMS: dict[str, Make] = {
    "a JSON schema of 8 properties": lambda of: graft.Grammar.json_schema(PERSON, of),
    "any JSON object": graft.Grammar.json_object,
    "a JSON list of 30 strings of 3 to 24 characters": lambda of: graft.Grammar.json_schema(
        {"type": "array", "minItems": 30, "items": {"type": "string", "minLength": 3, "maxLength": 24}}, of
    ),
    "a string of up to 1,000 characters": lambda of: graft.Grammar.json_schema({"type": "string", "maxLength": 1000}, of),
    "a regular expression: lines of an e-mail address and a date": lambda of: graft.Grammar.regex(
        r"([a-z0-9._]+@[a-z0-9-]+(\.[a-z]{2,10})+ (19|20)\d\d-(0[1-9]|1[0-2])-([0-2]\d|3[01])\n)*", of
    ),
    "GBNF: a small language like C": lambda of: graft.Grammar.ebnf(C_LIKE, of),
    "Lark: sums": lambda of: graft.Grammar.lark(SUM, of),
    "one of 5,000 texts": lambda of: graft.Grammar.choice([f"city of {i * 7919 % 99991}" for i in range(5000)], of),
}


def text(form: graft.Grammar, pick: Callable[[np.ndarray], int], tokens: int, words: np.ndarray, eos: int) -> tuple[list[int], list[float]]:
    """The tokens of one, and the seconds of each."""
    mask, ids, times = form.mask(), [], []
    while len(ids) < tokens and not mask.done():
        words[:] = 0
        begin = time.perf_counter()
        mask.allowed(words)
        middle = time.perf_counter()
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        more = allowed[allowed != eos]
        if len(more) == 0:
            break
        ids.append(pick(more))
        again = time.perf_counter()
        mask.accept(ids[-1])
        times.append(middle - begin + time.perf_counter() - again)
    return ids, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tokenizer", type=Path, default=DATA / "qwen_tokenizer")
    parser.add_argument("--tokens", type=int, default=200, help="of a text at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=BENCH.parent / "build" / "bench" / "server_load")
    options = parser.parse_args()
    if not options.tokenizer.exists():
        parser.error(f"no tokenizer at {options.tokenizer}: name one with --tokenizer")
    options.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = graft.Tokenizer.load(options.tokenizer)
    size = len(tokenizer)
    eos = size - 1
    begin = time.perf_counter()
    vocabulary = graft.GrammarVocabulary(tokenizer, [eos])
    print(f"{size} tokens; their trie is made in {1e3 * (time.perf_counter() - begin):.0f} ms, once for a model", flush=True)
    model = graft.TextGenerator(server_load.make(options.folder)[1], threads=options.threads, length=700)
    words = np.zeros((size + 31) // 32, np.uint32)
    steps: list[float] = []
    found: dict[str, dict[str, list[float]]] = {name: {"compile": [], "first": [], "again": []} for name in FORMS}
    for round_ in range(options.rounds):
        model.generate(list(range(3, 515)), max_new_tokens=48, ignore_eos=True, temperature=0.0)
        steps.append(model.stats["decode_seconds"] / model.stats["decode_runs"])
        for name, make in FORMS.items():
            begin = time.perf_counter()
            form = make(vocabulary)
            found[name]["compile"].append(time.perf_counter() - begin)
            random = np.random.default_rng(round_)
            ids, first = text(form, lambda allowed, random=random: int(random.choice(allowed)), options.tokens, words, eos)
            begin_of = tokenizer.decode(ids)
            if "\ufffd" not in begin_of and not form.begins(begin_of):
                raise RuntimeError(f"{name}: {begin_of!r} has not the form")
            rest = iter(ids)
            _, again = text(form, lambda _, rest=rest: next(rest), len(ids), words, eos)
            found[name]["first"] += first
            found[name]["again"] += again
    step = statistics.median(steps)
    print(f"a step of one text, after 512 tokens: {1e3 * step:.2f} ms, of {options.threads} threads\n")
    print("| form | compiled in, ms | a token, first text: mean, ms | 99th percentile | of a step | a token, again: mean, ms | of a step |")
    print("|---|---|---|---|---|---|---|")
    for name, times in found.items():
        first, again = statistics.mean(times["first"]), statistics.mean(times["again"])
        late = float(np.percentile(times["first"], 99))
        shares = f"{1e3 * late:.2f} | {100 * first / step:.1f} % | {1e3 * again:.3f} | {100 * again / step:.2f} %"
        print(f"| {name} | {1e3 * statistics.median(times['compile']):.1f} | {1e3 * first:.3f} | {shares} |")


if __name__ == "__main__":
    main()
