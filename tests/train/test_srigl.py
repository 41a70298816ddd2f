"""SRigL on models: fan-in, ablation, budgets, packing."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from tests.support import is_sparse


def network(*widths):
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def train(model, steps=12, data=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = gs.train.SRigL(model, optimizer, **{"every": 2, "until": 100, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(32, model[0].in_features) if data is None else data
        F.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0)).backward()
        optimizer.step()
        method.step()
    return method


def fan_ins(weight):
    each = weight.mask().sum(1)
    return each[each > 0].unique().tolist(), int((each == 0).sum())


@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_fan_in_is_constant_after_every_update(sparsity):
    model = network(20, 40, 40, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.SRigL(model, optimizer, sparsity, every=1, until=50)
    for _ in range(10):
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        for layer in method.layers:
            assert len(fan_ins(layer.parameter)[0]) == 1
            assert layer.kept <= layer.budget
    total = round((1 - sparsity) * (800 + 1600 + 160))
    assert sum(layer.budget for layer in method.layers) <= total
    assert sum(layer.budget for layer in method.layers) > total - 40  # less than one more fan-in is left over


def test_the_last_layer_is_never_ablated():
    method = train(network(20, 64, 64, 4), sparsity=0.95, gamma=1.0, steps=20)
    log = method.log()["layers"]
    assert log["4.weight"]["ablated"] == 0
    assert log["2.weight"]["ablated"] > 0


def test_layers_can_keep_their_neurons():
    method = train(network(20, 64, 64, 4), sparsity=0.9, gamma=1.0, keep_neurons=["2"], steps=20)
    assert method.log()["layers"]["2.weight"]["ablated"] == 0
    method = train(network(20, 64, 64, 4), sparsity=0.9, gamma=1.0, ablation=False, steps=20)
    assert not any(row["ablated"] for row in method.log()["layers"].values())


def test_less_than_one_weight_a_neuron_ablates_neurons():
    model = network(64, 128, 128, 4)
    method = train(model, sparsity=0.995, steps=0, distribution="uniform")
    kept = {layer.name: layer.kept for layer in method.layers}
    assert kept["0.weight"] < 128 and kept["4.weight"] >= 4
    train_on = train(network(64, 128, 128, 4), sparsity=0.995, steps=8, distribution="uniform")
    assert train_on.log()["layers"]["4.weight"]["ablated"] == 0
    with pytest.raises(ValueError, match="layers need at least 260"):
        train(network(64, 128, 128, 4), sparsity=0.995, ablation=False)


def test_convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.SRigL(model, optimizer, 0.7, every=1, until=9, dense_last=True)
    for _ in range(3):
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    each = model[0].weight.mask().sum((1, 2, 3))
    assert len(each[each > 0].unique()) == 1
    assert not is_sparse(model[4].weight)


def test_packed_equals_masked_and_keeps_outputs_and_biases(capsys):
    model = network(32, 64, 48, 4)
    train(model, sparsity=0.9, gamma=1.0, steps=20)
    x = torch.randn(5, 32)
    with torch.no_grad():
        expected = model(x)
        gs.pack_(model, x, tune=False)
        torch.testing.assert_close(model(x), expected)
    assert model[0].bias.shape == (64,) and model(x).shape == (5, 4)
    layer = gs.sparsify_(nn.Linear(64, 32), "fan-in 90%", format=gs.formats.Condensed())
    assert {"weight_values", "weight_crd3"} <= set(layer.state_dict())  # its indices with it


def test_learns_better_than_static():
    torch.manual_seed(0)
    x = torch.randn(512, 64)

    def loss(cls):
        model = network(64, 256, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = cls(model, optimizer, 0.95, every=5, until=75)
        for _ in range(100):
            optimizer.zero_grad()
            out = F.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0))
            out.backward()
            optimizer.step()
            method.step()
        return out.item()

    assert loss(gs.train.SRigL) < 0.7 * loss(gs.train.Static)
