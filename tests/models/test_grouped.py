"""Experts in packed V:N:M, in one launch for each weight: the same as the plain loop of transformers."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models import grouped
from gossamer.models.grouped import format_of
from gossamer.models.weights import all_weights

t = pytest.importorskip("transformers")
NAMES = ("gate_up_proj", "down_proj")


def experts(count=5, chosen=2, width=64, inner=128, layers=1):
    """A model with experts of Mixtral, whose class computes them by a plain loop."""
    torch.manual_seed(0)
    config = t.MixtralConfig(
        vocab_size=32, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=count, num_experts_per_tok=chosen, experts_implementation="eager",
    )  # fmt: skip
    model = t.MixtralForCausalLM(config).eval()
    for layer in model.model.layers:
        for parameter in layer.mlp.experts.parameters():
            nn.init.normal_(parameter, std=0.1)
    return model


def packed(model, m):
    """Store all experts in packed 2:m; returns a model with dense weights of the same values."""
    for name, weight in all_weights(model).items():
        if name.endswith(NAMES) and len(weight.shape) == 3:
            rows = weight.shape[1]
            keep = torch.stack([gs.VNM("all", 2, m).select(one) for one in weight.dense().abs()])
            weight.become(weight.dense() * keep, keep, format_of(rows, m))
    return gs.densify_(copy.deepcopy(model))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture
def counted(monkeypatch):
    """How often the path of one launch was taken."""
    calls, real = [], grouped.grouped

    def note(*given):
        calls.append(given[1].shape)
        return real(*given)

    monkeypatch.setattr("gossamer.models.routed.grouped", note)
    return calls


@pytest.mark.parametrize("m", [4, 8, 16])
@pytest.mark.parametrize("tokens", [7, 1, 0])
def test_as_the_loop_over_dense_weights(m, tokens, counted):
    model = experts()
    dense = packed(model, m).model.layers[0].mlp.experts
    module = model.model.layers[0].mlp.experts
    x, shares = torch.randn(tokens, 64), torch.rand(tokens, 2)
    index = torch.randint(4, (tokens, 1)).repeat(1, 2)  # nobody goes to the last expert
    index[:, 1] = (index[:, 0] + 1) % 4
    with torch.no_grad(), gs.fallback("error"):
        close(module(x, index, shares), dense(x, index, shares))
    assert counted == [torch.Size((tokens, 64))]


def test_tokens_of_no_expert(counted):
    model = experts(chosen=1)
    dense = packed(model, 4).model.layers[0].mlp.experts
    x, index, shares = torch.randn(3, 64), torch.tensor([[0], [5], [2]]), torch.rand(3, 1)
    with torch.no_grad():
        out = model.model.layers[0].mlp.experts(x, index, shares)
        expected = dense(x[::2], index[::2], shares[::2])
    close(out[::2], expected)
    assert not out[1].any() and counted


@pytest.mark.parametrize("m", [4, 8])
def test_a_model_traced_and_not(m, counted):
    model = experts(layers=2)
    dense, ids = packed(model, m), torch.randint(32, (2, 6))
    with torch.no_grad():
        expected = dense(ids).logits
        close(model(ids).logits, expected)
        assert len(counted) == 2
        torch._dynamo.reset()
        close(torch.compile(model, fullgraph=True)(ids).logits, expected)
        assert torch.equal(*(each.generate(ids, max_new_tokens=3, do_sample=False) for each in (model, dense)))


def test_gradients_and_other_types_go_through_the_loop(counted):
    model = experts()
    dense, ids = packed(model, 8), torch.randint(32, (1, 4))
    loss, expected = model(ids).logits.square().sum(), dense(ids).logits.square().sum()
    loss.backward(), expected.backward()
    close(loss, expected)
    module, other = model.model.layers[0].mlp.experts, dense.model.layers[0].mlp.experts
    found = module.down_proj.grad.to_dense()
    close(found, other.down_proj.grad * (other.down_proj != 0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(ids).logits.isfinite().all()
    assert not counted


def test_files(tmp_path, counted):
    model = experts()
    dense, ids = packed(model, 8), torch.randint(32, (1, 4))
    gs.save(model, tmp_path / "model.safetensors")
    again = gs.load(experts(), tmp_path / "model.safetensors")
    assert again.model.layers[0].mlp.experts.gate_up_proj.format == format_of(256, 8)
    with torch.no_grad():
        close(again(ids).logits, dense(ids).logits)
    assert len(counted) == 1


def test_other_formats_are_not_taken():
    model = experts()
    packed(model, 8)
    module = model.model.layers[0].mlp.experts
    assert grouped.takes(module, torch.zeros(1, 64).requires_grad_(False)) is not torch.is_grad_enabled()
    with torch.no_grad():
        assert grouped.takes(module, torch.zeros(1, 64))
        assert not grouped.takes(module, torch.zeros(1, 64).half())
        weight = all_weights(module)["down_proj"]
        weight.become(weight.dense(), weight.mask(), gs.formats.Stacked(gs.formats.PackedCSR()))
        assert not grouped.takes(module, torch.zeros(1, 64))
