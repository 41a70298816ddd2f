"""Layers whose weight is an Opaque."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.opaque import hold_, names_of_parts, opaque_weights, release_opaque


class Outer(gs.Opaque):
    """Rank one: a column times a row."""

    def __init__(self, column, row):
        super().__init__((len(column), len(row)))
        self.column, self.row = nn.Parameter(torch.tensor(column)), nn.Parameter(torch.tensor(row))

    def to_dense(self):
        return self.column[:, None] * self.row


def outer():
    return Outer([1.0, 2.0], [3.0, 4.0, 5.0])


def test_a_layer_computes_with_it_by_hand():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.bias)
    weight = outer()
    with gs.fallback("silent"):
        assert hold_(layer, weight) is layer
        assert layer(torch.tensor([[1.0, 1.0, 0.0]])).tolist() == [[7.0, 14.0]]
    assert layer.weight is weight
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight.column", "weight.row"]


@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()], ids=repr)
def test_a_sparse_weight_is_given_up_with_all_its_parts(format):
    layer = hold_(gs.sparsify_(nn.Linear(3, 2), "50%", format=format), outer())
    assert type(layer) is nn.Linear and list(layer.state_dict()) == ["bias", "weight.column", "weight.row"]


def test_one_opaque_weight_for_another():
    layer = hold_(nn.Linear(3, 2), outer())
    other = outer()
    assert hold_(layer, other).weight is other


def test_found_in_a_model_and_by_the_names_of_their_parts():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    weight = outer()
    hold_(model[0], weight)
    assert [(m is model[0], name, w is weight) for m, name, w in opaque_weights(model)] == [(True, "weight", True)]
    assert names_of_parts(model) == dict.fromkeys(("0.weight.column", "0.weight.row"), ("0.weight", weight))


@pytest.mark.parametrize("trains", [True, False])
def test_released_it_is_a_dense_parameter(trains):
    layer, weight = nn.Linear(3, 2), outer()
    weight.requires_grad_(trains)
    hold_(layer, weight)
    release_opaque(layer, "weight", weight)
    assert type(layer.weight) is nn.Parameter and layer.weight.requires_grad is trains
    assert layer.weight.tolist() == [[3.0, 4.0, 5.0], [6.0, 8.0, 10.0]]


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"hold_ takes a gs.Opaque, not Tensor: for SparseTensors use gs.sparsify_"):
        hold_(nn.Linear(3, 2), torch.ones(2, 3))
    with pytest.raises(ValueError, match="ReLU has no weight 'weight'"):
        hold_(nn.ReLU(), outer())
    layer = nn.Linear(2, 3)
    before = layer.weight
    message = r"weight of Linear has the shape \(3, 2\), and the Outer that is to replace it \(2, 3\)"
    with pytest.raises(ValueError, match=message):
        hold_(layer, outer())
    assert layer.weight is before
