"""What graft relies on in transformers. A new version that changes any of it fails here, by name, before something subtle
goes wrong elsewhere."""

import importlib
import inspect

import pytest
import torch
import transformers
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    StaticCache,
    cache_utils,
    masking_utils,
)
from transformers.integrations.moe import ExpertsInterface

import graft.hf.causal
import graft.llm.interface  # registers
import llm_models

# Names of parameters, and of functions that graft calls or overrides. fmt: off
SIGNATURES = {
    "cache_utils.CacheLayerMixin.lazy_initialization": "self key_states value_states",
    "cache_utils.CacheLayerMixin.update": "self key_states value_states args kwargs",
    "cache_utils.CacheLayerMixin.get_mask_sizes": "self query_length",
    "cache_utils.CacheLayerMixin.get_seq_length": "self",
    "cache_utils.CacheLayerMixin.get_max_length": "self",
    "cache_utils.CacheLayerMixin.offload": "self",
    "cache_utils.CacheLayerMixin.prefetch": "self",
    "cache_utils.CacheLayerMixin.reset": "self",
    "cache_utils.CacheLayerMixin.reorder_cache": "self beam_idx",
    "cache_utils.DynamicLayer.crop": "self tokens_to_remove",
    "cache_utils.DynamicLayer.batch_repeat_interleave": "self repeats",
    "cache_utils.DynamicLayer.batch_select_indices": "self indices",
    "cache_utils.DynamicSlidingWindowLayer.__init__": "self sliding_window kwargs",
    "cache_utils.StaticLayer.__init__": "self max_cache_len kwargs",
    "cache_utils.StaticSlidingWindowLayer.__init__": "self max_cache_len sliding_window kwargs",
    "cache_utils.Cache.__init__": "self layers layer_class_to_replicate offloading offload_only_non_sliding",
    "cache_utils.Cache.update": "self key_states value_states layer_idx args kwargs",
    "cache_utils.Cache.get_seq_length": "self layer_idx",
    "cache_utils.Cache.crop": "self tokens_to_remove",
    "cache_utils.DynamicCache.__init__": "self ddp_cache_data config offloading offload_only_non_sliding",
    "cache_utils.StaticCache.__init__": "self config max_cache_len offloading offload_only_non_sliding kwargs",
    "masking_utils.create_causal_mask": "config inputs_embeds attention_mask past_key_values position_ids or_mask_function and_mask_function block_sequence_ids layer_idx allow_is_causal_skip",
    "masking_utils.create_sliding_window_causal_mask": "config inputs_embeds attention_mask past_key_values position_ids or_mask_function and_mask_function block_sequence_ids layer_idx allow_is_causal_skip",
    "masking_utils.create_masks_for_generate": "config inputs_embeds attention_mask past_key_values position_ids or_mask_function and_mask_function block_sequence_ids kwargs",
    "masking_utils.causal_mask_function": "batch_idx head_idx q_idx kv_idx",
    "masking_utils.and_masks": "mask_functions",
    "masking_utils.sliding_window_overlay": "sliding_window",
    "masking_utils.chunked_overlay": "chunk_size left_padding",
    "generation.utils.GenerationMixin.generate": "self inputs generation_config logits_processor stopping_criteria prefix_allowed_tokens_fn synced_gpus assistant_model streamer negative_prompt_ids negative_prompt_attention_mask custom_generate kwargs",
    "generation.utils.GenerationMixin.prepare_inputs_for_generation": "self input_ids next_sequence_length past_key_values attention_mask inputs_embeds is_first_iteration kwargs",
    "generation.utils.GenerationMixin._prepare_cache_for_generation": "self generation_config model_kwargs generation_mode batch_size max_cache_length",
    "generation.utils.GenerationMixin._prepare_static_cache": "self cache_implementation batch_size max_cache_len prefill_chunk_size model_kwargs",
    "generation.utils.GenerationMixin._prefill": "self input_ids generation_config model_kwargs is_first_iteration",
    "generation.utils.GenerationMixin._valid_auto_compile_criteria": "self model_kwargs generation_config",
    "generation.utils.GenerationMixin.generate_batch": "self inputs generation_config continuous_batching_config record_timestamps progress_bar persistent_manager warmup kwargs",
    "generation.utils.GenerationMixin.init_continuous_batching": "self generation_config continuous_batching_config workload_hints",
    "models.qwen3.modeling_qwen3.Qwen3ForCausalLM.forward": "self input_ids attention_mask position_ids past_key_values inputs_embeds labels use_cache logits_to_keep kwargs",
    "models.gpt2.modeling_gpt2.GPT2LMHeadModel.forward": "self input_ids past_key_values attention_mask token_type_ids position_ids inputs_embeds encoder_hidden_states encoder_attention_mask labels use_cache logits_to_keep kwargs",
    "modeling_rope_utils.dynamic_rope_update": "rope_forward",
    "modeling_rope_utils._compute_longrope_parameters": "config device seq_len layer_type",
    "exporters.auto.register_backend": "exporter runner",
    "exporters.base.HfExporter.export_program": "self model sample_inputs config",
    "exporters.exporter_executorch.prepare_for_xnnpack": "model sample_inputs",
    "exporters.runners.base.ModelRunner.from_program": "program metadata device",
    "exporters.runners.base.ModelRunner.__call__": "self share_inputs share_outputs kwargs",
}
# fmt: on


