"""Modules with sparse weights: what they hold, under which names, and how they become dense again."""

import copy
import pickle

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.modules import (
    SparseModule,
    dense_class,
    held_by,
    hold_masked,
    hold_stored,
    part_of,
    rebase,
    release,
    watch_gradient,
)  # fmt: skip

X = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
T, F = True, False


def masked():
    layer = nn.Linear(2, 2)
    layer.weight.data.copy_(X)
    hold_masked(layer, "weight", X != 0)
    return layer


def stored(format=None):
    layer = nn.Linear(2, 2)
    tensor = gs.from_dense(X, format or gs.CSR())
    layer.weight.data = tensor.values().clone()
    hold_stored(layer, "weight", tensor.structure)
    return layer


def names(layer):
    return [n for n, _ in layer.named_parameters()], [n for n, _ in layer.named_buffers()]


def test_a_masked_layer_by_hand():
    layer = masked()
    assert names(layer) == (["weight", "bias"], ["weight_mask"])
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert layer.weight_mask.tolist() == [[F, T], [T, F]] and layer.weight.nnz == 2
    assert repr(layer) == "SparseLinear(in_features=2, out_features=2, bias=True, weight=Masked(), 50.0 % sparse)"


def test_a_stored_layer_by_hand():
    layer = stored()
    assert names(layer) == (["weight_values", "bias"], ["weight_pos1", "weight_crd1", "weight_format"])
    assert bytes(layer.weight_format.tolist()) == b"CSR()"
    assert layer.weight.to_dense().tolist() == X.tolist() and layer.structure_of("weight").nnz == 2
    assert isinstance(layer, SparseModule) and isinstance(layer, nn.Linear)


@pytest.mark.parametrize("make", [masked, stored])
def test_released_it_is_what_it_was(make):
    layer = make()
    release(layer, "weight")
    assert type(layer) is nn.Linear and names(layer) == (["weight", "bias"], []) and "_sparse" not in layer.__dict__
    assert type(layer.weight) is nn.Parameter
    release(layer, "weight")  # again is fine


def test_classes():
    layer = stored()
    assert dense_class(layer) is nn.Linear and dense_class(nn.ReLU()) is nn.ReLU
    assert type(layer) is type(stored()) and type(layer) is not type(masked())
    assert type(layer).__name__ == "SparseLinear" and type(layer).__module__ == nn.Linear.__module__

    class Mine(nn.Linear):
        pass

    rebase(layer, Mine)
    assert isinstance(layer, Mine) and dense_class(layer) is Mine and layer.weight.nnz == 2
    assert held_by(nn.ReLU()) == {} and list(held_by(layer)) == ["weight"]


def test_parts_by_name():
    parts = {key: part_of(stored(), key) for key in ("weight_values", "weight_pos1", "weight_format", "weight_mask")}
    assert parts == {
        "weight_values": ("weight", "values"), "weight_pos1": ("weight", "pos1"), "weight_format": ("weight", "format"),
        "weight_mask": (None, ""),
    }  # fmt: skip
    layer = masked()
    assert part_of(layer, "weight") == ("weight", "values") and part_of(layer, "weight_mask") == ("weight", "mask")
    assert part_of(layer, "bias") == part_of(nn.Linear(1, 1), "weight") == (None, "")


@pytest.mark.parametrize("make", [masked, stored])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: m.double().float()]
)
def test_copies_are_layers_of_their_own(make, copied):
    layer = make()
    other = copied(layer)
    assert type(other) is type(layer)
    assert other.weight.mask().tolist() == (X != 0).tolist()
    with torch.no_grad():
        gs.nn.all_weights(other)["weight"].parameter.add_(1)
    x = torch.eye(2)
    assert other is layer or torch.equal(layer(x) - layer.bias, X.t())


def test_another_mask_goes_into_the_same_buffer():
    layer = masked()
    buffer = layer.weight_mask
    hold_masked(layer, "weight", torch.tensor([[T, F], [F, F]]))
    assert layer.weight_mask is buffer and layer.weight.nnz == 1


def test_a_tensor_may_be_lent_for_a_call():
    for layer in (masked(), stored()):
        out = torch.func.functional_call(layer, {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}, torch.eye(2))
        assert out.tolist() == [[1.0, 1.0], [1.0, 1.0]]
        assert layer.weight.nnz == 2


def test_the_gradient_of_a_dense_weight_may_be_made_sparse():
    layer = nn.Linear(4, 1)
    watch_gradient(layer, "weight", gs.Output.of((None, None, "75%", gs.COO())))
    layer(torch.tensor([[1.0, 5.0, 2.0, 3.0]])).sum().backward()
    assert layer.weight.grad.to_dense().tolist() == [[0.0, 5.0, 0.0, 0.0]]
    assert part_of(layer, "weight") == (None, "") and names(layer) == (["weight", "bias"], [])


@pytest.mark.parametrize(("hold", "name"), [("masked", "weight_mask"), ("stored", "weight_crd1")])
def test_an_attribute_of_the_layer_is_not_overwritten(hold, name):
    layer = nn.Linear(2, 2)
    setattr(layer, name, 3)
    with pytest.raises(ValueError, match=f"Linear has an attribute '{name}' of its own, where gossamer would keep"):
        if hold == "masked":
            hold_masked(layer, "weight", X != 0)
        else:
            hold_stored(layer, "weight", gs.from_dense(X, gs.CSR()).structure)
    assert type(layer) is nn.Linear and "weight" in layer._parameters


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR(), gs.formats.PackedCSR()], ids=str)
@pytest.mark.filterwarnings("ignore::gossamer.FallbackWarning")
def test_recurrent_layers_train_and_are_copied(kind, format):
    """They keep their weights in a list of their own, which has SparseTensors of stored weights."""
    builder = gs.SparsityBuilder(kind(8, 8, 2, bidirectional=True), inplace=True)
    builder.set_weight("weight_*", "50%", out_format=format)
    model, x = builder.get_sparse_model(), torch.randn(3, 2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x)[0].square().sum().backward()
        optimizer.step()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x)[0], model(x)[0])
        twin.weight_ih_l0_values.data.zero_() if format != gs.Masked() else twin.weight_ih_l0.data.zero_()
        assert not torch.equal(twin(x)[0], model(x)[0])


def test_a_stored_weight_is_not_replaced_by_a_parameter():
    layer = gs.sparsify_(nn.Linear(8, 4), "50%", format=gs.CSR())
    with pytest.raises(ValueError, match=r"weight is stored as CSR\(\), and can't be replaced by another parameter"):
        layer.weight = nn.Parameter(torch.ones(4, 8))
    layer.bias = nn.Parameter(torch.ones(4))
    assert layer(torch.zeros(1, 8)).tolist() == [[1.0] * 4]
