"""A decoder of Qwen3's shape, with 6 and (slow) 28 layers, whose KV cache is plain buffers, written with `index_copy_`:
prefill and decode by one program, its buffers the states of a session."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import graft
from quick import quick

WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY, CONTEXT = 64, 4, 2, 16, 96, 97, 48


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD, 1e-6), nn.RMSNorm(HEAD, 1e-6)
        self.gate, self.up = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)
        self.register_buffer("k_cache", torch.zeros(1, KV_HEADS, CONTEXT, HEAD))
        self.register_buffer("v_cache", torch.zeros(1, KV_HEADS, CONTEXT, HEAD))

    def heads(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.view(1, -1, count, HEAD)

    def forward(self, x, position, cos, sin, mask):
        def rotate(t):  # [1, heads, T, HEAD]
            half = torch.cat((-t[..., HEAD // 2 :], t[..., : HEAD // 2]), -1)
            return t * cos + half * sin

        h = self.norm_in(x)
        q = rotate(self.q_norm(self.heads(self.q(h), HEADS)).transpose(1, 2))
        k = rotate(self.k_norm(self.heads(self.k(h), KV_HEADS)).transpose(1, 2))
        self.k_cache.index_copy_(2, position, k)
        self.v_cache.index_copy_(2, position, self.heads(self.v(h), KV_HEADS).transpose(1, 2))
        seen = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, attn_mask=mask, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).reshape(1, -1, HEADS * HEAD))
        h = self.norm_out(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """ids [1, T] at positions [T] -> logits [1, T, VOCABULARY]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH, 1e-6)

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        frequency = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angle = position[:, None] * frequency
        angle = torch.cat((angle, angle), -1)
        mask = torch.arange(CONTEXT) <= position[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, position, angle.cos(), angle.sin(), mask)
        return F.linear(self.norm(x), self.embed.weight)


def generate(model, prompt: list[int], count: int, start: int = 0) -> tuple[list[int], list[torch.Tensor]]:
    """Greedy tokens and the logits of each step: one call for the prompt, then one per token."""
    logits = model(torch.tensor([prompt]), torch.arange(start, start + len(prompt)))
    steps, tokens = [logits], []
    for i in range(count):
        tokens.append(int(logits[0, -1].argmax()))
        logits = model(torch.tensor([tokens[-1:]]), torch.tensor([start + len(prompt) + i]))
        steps.append(logits)
    return tokens, steps


@pytest.fixture(scope="module", params=quick([6], [6, 28]))
def layers(request):
    return request.param


@pytest.fixture(scope="module")
def package(tmp_path_factory, layers):
    path = tmp_path_factory.mktemp("decoder") / "decoder.pte"
    t = torch.export.Dim("t", min=1, max=CONTEXT)
    example = (torch.zeros(1, 3, dtype=torch.int64), torch.arange(3))
    graft.export(Decoder(layers).eval(), example, dynamic_shapes=({1: t}, {0: t}), path=path)
    return path


@torch.no_grad()
def test_prefill_and_decode_equal_eager(package, layers):
    prompt = [5, 17, 3, 88, 41, 2, 9]
    tokens, steps = generate(Decoder(layers).eval(), prompt, 20)
    model = graft.load(package)
    ours, logits = generate(model, prompt, 20)
    assert ours == tokens
    for got, expected in zip(logits, steps, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    counters = model.counters()
    assert counters["plan_misses"] == 2  # prefill and decode
    assert counters["graphs_built"] == 2
    rows = len(prompt) + 20
    assert counters["state_bytes_written"] == rows * layers * 2 * KV_HEADS * HEAD * 4  # the new rows and nothing else
    assert counters["state_bytes"] == layers * 2 * KV_HEADS * HEAD * CONTEXT * 4


CONTINUE = """
import sys, torch, graft
model = graft.load(sys.argv[1])
model.restore(sys.argv[2])
logits = model(torch.tensor([[int(sys.argv[3])]]), torch.tensor([int(sys.argv[4])]))
torch.save(logits, sys.argv[5])
"""


def test_saved_in_one_process_and_continued_in_another(package, tmp_path):
    model = graft.load(package)
    prompt = [5, 17, 3, 88]
    tokens, _ = generate(model, prompt, 6)
    model.save(tmp_path / "states")
    position = len(prompt) + 6
    expected = model(torch.tensor([tokens[-1:]]), torch.tensor([position]))
    arguments = [package, tmp_path / "states", tokens[-1], position, tmp_path / "logits.pt"]
    subprocess.run([sys.executable, "-W", "ignore", "-c", CONTINUE, *map(str, arguments)], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected, rtol=0, atol=0)


def test_a_fork_goes_its_own_way(package):
    model = graft.load(package)
    generate(model, [5, 17, 3, 88], 2)
    other = model.fork()
    a, _ = generate(model, [1, 2], 4, start=7)
    b, _ = generate(other, [90, 60, 30], 4, start=7)
    fresh = graft.load(package)
    generate(fresh, [5, 17, 3, 88], 2)
    again, _ = generate(fresh, [1, 2], 4, start=7)
    assert a == again
    assert a != b
