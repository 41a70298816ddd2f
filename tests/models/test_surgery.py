"""sparsify_ and densify_: a model is changed whole or not at all."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.support import is_sparse


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def test_all_layers_become_masked():
    model = gs.sparsify_(network(), "75%")
    assert [p.sparsity for p in (model[0].weight, model[2].weight)] == [0.75, 0.75]
    assert model[0].weight.format == gs.Masked()
    assert type(model[0].bias) is nn.Parameter


def test_parameters_keep_their_identity_and_their_optimizer():
    model = network()
    weight, optimizer = model[0].weight, torch.optim.AdamW(model.parameters(), lr=0.1)
    gs.sparsify_(model, "75%", format=gs.CSR())
    assert model[0].weight_values is weight
    mask, before = model[0].weight.mask(), weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model[0].weight.mask(), mask)
    assert model[0].weight.format == gs.CSR() and not torch.equal(weight, before)


def test_an_optimizer_that_has_dense_state_goes_on():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            gs.sparsify_(model, "75%")
            mask = model[0].weight.mask()
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model[0].weight.mask(), mask)
    assert int((model[0].weight.to_dense() != 0).sum()) <= int(mask.sum())


def test_where_and_rules_by_glob():
    model = gs.sparsify_(network(), "75%", where="2")
    assert is_sparse(model[2].weight)
    assert type(model[0].weight) is nn.Parameter
    model = gs.sparsify_(network(), {"0": None, "*": "2:4"})
    assert type(model[0].weight) is nn.Parameter
    assert model[2].weight.sparsity == 0.5


def test_embeddings_are_sparse_by_a_glob_that_matches_nothing_else():
    def tables():
        return nn.ModuleDict({"table": nn.Embedding(10, 8), "layer": nn.Linear(8, 8)})

    for how, where in (("50%", None), ("50%", "*"), ({"*": "50%"}, None)):
        model = gs.sparsify_(tables(), how, where=where)
        assert not is_sparse(model["table"].weight) and model["layer"].weight.sparsity == 0.5
    for how, where in (("50%", "table"), ({"table": "50%", "*": None}, None), ({"*": "50%"}, ["table"])):
        model = gs.sparsify_(tables(), how, where=where, format=gs.CSR())
        assert model["table"].weight.sparsity == 0.5 and not is_sparse(model["layer"].weight)
        assert model["table"](torch.tensor([1, 2])).shape == (2, 8)
    with pytest.raises(ValueError, match=r"stays dense unless it is named by where \(weight: embeddings"):
        gs.sparsify_(nn.Embedding(10, 8), "50%")


def test_a_fraction_over_the_whole_model():
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(100)  # its values are all larger: they stay
    gs.sparsify_(model, gs.Unstructured(0.25, per="model"))
    assert model[0].weight.sparsity == 0.0
    assert model[2].weight.nnz + model[0].weight.nnz == round(0.75 * (512 + 256))


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight

    model = gs.sparsify_(Tied(), "50%")
    assert model.a.weight is model.b.weight
    assert is_sparse(model.a.weight)


def test_convolutions_and_attention():
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3), "attn": nn.MultiheadAttention(16, 2, batch_first=True)})
    x, tokens = torch.randn(2, 3, 9, 9), torch.randn(2, 5, 16)
    for format in (gs.Masked(), gs.CSR()):
        sparse = gs.sparsify_(copy.deepcopy(model), "50%", format=format)
        dense = gs.densify_(copy.deepcopy(sparse))
        torch.testing.assert_close(sparse["conv"](x), dense["conv"](x))
        with gs.fallback("silent"):
            got = sparse["attn"](tokens, tokens, tokens)[0]
        torch.testing.assert_close(got, dense["attn"](tokens, tokens, tokens)[0])
        assert is_sparse(sparse["attn"].in_proj_weight)


def test_densify_undoes_it():
    model = network()
    before = copy.deepcopy(model)
    gs.densify_(gs.sparsify_(model, "0%"))
    assert type(model[0].weight) is nn.Parameter
    assert torch.equal(model[0].weight, before[0].weight)


@pytest.mark.parametrize("how", ["int8", "fp8", "int8 weights"])
@pytest.mark.parametrize("inside", [True, False])
def test_hooks_stay_when_a_layer_is_quantized_and_dense_again(how, inside):
    layer = gs.sparsify_(nn.Linear(16, 16), "50%", format=gs.formats.PackedCSR())
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    handle = layer.register_forward_hook(lambda module, args, kwargs, out: out + 100, with_kwargs=True)
    model = nn.Sequential(layer) if inside else layer
    small = gs.quantize_(model, how)
    for made in (small, gs.densify_(small)):
        torch.testing.assert_close(made(torch.randn(3, 16)), (layer.bias + 100).expand(3, 16))
    handle.remove()
    torch.testing.assert_close(made(torch.randn(3, 16)), layer.bias.expand(3, 16))


@pytest.mark.parametrize("how", ["int8", "fp8", "int8 weights"])
def test_densify_finds_a_quantized_layer_by_all_of_its_names(how):
    layer = gs.sparsify_(nn.Linear(16, 16), "50%", format=gs.formats.PackedCSR())
    model = gs.quantize_(nn.ModuleDict({"a": layer, "b": layer, "c": nn.Sequential(layer)}), how)
    assert hasattr(model["a"], "as_dense") and model["a"] is model["b"] is model["c"][0]
    gs.densify_(model)
    assert type(model["a"]) is nn.Linear and model["a"] is model["b"] is model["c"][0]


@pytest.mark.parametrize(
    ("how", "kwargs", "error", "message"),
    [
        ("75%", {"where": "1.wieght"}, ValueError, "no weight that can be sparse is called '1.wieght'"),
        ({"nope.*": "75%"}, {}, ValueError, "'nope.\\*'"),
        (gs.FanIn(k=20), {}, ValueError, "20"),  # more than the 16 inputs of the first layer
        ("175%", {}, ValueError, "got 1.75"),
        (None, {}, ValueError, "leaves everything dense"),
        ({}, {}, ValueError, "how={} leaves everything dense"),
        ({0: "75%"}, {}, TypeError, "not by 0 of type int"),
        (3, {}, TypeError, "3"),
    ],
)
def test_on_an_error_the_model_is_as_it_was(how, kwargs, error, message):
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        gs.sparsify_(model, how, **kwargs)
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))


def test_nan_weights_and_models_without_layers():
    model = network()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        gs.sparsify_(model, "50%")
    assert type(model[0].weight) is nn.Parameter
    with pytest.raises(ValueError, match="no layer"):
        gs.sparsify_(nn.ReLU(), "50%")


def test_parametrized_weights_are_left_with_a_warning():
    model = torch.nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)
    )
    with pytest.warns(UserWarning, match=r"0.parametrizations.weight.original1.*remove_parametrizations"):
        gs.sparsify_(model, "50%")
    assert model[1].weight.sparsity == 0.5
