"""Grouped attention of transformers models: the same numbers as SDPA, without repeated heads."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, StaticCache

import gossamer as gs
from gossamer.models.hf import attention

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}


def decoder(kind=(LlamaConfig, LlamaForCausalLM), heads=8, groups=2):
    torch.manual_seed(0)
    config = kind[0](num_attention_heads=heads, num_key_value_heads=groups, **SIZES)
    return kind[1](config).eval()


KINDS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen": (Qwen2Config, Qwen2ForCausalLM)}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("heads", [(8, 2), (8, 1), (4, 4)])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generates_the_same(kind, heads, cache):
    model, ids = decoder(kind, *heads), torch.randint(1, 64, (3, 5))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0  # padding on the left
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache, "attention_mask": mask}
    options |= {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    got = gs.hf.grouped_attention_(model).generate(ids, **options)
    assert torch.equal(got.sequences, expected.sequences)
    for one, other in zip(got.logits, expected.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_heads_are_not_repeated_in_a_trace():
    model = gs.hf.grouped_attention_(decoder())
    cache = StaticCache(config=model.config, max_cache_len=16)
    ids = torch.randint(64, (2, 1))
    with torch.no_grad():
        model(ids, past_key_values=cache)
        seen = []

        def backend(graph, _):
            seen.extend(node for node in graph.graph.nodes if "scaled_dot_product_attention" in str(node.target))
            return graph

        torch.compile(model, backend=backend)(ids, past_key_values=cache)
    assert len(seen) == 2 and all(node.args[1].meta["example_value"].shape[1] == 2 for node in seen)


def operands(length=1, heads=4, groups=2, mask=None):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, t, 8) for n, t in ((heads, length), (groups, 6), (groups, 6)))
    module = nn.Module()
    module.num_key_value_groups = heads // groups
    return module, q, k, v, mask


@pytest.mark.parametrize("masked", [None, "all heads", "each head"])
@pytest.mark.parametrize("length", [1, 3])
def test_against_plain_arithmetic(length, masked):
    shape = {None: None, "all heads": (2, 1, length, 6), "each head": (2, 4, length, 6)}[masked]
    mask = None if shape is None else torch.rand(shape) < 0.7
    if mask is not None:
        mask[..., 0] = True
    module, q, k, v, mask = operands(length, mask=mask)
    out, _ = attention.grouped_attention(module, q, k, v, mask, scaling=0.3, is_causal=False)
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = (q @ k.transpose(2, 3) * 0.3).masked_fill(~mask if mask is not None else torch.tensor(False), -torch.inf)
    torch.testing.assert_close(out, (scores.softmax(-1) @ v).transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_only_models_of_transformers():
    with pytest.raises(TypeError, match="not a Linear"):
        gs.hf.grouped_attention_(nn.Linear(2, 2))
