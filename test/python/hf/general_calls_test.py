"""Calls that a model of the fast route gives to the general one, beside eager PyTorch."""

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

import graft
import llm_models

CLOSE = 1e-4
pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ["qwen3", "mistral", "gpt2"]  # rotary positions, a window, learned positions


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    eager = llm_models.BY_NAME[request.param].make()
    eager.set_attn_implementation("eager")  # which alone gives attention weights
    eager.generation_config.pad_token_id = 0
    return eager, graft.compile(copy.deepcopy(eager), threads=1, route="fast")


def prompt(tokens, rows=2):
    return torch.randint(3, llm_models.VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(tokens))


def padded(tokens, padding, left=False):
    """Ids and mask of two prompts; the second one has padding."""
    ids, mask = prompt(tokens), torch.ones(2, tokens, dtype=torch.int64)
    mask[1, slice(0, padding) if left else slice(tokens - padding, tokens)] = 0
    return ids.masked_fill(mask == 0, 0), mask


def differ(expected, found):
    assert expected.shape == found.shape and expected.dtype == found.dtype
    return ((expected - found).abs().max() / expected.abs().max()).item()


def calls(compiled):
    return compiled.graft.stats()["general_calls"]


def test_states_and_attention_weights(pair):
    eager, compiled = pair
    ids, mask = padded(9, 3, left=True)
    before = calls(compiled)
    arguments = dict(attention_mask=mask, output_hidden_states=True, output_attentions=True)
    with torch.no_grad():
        expected = eager(ids, **arguments)
    found = compiled(ids, **arguments)
    assert differ(expected.logits, found.logits) <= CLOSE
    assert len(expected.hidden_states) == len(found.hidden_states) > 2
    for one, other in zip((*expected.hidden_states, *expected.attentions), (*found.hidden_states, *found.attentions)):
        assert differ(one, other) <= CLOSE
    assert calls(compiled) == before + 1
    compiled(ids, attention_mask=mask)
    assert calls(compiled) == before + 1 and compiled.graft.route == "fast"


def test_embeddings(pair):
    eager, compiled = pair
    embeds = eager.get_input_embeddings()(prompt(7)).detach()
    with torch.no_grad():
        assert differ(eager(inputs_embeds=embeds).logits, compiled(inputs_embeds=embeds).logits) <= CLOSE
    options = dict(max_new_tokens=6, do_sample=False)
    assert torch.equal(
        eager.generate(inputs_embeds=embeds, **options), compiled.generate(inputs_embeds=embeds, **options)
    )


@pytest.mark.parametrize("given", ["a mask", "the padding's token"])
@pytest.mark.parametrize("options", [dict(num_beams=1), dict(num_beams=3)], ids=["greedy", "beams"])
def test_prompts_that_end_in_padding(pair, given, options):
    """Eager PyTorch takes the first token from the logits of padding. So does this."""
    eager, compiled = pair
    ids, mask = padded(8, 3)
    options = dict(options, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True)
    if given == "a mask":
        options["attention_mask"] = mask
    before = calls(compiled)
    expected, found = eager.generate(ids, **options), compiled.generate(ids, **options)
    assert torch.equal(expected.sequences, found.sequences) and calls(compiled) > before
    for one, other in zip(expected.logits, found.logits):
        assert differ(one, other) <= CLOSE
    ids, options["attention_mask"] = padded(8, 3, left=True)
    assert differ(compiled.generate(ids, **options).logits[0], found.logits[0]) > 10 * CLOSE  # it does matter


