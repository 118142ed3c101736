"""Exported programs on disk: a modified model never gets the program of the clean one, nor the other way round."""

import copy
import functools
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import transformers

import graft
import llm_models
from graft.hf import identity

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def small():
    return llm_models.BY_NAME["qwen3"].make()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_CACHE", str(tmp_path))
    return tmp_path


IDS = torch.randint(3, llm_models.VOCAB, (2, 9), generator=torch.Generator().manual_seed(9))
SCALE = 0.5


def hooked(model):
    model.model.layers[1].mlp.register_forward_hook(lambda _, args, output: output * SCALE)


def hooked_before(model):
    model.model.layers[1].mlp.register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))


def patched_forward(model):
    def forward(self, x):
        return self.down_proj(self.up_proj(x))

    mlp = model.model.layers[1].mlp
    mlp.forward = types.MethodType(forward, mlp)


def wrapped_forward(model):
    mlp = model.model.layers[1].mlp
    before = mlp.forward
    mlp.forward = lambda x: before(x) * 0.5


def partial_forward(model):
    mlp = model.model.layers[1].mlp
    mlp.forward = functools.partial(lambda factor, x: type(mlp).forward(mlp, x) * factor, 0.5)


def activation(model):
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()


def activation_function(model):
    mlp = model.model.layers[1].mlp
    del mlp.act_fn
    mlp.act_fn = torch.tanh


def epsilon(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 0.3


def scaling(model):
    model.model.layers[1].self_attn.scaling *= 0.25


def skipped_layer(model):
    class Skip(torch.nn.Module):
        attention_type = "full_attention"

        def forward(self, x):
            return x

    model.model.layers[1].mlp = Skip()


def low_rank(model):
    class LowRank(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            generator = torch.Generator().manual_seed(0)
            self.a = torch.nn.Parameter(torch.randn(4, base.in_features, generator=generator), requires_grad=False)
            self.b = torch.nn.Parameter(torch.randn(base.out_features, 4, generator=generator) * 0.1, requires_grad=False)

        def forward(self, x):
            return self.base(x) + x @ self.a.t() @ self.b.t()

    attention = model.model.layers[1].self_attn
    attention.q_proj = LowRank(attention.q_proj)


CHANGES = [
    hooked, hooked_before, patched_forward, wrapped_forward, partial_forward, activation, activation_function, epsilon,
    scaling, skipped_layer, low_rank,
]  # fmt: skip


def close(eager, compiled):
    with torch.no_grad():
        expected, found = eager(IDS).logits, compiled(IDS).logits
    assert (expected - found).abs().max() <= CLOSE * expected.abs().max()
    return expected


@pytest.mark.parametrize(
    ("change", "first"),
    [
        *((change, "clean") for change in CHANGES),
        (hooked, "changed"),
        *(pytest.param(change, "changed", marks=pytest.mark.slow) for change in CHANGES[1:]),
    ],
)
def test_a_modified_model(small, folder, change, first):
    for what in (first, "changed" if first == "clean" else "clean"):
        model, other = made(small, change, what), made(small, change, what)
        expected = close(model, graft.compile(other, threads=1))
        if what == "changed":
            with torch.no_grad():
                clean = small(IDS).logits
            assert (expected - clean).abs().max() > 0.01 * clean.abs().max()  # the change shows


def made(small, change, what):
    """Not a copy of a changed model: closures would still belong to the first."""
    model = copy.deepcopy(small)
    if what == "changed":
        change(model)
    return model


def test_patched_functions_of_the_models_file(small, folder, monkeypatch):
    close(small, graft.compile(copy.deepcopy(small), threads=1))
    file = sys.modules[type(small).__module__]
    before = file.apply_rotary_pos_emb
    monkeypatch.setattr(file, "apply_rotary_pos_emb", lambda q, k, cos, sin, *_: before(q, k, cos * 0.5, sin))
    compiled = graft.compile(copy.deepcopy(small), threads=1)
    assert not compiled.graft.stats()["compiled"]["from_disk"]
    close(small, compiled)
    monkeypatch.undo()
    monkeypatch.setenv("GRAFT_CACHE", str(folder))
    monkeypatch.setattr(type(small.model.layers[0].mlp), "forward", lambda self, x: self.down_proj(self.up_proj(x)))
    close(small, graft.compile(copy.deepcopy(small), threads=1))


def test_what_a_function_reads_counts(small, monkeypatch):
    model = copy.deepcopy(small)
    hooked(model)
    before = identity.known(model)
    monkeypatch.setitem(globals(), "SCALE", 0.25)
    assert identity.known(model) != before and before is not None


def test_a_model_that_cannot_be_described_is_not_kept(small, folder):
    def make():
        model = copy.deepcopy(small)
        opaque = iter([])

        def hook(_, args, output, unread=opaque):
            return output * 0.5

        model.model.layers[1].mlp.register_forward_hook(hook)
        return model

    assert identity.known(make()) is None
    for _ in range(2):
        compiled = graft.compile(make(), threads=1)
        assert not compiled.graft.stats()["compiled"]["from_disk"]
        close(make(), compiled)
    assert not list(folder.glob("*.pte"))


def test_hooks_that_only_look_are_errors(small, folder):
    seen = []
    model = copy.deepcopy(small)
    model.model.layers[0].register_forward_hook(lambda _, args, output: seen.append(output))
    with pytest.raises(graft.ExportError, match=r"model.layers.0: expected hooks that give back.*lambda"):
        graft.compile(model)
    assert not seen or all(isinstance(one, (torch.Tensor, tuple)) for one in seen)


def test_hooks_of_the_model_itself_run(small):
    def halve(_, args, output):
        output.logits = output.logits * 0.5
        return output

    calls = []
    models = [copy.deepcopy(small), copy.deepcopy(small)]
    for model in models:
        model.register_forward_hook(halve)
        model.register_forward_pre_hook(lambda *_: calls.append(1))
    compiled = graft.compile(models[1], threads=1)
    close(models[0], compiled)
    calls.clear()
    compiled(IDS)
    assert len(calls) == 1


def test_another_encoder(folder):
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    torch.manual_seed(0)
    clean = transformers.BertModel(config).eval()

    def change(model):
        model.encoder.layer[0].attention.output.register_forward_hook(lambda _, args, output: output * 0.5)
        return model

    ids = IDS % 99
    with torch.no_grad():
        for make in (lambda: change(copy.deepcopy(clean)), lambda: copy.deepcopy(clean)):
            expected, found = make()(ids)[0], graft.compile(make())(ids)[0]
            assert (expected - found).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.slow
def test_the_same_in_another_process(small):
    code = """
import llm_models
from graft.hf import identity
print([identity.known(llm_models.BY_NAME[name].make()) for name in ("qwen3", "gemma3", "gpt2", "mixtral", "opt")])
"""
    path = str(Path(llm_models.__file__).parent)
    said = {
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r})\n{code}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert len(said) == 1 and "None" not in said.pop()
