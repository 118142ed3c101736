"""Layers that are alike are traced three times and copied: the program is that of a trace of all layers, for all causal classes."""

import population
import pytest
import torch
import transformers
from population_test import SAMPLE

from graft.errors import ExportError
from graft.llm import interface, repeats
from graft.llm.trace import trace

LAYERS = 12
# Classes whose layers are not found to be alike; a class beside these must be copied.
WHOLE = {
    *("bamba", "beam", "deepseek_v2", "falcon_h1", "gemma3n_text", "gemma4", "gemma4_text", "jetmoe", "lfm3", "llama4"),
    *("llama4_text", "nemotron_h", "recurrent_gemma", "rwkv", "xmod", "zamba"),
}


def traced(model, groups=None):
    """groups: what is copied is added to it; without them all layers are traced."""
    with pytest.MonkeyPatch.context() as patch:
        if groups is None:
            patch.setattr(repeats, "groups_of", lambda _: [])
        else:
            expand = repeats.expand

            def noted(program, found):
                expand(program, found)
                groups.extend(found)

            patch.setattr(repeats, "expand", noted)
        return trace(model, context=64, lengths_checked=True, recurrent=True)


def is_size(node):
    return isinstance(node.meta.get("val"), (int, torch.SymInt))


def described(program):
    """Nodes in their order, with arguments by number, and sizes by what they are."""
    numbers, found = {}, []

    def said(x):
        if not isinstance(x, torch.fx.Node):
            return repr(x)
        return str(x.meta["val"]) if is_size(x) else f"%{numbers[x]}"

    for node in program.graph.nodes:
        if node.op == "call_function" and is_size(node):
            continue
        numbers[node] = len(numbers)
        leaves, tree = torch.utils._pytree.tree_flatten((node.args, node.kwargs))
        name = node.name if node.op == "placeholder" else str(node.target)
        origin = list(path for path, *_ in (node.meta.get("nn_module_stack") or {}).values())[-1:]
        val = node.meta.get("val")
        shape = (str(val.shape), val.dtype) if torch.is_tensor(val) else None
        found.append((name, [said(leaf) for leaf in leaves], str(tree), origin, shape))
    return found


def compared(model):
    """How a class came out: copied, whole (its layers were not found to be alike), or refused in both ways."""
    groups = []
    try:
        program = traced(model, groups)
    except ExportError as e:
        with pytest.raises(type(e)):
            traced(model)
        return "refused"
    whole = traced(model)
    ours, theirs = described(program), described(whole)
    assert next(((x, y) for x, y in zip(ours, theirs) if x != y), None) is None
    assert len(ours) == len(theirs)
    assert str(program.graph_signature.input_specs) == str(whole.graph_signature.input_specs)
    assert {str(k): str(v) for k, v in program.range_constraints.items()} == {
        str(k): str(v) for k, v in whole.range_constraints.items()
    }
    return "copied" if groups else "whole"


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in SAMPLE else [pytest.mark.slow]) for k in population.CLASSES]
)
def test_a_class(kind):
    try:
        model = population.make(kind, LAYERS)
    except Exception as e:  # whatever the class raises
        pytest.skip(f"{type(e).__name__}: {e}")
    found = compared(model)
    assert found in ("refused", "whole" if kind in WHOLE else "copied")


def llama(**own):
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=6, num_attention_heads=4, intermediate_size=48, **own
    )
    config._attn_implementation = "eager"
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def test_layers_of_two_kinds():
    model = population.make("cohere2", LAYERS)
    kinds = model.config.layer_types
    groups = []
    traced(model, groups)
    assert len(groups) == 2 and all(len({kinds[place] for place in group.places}) == 1 for group in groups)
    assert sorted(place for group in groups for place in group.places) == list(range(LAYERS))


@pytest.mark.parametrize("what", ["attribute", "module", "sizes", "dtype", "hook", "shared", "number"])
def test_a_layer_that_differs_is_not_copied(what):
    model = llama()
    layer = model.model.layers[3]
    if what == "attribute":
        layer.self_attn.scaling *= 2
    elif what == "module":
        layer.mlp.act_fn = torch.nn.GELU()
    elif what == "sizes":
        layer.mlp = transformers.models.llama.modeling_llama.LlamaMLP(llama(head_dim=16).config)
        layer.mlp.gate_proj = torch.nn.Linear(32, 64, bias=False)
        layer.mlp.up_proj, layer.mlp.down_proj = torch.nn.Linear(32, 64, bias=False), torch.nn.Linear(64, 32, bias=False)
    elif what == "dtype":
        layer.mlp.half()
    elif what == "hook":
        layer.register_forward_hook(lambda module, args, output: output * 2)
    elif what == "shared":
        layer.mlp = model.model.layers[0].mlp
    else:
        model.config.some_layers = [3, 17]
    places = [place for group in repeats.groups_of(model) for place in group.places]
    assert places == ([] if what == "shared" else [0, 1, 2, 4, 5])
    if what not in ("dtype", "number"):  # which a trace in f32 does not see, and nothing reads
        assert compared(model) == ("whole" if what == "shared" else "copied")


def test_layers_with_hooks_are_no_group():
    model = llama()
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, output: output * 2)
    assert repeats.groups_of(model) == []
    assert compared(model) == "whole"


def test_code_that_computes_with_its_number_is_traced_whole():
    model = llama()

    class Numbered(transformers.models.llama.modeling_llama.LlamaMLP):
        def forward(self, x):
            return super().forward(x) * (self.layer_idx + 1)

    for place, layer in enumerate(model.model.layers):
        layer.mlp.__class__, layer.mlp.layer_idx = Numbered, place
    assert repeats.groups_of(model)
    assert compared(model) == "whole"


def test_layers_that_are_called_with_arguments_of_their_own_are_traced_whole():
    model = llama()
    class Own(type(model.model)):
        def forward(self, input_ids=None, position_ids=None, **kwargs):
            hidden = self.embed_tokens(input_ids)
            position_embeddings = self.rotary_emb(hidden, position_ids)
            for i, layer in enumerate(self.layers):
                hidden = layer(
                    hidden,
                    attention_mask=interface.Visible(),
                    position_ids=position_ids,
                    position_embeddings=tuple(part * (i + 1) for part in position_embeddings),
                )
            return transformers.modeling_outputs.BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))

    model.model.__class__ = Own
    assert repeats.groups_of(model)
    assert compared(model) == "whole"
