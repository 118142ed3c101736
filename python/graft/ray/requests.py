"""What the router must know of a request: its model, and its prompt's beginning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graft.ray.affinity import BLOCK, blocks

# Of one connection, not of the request (RFC 9110, 7.6.1), and those that the next client writes itself.
_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host content-length".split()
)
_V2 = re.compile(r"/v2/models/([^/]+)(?:/infer)?$")
_BEFORE, _PROMPT = ("tools", "system", "instructions"), ("messages", "prompt", "input", "query")


@dataclass(frozen=True)
class Request:
    """An HTTP request on its way to a server. target: path with query. model: the name that it asks for, "" for none.
    prompt: digests of the blocks of its prompt. talk: a digest that the later turns of the same talk have too."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    model: str = ""
    prompt: list[int] = field(default_factory=list[int])
    talk: int | None = None


def end_to_end(headers: Mapping[str, str] | Any) -> tuple[tuple[str, str], ...]:
    """Headers that go on to the next hop."""
    return tuple((name, value) for name, value in headers.items() if name.lower() not in _HOP)


def described(
    method: str, target: str, headers: tuple[tuple[str, str], ...], body: bytes, default: str = ""
) -> Request:
    """With model and blocks, as far as the body is one that a server would take: what is wrong with it, the server says.
    default: the model that is written into one that names none."""
    path = target.partition("?")[0]
    if named := _V2.match(path):
        return Request(method, target, headers, body, named[1])
    fields: Any = None
    if method == "POST":
        try:
            fields = json.loads(body)
        except ValueError:  # among them text that is not UTF-8
            pass
    if not isinstance(fields, dict):
        return Request(method, target, headers, body)
    given: dict[str, Any] = fields
    if default and given.get("model") is None:
        given = {**given, "model": default}
        body = json.dumps(given).encode()
    model = given.get("model", "")
    model = model if isinstance(model, str) else ""
    text = next((given[name] for name in _PROMPT if given.get(name)), None)
    if text is not None:
        # Servers keep prompts apart by model and key. What follows is in the order in which templates write it.
        key = [value for name, value in headers if name.lower() in ("authorization", "x-api-key")]
        parts = [model, key, *(given.get(name) for name in _BEFORE), text]
        prompt = blocks(_bytes(parts))
        talk = blocks(_bytes([*parts[:-1], _beginning(text)]))[-1]
        return Request(method, target, headers, body, model, prompt, talk)
    return Request(method, target, headers, body, model)


def _bytes(parts: Any) -> bytes:
    return json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _beginning(prompt: Any) -> Any:
    """Of messages those up to the user's first; of a text or ids the first block, which is all that can be told."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        messages: list[Any] = prompt
        first = next((i for i, m in enumerate(messages) if isinstance(m, dict) and m.get("role") == "user"), len(messages))
        return messages[: first + 1]
    return prompt[:BLOCK] if isinstance(prompt, (str, list)) else None


__all__ = ["Request", "described", "end_to_end"]
