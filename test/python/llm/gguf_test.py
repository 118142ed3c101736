"""GGUF files of every architecture that the exporter knows: the package against the transformers model with the same
weights, and against llama.cpp on the same file."""

import numpy as np
import pytest
import torch
import transformers

import gguf_recurrent
import graft
import llm_models
from graft.errors import ExportError
from gguf_writer import llama_cpp_logits, rounded, tensors_of, values_of, write_gguf

_BASE = {**llm_models._LLAMA, "pad_token_id": None}
# (architecture, configuration, keys of the file besides the usual ones)
FILES = {
    "llama": (lambda: transformers.LlamaConfig(**_BASE), {}),
    "llama_scaled": (
        lambda: transformers.LlamaConfig(
            **_BASE, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}, tie_word_embeddings=True
        ),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "qwen2": (lambda: transformers.Qwen2Config(**{**_BASE, "head_dim": 8}), {}),
    "qwen3": (lambda: transformers.Qwen3Config(**_BASE, tie_word_embeddings=True), {}),
    "qwen3moe": (
        lambda: transformers.Qwen3MoeConfig(
            **_BASE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
        ),
        {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 24},
    ),
    "gemma2": (
        lambda: transformers.Gemma2Config(
            **_BASE,
            sliding_window=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=6.0,
            query_pre_attn_scalar=16,
        ),
        {"attention.sliding_window": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 6.0},
    ),
    "gemma3": (
        lambda: transformers.Gemma3TextConfig(
            **{**_BASE, "num_hidden_layers": 7}, sliding_window=8, query_pre_attn_scalar=16
        ),
        {"attention.sliding_window": 8},
    ),
    "phi3": (
        lambda: transformers.Phi3Config(**{**_BASE, "head_dim": 8}, partial_rotary_factor=0.5),
        {"attention.key_length": 8, "attention.value_length": 8, "rope.dimension_count": 4},
    ),
    **{name: (make, {}) for name, make in gguf_recurrent.CONFIGS.items()},
}


def write(tmp_path, name, values=(), tensors=()):
    make, own = FILES[name]
    model = llm_models.SmallModel(name, make).make()
    path = tmp_path / f"{name}.gguf"
    gguf_recurrent.settle(model)
    if name in gguf_recurrent.CONFIGS:
        usual, held = gguf_recurrent.values(model.config, name), gguf_recurrent.tensors(model, name)
    else:
        architecture = name.removesuffix("_scaled")
        usual, held = values_of(model.config, architecture, **own), tensors_of(model, architecture)
    write_gguf(path, {**usual, **dict(values)}, {**held, **dict(tensors)})
    return model, path


def logits(package, ids):
    rows = torch.arange(len(ids))
    return package.step(torch.tensor([ids]), rows[None], rows[None], rows)[0]


def error(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("name", "weights"), [*((name, "package") for name in FILES), ("llama", "external"), ("gemma2", "external")]
)
def test_architectures(tmp_path, name, weights):
    model, path = write(tmp_path, name)
    ids = torch.randint(3, llm_models.VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    package = graft.load(graft.export_llm(path, tmp_path / "m.pte", weights=weights), kv_length=64)
    found = logits(package, ids)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert error(found, expected) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_architectures_beside_llama_cpp(tmp_path, name):
    _, path = write(tmp_path, name)
    ids = torch.randint(3, llm_models.VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    package = graft.load(graft.export_llm(path, tmp_path / "m.pte"), kv_length=64)
    assert error(llama_cpp_logits(path, ids), logits(package, ids)) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "mxfp4", "tq2_0", "tq1_0"])
