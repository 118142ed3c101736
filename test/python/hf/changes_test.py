"""Models that change after `graft.compile`: what changes takes effect, or the next call says that it has not."""

import copy
import pickle

import pytest
import torch
import transformers
from transformers import DynamicCache

import graft
import identity_test
import llm_models
from identity_test import IDS, close

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def small():
    return llm_models.BY_NAME["qwen3"].make()


@pytest.fixture
def compiled(small):
    return graft.compile(copy.deepcopy(small), threads=1)


def both(models, change):
    with torch.no_grad():
        for model in models:
            change(model)


# --- the program is another one ---


def resized(model):
    model.resize_token_embeddings(llm_models.VOCAB + 8)


def config_edit(model):
    model.config.rms_norm_eps = 0.1


def nested_config_edit(model):
    model.config.rope_parameters["rope_theta"] = 3.0


def other_buffer(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


def other_type(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.bfloat16(), requires_grad=False)


def added_parameter(model):
    model.model.layers[0].mlp.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize(
    "change",
    [*identity_test.CHANGES, resized, config_edit, nested_config_edit, other_buffer, other_type, added_parameter],
)
def test_changes_that_need_another_program(small, compiled, change):
    compiled(IDS)
    both([compiled], change)
    with pytest.raises(graft.Unsupported, match="compile the model again"):
        compiled(IDS)
    with pytest.raises(graft.Unsupported, match="compile the model again"):
        compiled.generate(IDS, max_new_tokens=2)
    if change not in (config_edit, nested_config_edit, other_type):  # read already; eager PyTorch does not run it
        eager = copy.deepcopy(small)
        both([eager], change)
        close(eager, graft.compile(compiled, threads=1))


def test_a_patched_class(small, compiled, monkeypatch):
    monkeypatch.setattr(type(small.model.layers[0].mlp), "forward", lambda self, x: x)
    with pytest.raises(graft.Unsupported, match="class Qwen3MLP: attribute 'forward'"):
        compiled(IDS)


@pytest.mark.parametrize("change", [identity_test.hooked, identity_test.low_rank])
def test_changes_between_steps(compiled, change):
    cache = compiled(IDS).past_key_values
    change(compiled)
    with pytest.raises(graft.Unsupported, match="compile the model again"):
        compiled(IDS[:, :1], past_key_values=cache)


def test_settings_of_generate_are_free(small, compiled):
    for model in (small_copy := copy.deepcopy(small), compiled):
        model.config.pad_token_id = 5
        model.config.use_cache = False
        model.generation_config.max_new_tokens = 4
    assert torch.equal(small_copy.generate(IDS, do_sample=False), compiled.generate(IDS, do_sample=False))


# --- the weights are others ---


def in_place(model):
    model.lm_head.weight.mul_(0.5)
    model.model.layers[0].input_layernorm.weight.add_(1)


def through_data(model):
    model.model.layers[0].mlp.down_proj.weight.data.mul_(2)


def replaced(model):
    mlp = model.model.layers[0].mlp
    mlp.down_proj.weight = torch.nn.Parameter(mlp.down_proj.weight * 2, requires_grad=False)


def loaded(model):
    model.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("change", [in_place, through_data, replaced, loaded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_weights_take_effect(small, change, dtype):
    compiled = graft.compile(copy.deepcopy(small).to(dtype), threads=1)
    eager = copy.deepcopy(small).to(dtype)
    before = close(copy.deepcopy(eager).float(), compiled)
    cache = compiled(IDS).past_key_values
    both([eager, compiled], change)
    expected = close(eager.float(), compiled)
    assert (expected - before).abs().max() > 0.01 * before.abs().max()
    with pytest.raises(graft.Unsupported, match="filled with other weights"):
        compiled(IDS[:, :1], past_key_values=cache)
    assert compiled.graft.stats()["reloaded"] == 1


def test_other_weights_between_steps(compiled):
    cache = compiled(IDS).past_key_values
    both([compiled], in_place)
    with pytest.raises(graft.Unsupported, match="filled with other weights"):
        compiled(IDS[:, :1], past_key_values=cache)
    compiled(IDS)


def test_other_weights_of_quantized_models():
    config = transformers.LlamaConfig(**{**llm_models._LLAMA, "hidden_size": 96, "intermediate_size": 64})
    torch.manual_seed(0)
    compiled = graft.compile(transformers.LlamaForCausalLM(config).eval(), quantize="q8_0")
    compiled(IDS)
    both([compiled], lambda model: model.lm_head.weight.mul_(2))
    with pytest.raises(graft.Unsupported, match="lm_head.weight was changed.*compile the model again"):
        compiled(IDS)


# --- copies ---


def test_copies_are_models_of_their_own(small, compiled):
    before = compiled(IDS).logits
    other, eager = copy.deepcopy(compiled), copy.deepcopy(small)
    both([other, eager], in_place)
    close(eager, other)
    assert torch.equal(compiled(IDS).logits, before)
    third = copy.deepcopy(compiled)
    both([compiled], in_place)  # what the copy was made of
    assert torch.equal(third(IDS).logits, before)
    identity_test.epsilon(third)
    with pytest.raises(graft.Unsupported, match="variance_epsilon"):
        third(IDS)
    with pytest.raises(graft.Unsupported, match="variance_epsilon"):
        copy.deepcopy(third)(IDS)


def test_pickling(small, compiled):
    made = pickle.loads(pickle.dumps(compiled))
    assert type(made).__name__ == "Qwen3ForCausalLM" and made.graft.stats()["compiled"]["from_disk"]
    close(small, made)
    released = graft.compile(copy.deepcopy(small), release_weights=True)
    with pytest.raises(graft.Unsupported, match="pickle: the weights of this model were released"):
        pickle.dumps(released)


def test_save_pretrained(small, compiled, tmp_path):
    compiled.save_pretrained(tmp_path / "kept")
    close(small, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "kept").eval())
    released = graft.compile(copy.deepcopy(small), release_weights=True)
    with pytest.raises(graft.Unsupported, match="save_pretrained: the weights of this model were released"):
        released.save_pretrained(tmp_path / "released")


def test_encoders(tmp_path):
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    torch.manual_seed(0)
    eager = transformers.BertModel(config).eval().requires_grad_(False)
    compiled, ids = graft.compile(copy.deepcopy(eager)), IDS % 99

    def same():
        expected, found = eager(ids)[0], compiled(ids)[0]
        assert (expected - found).abs().max() <= 1e-4 * expected.abs().max()

    same()
    both([eager, compiled], lambda model: model.encoder.layer[0].output.dense.weight.mul_(3))
    same()
    other = copy.deepcopy(compiled)
    both([other], lambda model: model.encoder.layer[0].output.dense.weight.mul_(3))
    other(ids)
    same()
    pickled = pickle.loads(pickle.dumps(compiled))
    assert isinstance(pickled, transformers.BertModel) and pickled.graft is not compiled.graft
    assert torch.equal(pickled(ids)[0], compiled(ids)[0])
    compiled.save_pretrained(tmp_path)
    kept = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert type(kept) is transformers.BertModel and torch.equal(kept(ids)[0], eager(ids)[0])
    compiled.encoder.layer[0].attention.output.register_forward_hook(lambda _, args, output: output * 2)
    with pytest.raises(graft.Unsupported, match="hook.*compile the model again"):
        compiled(ids)


# --- the cost ---


def test_steps_look_at_little(small, compiled, monkeypatch):
    """Of a step: each dictionary of submodules and hooks, and place and version of each weight; nothing else."""
    cache = DynamicCache()
    compiled(IDS, past_key_values=cache)
    guard = compiled._graft_guard
    monkeypatch.setattr(guard._attributes, "check", lambda: pytest.fail("looked at attributes"))
    compiled(IDS[:, :1], past_key_values=cache)
    modules = len(list(compiled.modules()))
    assert len(guard._structure._live) == 3 * modules - 2
