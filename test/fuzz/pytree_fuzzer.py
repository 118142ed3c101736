"""Mutated specs of arguments, as packages hold them: python pytree_fuzzer.py EXECUTIONS [FILE]

Each is a ValueError or a spec that unflattens; nothing is imported, opened or run. FILE gets a line "pytree EXECUTIONS".
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graft import _pytree

LEAF = {"type": None, "context": None, "children_spec": []}
NAMES = [
    None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.defaultdict",
    "collections.deque", "collections.namedtuple", "torch.Size", "torch.return_types.max", "transformers.ModelOutput",
    "os.environ", "this", "", "builtins.eval",
]  # fmt: skip
VALUES = [
    None, True, 0, -1, 1 << 70, 1.5, "", "null", "[]", "{}", '["a"]', '["a", "a"]', '[["a"]]', '{"a": 1}', '"this"',
    {"__enum__": True, "fqn": "this:s"}, {"default_factory_module": "os", "default_factory_name": "system", "dict_context": ["a"]},
    {"default_factory_module": "builtins", "default_factory_name": "list", "dict_context": []}, [], [LEAF], {}, LEAF,
]  # fmt: skip


def seeds() -> list[Any]:
    def node(name: Any, context: Any, *children: Any) -> dict[str, Any]:
        return {"type": name, "context": context, "children_spec": list(children)}

    factory = {"default_factory_module": "builtins", "default_factory_name": "list", "dict_context": ["a"]}
    arguments = node("builtins.tuple", "null", LEAF, node("builtins.list", "null", LEAF, LEAF))
    return [
        [1, node("builtins.tuple", "null", arguments, node("builtins.dict", '["a", "b"]', LEAF, LEAF))],
        [1, node("collections.OrderedDict", '["x", 3]', LEAF, node("collections.deque", "4", LEAF))],
        [1, node("collections.defaultdict", factory, node("torch.Size", "null", LEAF, LEAF))],
        [1, node("collections.namedtuple", '"Pair"', LEAF, LEAF)],
    ]


@contextlib.contextmanager
def deep() -> Iterator[None]:
    """Specs may be made here that are nested more deeply than Python recurses otherwise."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def dumps(spec: Any) -> str:
    with deep():
        return json.dumps(spec)


class Mutator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def mutant(self, spec: Any) -> str:
        with deep():
            spec = copy.deepcopy(spec)
            for _ in range(self.random.randint(1, 4)):
                self.change(spec)
            text = json.dumps(spec)
        if self.random.random() < 0.05:
            at = self.random.randrange(len(text) + 1)
            text = text[:at] + self.random.choice(["", "{", "]", '"', "1e999", "\\ud800", "[" * 2000]) + text[at + 1 :]
        return text

    def change(self, spec: Any) -> None:
        places: list[tuple[Any, Any]] = []
        open_ = [spec]
        while open_:
            value = open_.pop()
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                places.append((value, key))
                if isinstance(value[key], (dict, list)):
                    open_.append(value[key])
        if not places:
            return
        nodes = [(holder, key) for holder, key in places if isinstance(holder[key], dict) and "children_spec" in holder[key]]
        if nodes and self.random.random() < 0.6:  # mostly sound: another container around a node
            holder, key = self.random.choice(nodes)
            children = [copy.deepcopy(holder[key]) for _ in range(self.random.choice([1, 1, 2]))]
            name = self.random.choice(["builtins.list", "builtins.tuple", "torch.Size"])
            holder[key] = {"type": name, "context": "null", "children_spec": children}
            return
        holder, key = self.random.choice(places)
        kind = self.random.randrange(8)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 2:
            other, at = self.random.choice(places)
            if len(str(other[at])) < 4000:
                holder[key] = copy.deepcopy(other[at])
        elif kind == 3:
            for _ in range(self.random.choice([1, 2, 600])):
                holder[key] = {"type": "builtins.list", "context": "null", "children_spec": [holder[key]]}
        elif key == "type" or kind == 4:
            holder[key] = self.random.choice(NAMES)
        else:
            holder[key] = copy.deepcopy(self.random.choice(VALUES))


def run(executions: int, seed: int = 1) -> collections.Counter[str]:
    """How many were read, and how many refused."""
    mutator, corpus = Mutator(seed), seeds()
    counts: collections.Counter[str] = collections.Counter()
    watched = {"import", "open", "exec", "compile", "socket.connect", "subprocess.Popen", "os.system"}
    active = True

    def hook(event: str, _: Any) -> None:
        if active and event in watched:
            raise SystemExit(f"a spec caused {event}")

    sys.addaudithook(hook)
    try:
        for i in range(executions):
            text = mutator.mutant(corpus[i % len(corpus)])
            try:
                spec = _pytree.loads(text)
            except ValueError:
                counts["refused"] += 1
                continue
            try:
                _pytree.unflatten(range(spec.num_leaves), spec)
            except (TypeError, ValueError):  # classes that the program registered
                counts["of no value"] += 1
                continue
            counts["read"] += 1
            if i % 7 == 0 and len(text) < 2000:
                if len(corpus) < 40:
                    corpus.append(json.loads(text))
                else:
                    corpus[4 + i // 7 % 36] = json.loads(text)
    finally:
        active = False
    return counts


def main() -> None:
    executions = int(sys.argv[1])
    print(f"{executions} specs: {dict(run(executions))}")
    if len(sys.argv) > 2:
        with Path(sys.argv[2]).open("a") as file:
            file.write(f"pytree {executions}\n")


if __name__ == "__main__":
    main()