def test_blocks_are_read_as_stored(tmp_path, kind):
    """Rows of query and key are put into another order as they are: in blocks."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
    config = transformers.LlamaConfig(**{**_BASE, **sizes, "num_hidden_layers": 2})
    model = llm_models.SmallModel("blocks", lambda: config).make()
    path = tmp_path / "m.gguf"
    write_gguf(path, values_of(config, "llama"), tensors_of(model, "llama"), kind)
    for tensor in model.parameters():
        if tensor.dim() == 2:
            tensor.copy_(rounded(tensor, kind))
    ids = list(range(3, 43))
    expected = model(torch.tensor([ids])).logits[0]
    theirs = float((llama_cpp_logits(path, ids) - expected).abs().mean())
    for weights in ("package", "external"):
        package = graft.load(graft.export_llm(path, tmp_path / f"{weights}.pte", weights=weights), kv_length=64)
        ours = float((logits(package, ids) - expected).abs().mean())
        assert 0 < ours <= 1.05 * theirs
        # Weights in blocks in the file stay in blocks.
        assert package.stats()["weight_bytes"] < 1.2 * path.stat().st_size
        print(f"{kind}, {weights}: mean error {ours:.2e}, llama.cpp's {theirs:.2e}")


@pytest.mark.slow
def test_frequencies_of_the_file_count(tmp_path):
    """Llama 3.1 and later have a factor for each rotary frequency."""
    factors = torch.linspace(1, 7, 8)
    _, path = write(tmp_path, "llama", tensors={"rope_freqs.weight": factors})
    ids = list(range(3, 43))
    found = logits(graft.load(graft.export_llm(path, tmp_path / "m.pte"), kv_length=64), ids)
    expected = llama_cpp_logits(path, ids)
    assert error(found, expected) <= 1e-3
    _, plain = write(tmp_path, "llama")
    assert error(logits(graft.load(graft.export_llm(plain, tmp_path / "p.pte"), kv_length=64), ids), expected) > 1e-2


@pytest.mark.parametrize(
    ("values", "tensors", "message"),
    [
        ({"general.architecture": "rwkv7"}, {}, "architectures llama, qwen2.*found 'rwkv7'"),
        ({"llama.expert_count": 8}, {}, "keys that graft knows, found llama.expert_count"),
        ({"llama.rope.scaling.type": "yarn"}, {}, "'none' or 'linear', found 'yarn'"),
        ({}, {"blk.0.attn_gate.weight": torch.zeros(3)}, "found besides: blk.0.attn_gate.weight"),
        ({}, {"output_norm.weight": torch.zeros(3)}, r"model.norm.weight: the model has \[48\], the file \[3\]"),
    ],
)
def test_what_is_not_understood_is_an_error(tmp_path, values, tensors, message):
    _, path = write(tmp_path, "llama", values, tensors)
    with pytest.raises(ExportError, match=message):
        graft.export_llm(path, tmp_path / "m.pte")


@pytest.mark.parametrize(
    ("name", "values", "tensors", "message"),
    [
        ("mamba", {"mamba.ssm.dt_b_c_rms": True}, {}, "norms of dt, B and C .*found one of FalconMamba"),
        ("mamba", {"mamba.ssm.inner_size": 100}, {}, "divide ssm.inner_size by embedding_length, found 100 and 48"),
        ("mamba", {}, {"blk.1.ssm_a": torch.zeros(96, 16)}, "'blk.1.ssm_a': expected negative numbers, found 0.0"),
        ("mamba2", {}, {"blk.0.ssm_norm.weight": torch.zeros(2, 40)}, r"norm.weight: the model has \[96\], the file \[2, 40\]"),
        ("mamba", {}, {"blk.0.ssm_in.weight": torch.zeros(48, 192)}, r"in_proj.weight: the model has \[192, 48\], the file \[48, 192\]"),
        ("mamba2", {}, {"blk.0.ssm_x.weight": torch.zeros(3, 3)}, "found besides: blk.0.ssm_x.weight"),
        ("lfm2", {"lfm2.attention.head_count_kv": 2}, {}, "missing: model.layers.0.self_attn.q_proj.weight"),
        ("jamba", {"jamba.attention.head_count_kv": np.array([2, 2, 0], np.int32)}, {}, "layers of attention at equal distances|missing"),
        ("nemotron_h", {"nemotron_h.feed_forward_length": 80}, {}, "as a list, a number for each layer, found 80"),
        ("llama", {"llama.feed_forward_length": np.array([80, 80, 80], np.int32)}, {}, "for all layers, found a list"),
        ("qwen35", {"qwen35.ssm.time_step_rank": 3}, {}, "divide ssm.inner_size by ssm.time_step_rank, found 64 and 3"),
    ],
)
def test_what_does_not_fit_a_recurrent_layer_is_an_error(tmp_path, name, values, tensors, message):
    _, path = write(tmp_path, name, values, tensors)
    with pytest.raises(ExportError, match=message):
        graft.export_llm(path, tmp_path / "m.pte")
    assert not (tmp_path / "m.pte").exists()


def test_damaged_files(tmp_path):
    _, path = write(tmp_path, "llama")
    whole = path.read_bytes()
    for kept in (4, 20, 300, len(whole) - 5000):
        path.write_bytes(whole[:kept])
        with pytest.raises(ExportError):
            graft.export_llm(path, tmp_path / "m.pte")
    assert not (tmp_path / "m.pte").exists()