def test_what_generate_returns_of_layers(pair):
    eager, compiled = pair
    options = dict(max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    options |= dict(output_hidden_states=True, output_attentions=True)
    expected, found = eager.generate(prompt(5), **options), compiled.generate(prompt(5), **options)
    assert torch.equal(expected.sequences, found.sequences)
    for name in ("hidden_states", "attentions"):
        for one, other in zip(getattr(expected, name), getattr(found, name), strict=True):
            assert all(differ(a, b) <= CLOSE for a, b in zip(one, other, strict=True))


def test_masks_of_any_form(pair):
    """A prefix whose tokens see each other, and holes."""
    eager, compiled = pair
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    visible[:4, :4] = True
    visible[6, 2] = False
    mask = torch.zeros(2, 1, 8, 8).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected, plain = eager(prompt(8), attention_mask=mask).logits, eager(prompt(8)).logits
    assert differ(expected, compiled(prompt(8), attention_mask=mask).logits) <= CLOSE
    assert differ(expected, plain) > 10 * CLOSE


@pytest.mark.parametrize("rows", [1, 2])
def test_packed_sequences(pair, rows):
    """Positions that begin anew, without cache and mask: sequences that do not see each other."""
    eager, compiled = pair
    positions = torch.cat([torch.arange(5), torch.arange(3), torch.arange(4)])[None].expand(rows, -1)
    with torch.no_grad():
        expected = eager(prompt(12, rows), position_ids=positions, use_cache=False).logits
        apart = torch.cat([eager(part, use_cache=False).logits for part in prompt(12, rows).split([5, 3, 4], 1)], 1)
    found = compiled(prompt(12, rows), position_ids=positions, use_cache=False).logits
    assert differ(expected, found) <= CLOSE
    assert differ(expected, apart) <= CLOSE


@pytest.mark.parametrize("left", [False, True], ids=["whole", "padded on the left"])
@pytest.mark.parametrize("kind", ["dynamic", "of the configuration", "static"])
def test_a_cache_goes_from_route_to_route(pair, kind, left):
    """Prompt and steps by the fast route, a step that returns states, and on."""
    eager, compiled = pair
    ids, mask = padded(20, 4, left=True) if left else (prompt(20), torch.ones(2, 20, dtype=torch.int64))

    def run(model, general):
        cache = {
            "dynamic": lambda: DynamicCache(),
            "of the configuration": lambda: DynamicCache(config=model.config),
            "static": lambda: StaticCache(model.config, max_cache_len=32),
        }[kind]()
        logits = []
        with torch.no_grad():
            for begin, end in ((0, 14), (14, 15), (15, 17), (17, 18), (18, 20)):
                asked = dict(output_hidden_states=True) if end in general else {}
                given = dict(attention_mask=mask[:, :end], position_ids=(mask[:, :end].cumsum(1) - 1).clamp(min=0)[:, begin:])
                logits.append(model(ids[:, begin:end], past_key_values=cache, **given, **asked).logits)
            assert int(cache.get_seq_length()) == 20
        logits[0] = logits[0] * mask[:, :14, None]  # columns of padding mean nothing
        return torch.cat(logits, 1)

    before = calls(compiled)
    expected = run(eager, ())
    for general in ((15,), (17, 18), (14, 20)):
        assert differ(expected, run(compiled, general)) <= CLOSE
    assert calls(compiled) == before + 5


def test_a_padded_cache_keeps_its_padding(pair):
    eager, compiled = pair
    ids, mask = padded(6, 2, left=True)
    cache = compiled(ids, attention_mask=mask).past_key_values
    shown = torch.ones(2, 7, dtype=torch.int64)
    with pytest.raises(graft.Unsupported, match="expected the same for tokens of the cache"):
        compiled(prompt(1), attention_mask=shown, past_key_values=cache, output_hidden_states=True)
    with pytest.raises(graft.Unsupported, match="for a cache with padding"):
        compiled(prompt(1), attention_mask=torch.zeros(2, 1, 1, 7), past_key_values=cache, output_hidden_states=True)
    with torch.no_grad():  # without a mask its padding stays padding
        expected = eager(ids, attention_mask=mask).past_key_values
        masked = torch.nn.functional.pad(mask, (0, 1), value=1)
        positions = mask.sum(1, keepdim=True)
        want = eager(prompt(1), attention_mask=masked, position_ids=positions, past_key_values=expected).logits
    found = compiled(prompt(1), position_ids=positions, past_key_values=cache, output_hidden_states=True).logits
    assert differ(want, found) <= CLOSE


def test_weights_that_change_count_for_both(pair):
    eager, compiled = (copy.deepcopy(one) for one in pair)
    compiled(prompt(4), output_hidden_states=True)
    with torch.no_grad():
        for model in (eager, compiled):
            model.get_input_embeddings().weight.mul_(1.5)
    with torch.no_grad():
        expected = eager(prompt(4), output_hidden_states=True)
    assert differ(expected.logits, compiled(prompt(4), output_hidden_states=True).logits) <= CLOSE
    assert differ(expected.logits, compiled(prompt(4)).logits) <= CLOSE


def test_sampling_draws_the_same(pair):
    eager, compiled = pair
    ids, mask = padded(7, 2)
    options = dict(attention_mask=mask, max_new_tokens=5, do_sample=True, top_k=20, temperature=1.3)
    found = []
    for model in pair:
        torch.manual_seed(5)
        found.append(model.generate(ids, **options))
    assert torch.equal(*found)


@pytest.mark.parametrize("options", [dict(quantize="q8_0"), dict(release_weights=True)], ids=["quantized", "released"])
def test_models_whose_weights_it_cannot_read_say_so(options):
    compiled = graft.compile(llm_models.BY_NAME["qwen3"].make(), threads=1, **options)
    ids, mask = padded(6, 2)
    with pytest.raises(graft.Unsupported, match="output_hidden_states"):
        compiled(ids, output_hidden_states=True)
    with pytest.raises(graft.Unsupported, match="padded on the left"):
        compiled.generate(ids, attention_mask=mask, max_new_tokens=2)
    with pytest.raises(graft.Unsupported, match="inputs_embeds"):
        compiled(inputs_embeds=torch.zeros(1, 3, 48))
    with pytest.raises(graft.Unsupported, match="several sequences in a row"):
        compiled(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
    assert compiled.generate(ids, max_new_tokens=2, pad_token_id=1).shape == (2, 8)


def test_types_of_tokens_that_are_embedded():
    """GPT-2 adds the embeddings of the tokens that they name."""
    eager = llm_models.BY_NAME["gpt2"].make()
    compiled = graft.compile(copy.deepcopy(eager), threads=1, route="fast")
    types = prompt(7) % 5
    with torch.no_grad():
        expected, plain = eager(prompt(7), token_type_ids=types).logits, eager(prompt(7)).logits
    assert differ(expected, compiled(prompt(7), token_type_ids=types).logits) <= CLOSE
    assert differ(expected, plain) > 10 * CLOSE
    options = dict(token_type_ids=types, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(eager.generate(prompt(7), **options), compiled.generate(prompt(7), **options))
