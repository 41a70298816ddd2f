"""A weight of a model, whatever it is held as."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.weights import all_weights, everywhere, sparse_weights

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
MASK = torch.tensor([[False, True], [True, False]])
KINDS = [gs.Dense(), gs.Masked(), gs.CSR(), gs.ELL()]


def weight_of(module, format=None):
    weight = all_weights(module)["weight"]
    if format is not None:
        weight.become(X, MASK, format)
    return weight


@pytest.mark.parametrize("wrong", [None, torch.ones(2), "model", nn.Linear, [nn.Linear(2, 2)]], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda model: gs.sparsify_(model, "50%"),
        lambda model: gs.quantize_(model, "int8"),
        lambda model: gs.train.Static(model, torch.optim.SGD([torch.ones(1)])),
        lambda model: gs.load(model, "nowhere"),
        gs.densify_,
        gs.pack_,
        gs.summary,
        gs.nn.shrink_,
    ],
)
def test_what_is_no_model_is_refused(call, wrong):
    with pytest.raises(TypeError, match=r"the model must be a torch\.nn\.Module, got (a|the class) "):
        call(wrong)


def test_names_are_those_of_the_dense_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2, bias=False)))
    want = ["0.weight", "0.bias", "1.0.weight"]
    assert list(all_weights(model)) == want and sparse_weights(model) == {}
    for format in (gs.Masked(), gs.CSR()):
        gs.sparsify_(model, "50%", where="0", format=format)
        assert list(all_weights(model)) == want and list(sparse_weights(model)) == ["0.weight"]


def test_a_tied_weight_is_one_with_two_names():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    weights = all_weights(model)
    assert list(weights) == ["0.weight"] and weights["0.weight"].names == ("0.weight", "1.weight")
    for format in (gs.CSR(), gs.Masked(), gs.Dense(), gs.COO()):
        weights["0.weight"].become(X, MASK, format)
        want = (X if format == gs.Dense() else X * MASK) @ torch.ones(2)
        assert all(torch.equal(layer(torch.ones(2)), want) for layer in model)
        assert list(all_weights(model)) == ["0.weight"]


@pytest.mark.parametrize("after", KINDS, ids=repr)
@pytest.mark.parametrize("before", KINDS, ids=repr)
def test_from_any_kind_to_any_other_the_parameter_is_the_same_object(before, after):
    layer = nn.Linear(2, 2)
    weight = weight_of(layer, before)
    parameter = weight.parameter
    weight.become(X * 10, MASK, after)
    assert weight.format == after and weight.parameter is parameter
    want = X * 10 if after == gs.Dense() else X * 10 * MASK
    assert torch.equal(weight.dense(), want) and weight.shape == (2, 2)
    assert weight.mask().tolist() == (everywhere(X) if after == gs.Dense() else MASK).tolist()
    assert torch.equal(layer(torch.eye(2)) - layer.bias, want.t())


def test_without_a_mask_every_position_and_without_a_format_the_same():
    weight = weight_of(nn.Linear(2, 2), gs.CSR())
    weight.become(X)
    assert weight.format == gs.CSR() and weight.sparse().nnz == 4
    weight.become(gs.from_dense(X * MASK, gs.COO()))  # brings both
    assert weight.format == gs.COO() and weight.mask().tolist() == MASK.tolist()
    weight.become(X, None, gs.Masked())
    assert weight.mask().all() and weight.format == gs.Masked()


@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()], ids=repr)
def test_the_sparse_tensor_has_the_same_memory_and_no_graph(format):
    weight = weight_of(nn.Linear(2, 2), format)
    sparse = weight.sparse()
    sparse._values.fill_(7)
    assert not sparse.requires_grad and weight.dense().tolist()[0][1] == 7.0
    assert weight.structure.nnz == 2 and weight.is_sparse


def test_the_values_that_are_given_are_not_shared():
    for format in KINDS:
        given = X.clone()
        weight = weight_of(nn.Linear(2, 2))
        weight.become(given, MASK, format)
        given.fill_(99)
        assert weight.dense().max() < 99, format


@pytest.mark.parametrize("after", [gs.Masked(), gs.CSR()], ids=repr)
def test_what_was_asked_of_the_gradient_is_kept(after):
    weight = weight_of(nn.Linear(2, 2), gs.Masked())
    weight.collect_gradient(True)
    weight.held.open = True
    weight.become(X, MASK, after)
    assert weight.held.collects and weight.held.open
    weight.module(torch.tensor([[1.0, 2.0]])).sum().backward()
    assert weight.held.collected.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_a_dense_weight_has_no_structure():
    weight = weight_of(nn.Linear(2, 2))
    assert weight.format == gs.Dense() and weight.held is None and weight.module.weight is weight.parameter
    with pytest.raises(TypeError, match=r"weight is dense: call gs.sparsify_ first"):
        weight.sparse()
