"""For tests: reads a blob of the IR with flatc and the schema, and stands in for the engine's predicate."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).resolve().parents[3] / "schema" / "graft.fbs"


def read(blob: bytes) -> dict[str, Any]:
    """The blob as JSON, defaults written out."""
    flatc = shutil.which("flatc", path="/usr/bin:/usr/local/bin") or shutil.which("flatc")
    assert flatc is not None, "flatc is missing; apt-get install flatbuffers-compiler"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.bin"
        file.write_bytes(blob)
        subprocess.run(
            [flatc, "--json", "--strict-json", "--defaults-json", "-o", folder, str(SCHEMA), "--", str(file)],
            check=True,
        )
        text = file.with_suffix(".json").read_text()
    numbers = {"inf": "Infinity", "nan": "NaN"}
    return json.loads(re.sub(r": (-?)(inf|nan)\b", lambda m: f": {m[1]}{numbers[m[2]]}", text))


class Method:
    """A method of a read blob with ids resolved."""

    def __init__(self, program: dict[str, Any], index: int = 0) -> None:
        self.program = program
        self.table = program["methods"][index]
        self.values = self.table["values"]
        self.nodes = self.table["nodes"]

    def target(self, node: dict[str, Any]) -> str:
        return self.program["ops"][node["op"]]["target"]

    def targets(self) -> list[str]:
        return [self.target(node) for node in self.nodes]

    def histogram(self) -> Counter[str]:
        return Counter(self.targets())

    def node(self, target: str) -> dict[str, Any]:
        (found,) = [node for node in self.nodes if self.target(node) == target]
        return found

    def args(self, node: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name: constants as Python has them, values as "%name"."""
        names = self.program["ops"][node["op"]]["arg_names"]
        assert len(names) == len(node["args"])
        return {name: self.plain(arg) for name, arg in zip(names, node["args"])}

    def plain(self, arg: dict[str, Any]) -> Any:
        kind = arg["kind"]
        if kind == "none":
            return None
        if kind == "list":
            return [self.plain(item) for item in arg.get("items", [])]
        if kind == "value":
            return "%" + self.values[arg["i"]]["name"]
        if kind == "bool_":
            return bool(arg["i"])
        if kind == "int_":
            return arg["i"]
        if kind == "float_":
            return arg["f"]
        if kind == "dtype":
            return ("dtype", arg["i"])
        if kind == "string_":
            return arg["s"]
        return (kind, arg["s"])

    def outputs(self) -> list[tuple[str, int, Any]]:
        return [(out["kind"], out["index"], self.plain(out["arg"])) for out in self.table["outputs"]]

    def inputs(self) -> dict[str, tuple[str, int]]:
        return {self.values[i["value"]]["name"]: (i["kind"], i["index"]) for i in self.table["inputs"]}

    def value(self, name: str) -> dict[str, Any]:
        (found,) = [value for value in self.values if value["name"] == name]
        return found

    def ranges(self, name: str) -> list[tuple[int, int]]:
        return [(dim["min"], dim["max"]) for dim in self.value(name)["dims"]]


class FakePredicate:
    """Refuses the targets and node names given; keeps what it read."""

    def __init__(self, refuse: Iterable[str] = (), nodes: Iterable[str] = (), preserve: Iterable[str] = ()) -> None:
        self.refuse = set(refuse)
        self.nodes = set(nodes)
        self.preserve = list(preserve)
        self.read: list[dict[str, Any]] = []

    def preserved_targets(self) -> list[str]:
        return self.preserve

    def refusals(self, program: bytes) -> list[tuple[int, str, str, str]]:
        table = read(program)
        self.read.append(table)
        found = []
        for index in range(len(table["methods"])):
            method = Method(table, index)
            for node in method.nodes:
                target = method.target(node)
                unknown = target.startswith(("unsupported.", "higher_order."))
                if unknown or target in self.refuse or node["name"] in self.nodes:
                    found.append((index, node["name"], target, "refused by the test"))
        return found