def resolve(path):
    parts = path.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["transformers", *parts[:i]]))
        except ImportError:
            continue
        for part in parts[i:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"transformers.{path} is gone")


def test_the_version():
    assert transformers.__version__.startswith("5.23."), (
        f"graft.compile was made for transformers 5.23, this is {transformers.__version__}: run all hf_*_test.py with "
        "--slow, and then change this"
    )


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures(path):
    assert " ".join(inspect.signature(resolve(path)).parameters) == SIGNATURES[path], f"transformers.{path} changed"


def test_layers_of_caches():
    abstract = cache_utils.CacheLayerMixin.__abstractmethods__
    assert abstract == {"lazy_initialization", "update", "get_mask_sizes", "get_seq_length", "get_max_length"}
    for name in ("is_compileable", "is_croppable", "supports_early_init"):
        assert hasattr(cache_utils.CacheLayerMixin, name)
    assert set(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING) == set(cache_utils.STATIC_LAYER_TYPE_MAPPING)
    known = {"full_attention", "sliding_attention", "chunked_attention"}
    assert known <= set(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING)
    cache = DynamicCache()
    assert (cache.layers, cache.layer_class_to_replicate, cache.offloading) == ([], cache_utils.DynamicLayer, False)
    cache = StaticCache(config=llm_models.BY_NAME["gemma3"].config(), max_cache_len=20)
    assert [layer.max_cache_len for layer in cache.layers] == [8, 20, 8]
    assert cache.is_compileable  # else generate() would make no masks of four dimensions


def test_masks_are_recognized():
    """By the code of the functions that they are made of."""
    assert masking_utils.sliding_window_overlay(1).__code__.co_freevars == ("sliding_window",)
    assert set(masking_utils.chunked_overlay(1, torch.zeros(1)).__code__.co_freevars) == {"chunk_size", "left_padding"}
    assert masking_utils.and_masks().__code__.co_freevars == ("mask_functions",)
    assert masking_utils.create_causal_mask.__code__.co_name == "create_causal_mask"


def test_the_interfaces():
    for interface in (AttentionInterface(), AttentionMaskInterface(), ExpertsInterface()):
        assert "graft" in interface.valid_keys()


def test_rotary_modules():
    """Frequencies that follow from a call's length are chosen around each forward, in front of which the choice is made
    elsewhere (`graft.llm.rope`)."""
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(llm_models.BY_NAME["llama"].config())
    assert module.rope_type == "default" and module.original_max_seq_len == llm_models.CONTEXT
    assert torch.equal(module.inv_freq, module.original_inv_freq) and "inv_freq" in module._buffers
    assert {"longrope", "dynamic"} <= set(transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS)
    plain = inspect.unwrap(type(module).forward)
    assert plain is not type(module).forward and "dynamic" not in plain.__code__.co_names
    assert list(inspect.signature(plain).parameters) == ["self", "x", "position_ids"]


def test_what_generate_hands_over():
    """Positions always, a mask only with padding, a dict of masks only for caches that can be compiled."""
    model = llm_models.BY_NAME["gemma3"].make()
    ids, mask, _, _ = llm_models.left_padded(2, 9, (0, 4))
    seen = []

    class Seen(type(model)):
        def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **kwargs):
            seen.append((attention_mask, position_ids, past_key_values, kwargs))
            return super().forward(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                **kwargs,
            )

    model.__class__ = Seen
    options = dict(max_new_tokens=3, do_sample=False, eos_token_id=None)
    model.generate(ids, attention_mask=mask, **options)
    assert [tuple(m.shape) for m, *_ in seen] == [(2, 9), (2, 10), (2, 11)]
    assert [tuple(p.shape) for _, p, *_ in seen] == [(2, 9), (2, 1), (2, 1)]
    assert all(isinstance(c, DynamicCache) for *_, c, _ in seen)
    assert all("cache_position" not in k for *_, k in seen)
    seen.clear()
    model.generate(ids, attention_mask=torch.ones_like(mask), **options)
    assert all(m is None for m, *_ in seen)
    seen.clear()
    model.generate(ids, attention_mask=mask, cache_implementation="static", **options)
    assert all(set(m) == {"full_attention", "sliding_attention"} for m, *_ in seen)
    assert all(m["full_attention"].dim() == 4 for m, *_ in seen)


def test_nothing_else_takes_the_names():
    """Attributes that compiled models add to those of transformers."""
    kind = transformers.Qwen3ForCausalLM
    attributes = ("graft", "_graft_dtype", "_graft_windows", "_graft_guard", "_graft_options", "_uncompiled", "_named")
    assert not any(hasattr(kind, name) for name in attributes)
    replaced = {name for name in vars(graft.hf.causal.Compiled) if not name.startswith("__")}
    added = {"_uncompiled", "_named", "_forward", "_logits", "_positions", "_check_call", "_check_kept", "_ignores"}
    added |= {"_up_to_date", "_general", "_by_general", "_beyond", "_check_prompt", "_base", "_graft_lora", "_chosen_adapters"}
    added |= {"create_masks_for_generate", "_reorder_cache"}
    overridden = {"generate", "init_continuous_batching"}
    overridden |= {"get_compiled_call", "save_pretrained", "device", "dtype"}
    assert replaced - added == overridden
    assert all(hasattr(kind, name) for name in overridden)
    assert not any(hasattr(kind, name) for name in added - {"_reorder_cache"})
