"""Experts by the tokens that they get: the same as the plain loop of transformers over dense weights."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats import PackedCSR, Stacked
from gossamer.models.routed import is_routed
from gossamer.models.weights import all_weights

t = pytest.importorskip("transformers")


def experts(kind):
    """A module of four experts, 16 features, 24 inside, computed by the plain loop."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
    if kind == "gated":
        model = t.MixtralForCausalLM(t.MixtralConfig(**sizes))
    else:
        model = t.GptOssForCausalLM(t.GptOssConfig(**sizes, head_dim=8))
    module = model.model.layers[0].mlp.experts
    module.config._experts_implementation = "eager"
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def pair(kind, names=("gate_up_proj", "down_proj")):
    """The module with these weights stored, and the same with dense ones."""
    module = experts(kind)
    for name in names:
        weight = all_weights(module)[name]
        keep = torch.rand(weight.shape) < 0.4
        order = (1, 0) if kind == "biased" else None
        weight.become(weight.dense() * keep, keep, Stacked(PackedCSR(order=order)))
    return module, gs.densify_(copy.deepcopy(module))


def close(a, b):
    """Sums of 16 and 24 terms, one after the other, in another order."""
    torch.testing.assert_close(a, b, rtol=0, atol=16 * 24 * 2**-23 * float(b.detach().abs().max()))


INDEX = torch.tensor([[0, 1], [2, 0], [1, 0], [0, 2], [2, 1]])  # nobody goes to 3


@pytest.mark.parametrize("kind", ["gated", "biased"])
@pytest.mark.parametrize("names", [("gate_up_proj", "down_proj"), ("down_proj",), ("gate_up_proj",)])
def test_as_the_loop_over_dense_weights(kind, names):
    sparse, dense = pair(kind, names)
    assert is_routed(type(dense))
    x, shares = torch.randn(5, 16), torch.rand(5, 2)
    for tokens in (5, 1, 0):
        given = x[:tokens], INDEX[:tokens], shares[:tokens]
        with gs.fallback("error"):
            close(sparse(*given), dense(*given)) if tokens else None
            assert sparse(*given).shape == (tokens, 16)
    with torch.inference_mode():
        close(sparse(x, INDEX, shares), dense(x, INDEX, shares))


def test_by_keywords_and_with_one_expert_a_token():
    sparse, dense = pair("gated")
    x, index, shares = torch.randn(3, 16), torch.tensor([[3], [0], [3]]), torch.ones(3, 1)
    close(sparse(hidden_states=x, top_k_index=index, top_k_weights=shares), dense(x, index, shares))


def test_an_index_for_none_of_the_experts_adds_nothing():
    sparse, dense = pair("gated")
    x, index, shares = torch.randn(3, 16), torch.tensor([[0, 4], [4, 4], [1, 3]]), torch.rand(3, 2)
    out = sparse(x, index, shares)
    close(out, dense(x, index, shares))
    assert not out[1].any()


@pytest.mark.parametrize("kind", ["gated", "biased"])
def test_gradients_are_those_of_the_loop(kind):
    sparse, dense = pair(kind)
    masks = {name: weight.mask() for name, weight in all_weights(sparse).items() if weight.is_sparse}
    grads = []
    for module in (sparse, dense):
        x = torch.linspace(-1, 1, 80).view(5, 16).requires_grad_()
        shares = torch.linspace(0, 1, 10).view(5, 2).requires_grad_()
        (module(x, INDEX, shares) ** 2).sum().backward()
        grads.append((x.grad, shares.grad))
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    for name, mask in masks.items():
        found, wanted = getattr(sparse, name).grad.to_dense(), getattr(dense, name).grad * mask
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_under_autocast_and_in_half_precision():
    sparse, dense = pair("gated")
    x, shares = torch.randn(5, 16), torch.rand(5, 2)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found, wanted = sparse(x, INDEX, shares), dense(x, INDEX, shares)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2**-6 * float(wanted.abs().max()))
    half, dense = sparse.to(torch.bfloat16), dense.to(torch.bfloat16)
    with torch.no_grad():
        found, wanted = (m(x.bfloat16(), INDEX, shares.bfloat16()) for m in (half, dense))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0, atol=2**-6 * float(wanted.abs().max()))


def test_no_other_class_is_routed():
    assert not is_routed(nn.Linear) and not is_routed(nn.MultiheadAttention)
