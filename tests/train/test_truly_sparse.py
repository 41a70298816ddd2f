"""Weights, gradients and optimizer state stored condensed: the same training as masked, in less memory."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from tests.support import assert_same_weights

FORMATS = [gs.CSR(), gs.formats.PackedCSR(), gs.formats.Condensed()]


def run(format, cls=gs.train.SRigL, steps=7, model=None, optimizer=None, method=None, start=0):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    method = method or cls(model, optimizer, 0.9, every=2, until=20, format=format)
    for step in range(start, steps):
        torch.manual_seed(step)
        x = torch.randn(16, 48)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0)).backward()
        optimizer.step()
        method.step()
    return model, optimizer, method


@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("cls", [gs.train.SRigL, gs.train.RigL, gs.train.GMP])
def test_trains_as_masked(format, cls):
    with gs.fallback("error"):
        model, optimizer, method = run(format, cls)
    expected, *_ = run(None, cls)
    assert method.log()["updates"] == 3
    weights = gs.nn.all_weights(model)
    for name, want in gs.nn.all_weights(expected).items():
        have = weights[name]
        if want.is_sparse:
            assert have.format == format and torch.equal(have.mask(), want.mask())
            assert optimizer.state[have.parameter]["exp_avg"].shape == have.parameter.shape
        torch.testing.assert_close(have.dense(), want.dense(), rtol=1e-3, atol=1e-5)


def test_memory_is_that_of_the_kept_weights():
    torch.manual_seed(0)
    model = nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    gs.train.SRigL(model, optimizer, 0.95, until=100, format=gs.formats.PackedCSR())
    model(torch.randn(4, 512)).sum().backward()
    optimizer.step()
    values = model.weight_values
    parts = [model.weight, values.grad, *(v for v in optimizer.state[values].values() if v.shape == values.shape)]
    assert len(parts) == 4
    assert sum(p.nbytes for p in parts) < 0.2 * len(parts) * 512 * 512 * 4


def test_resumes_bit_identically():
    straight, *_ = run(gs.formats.PackedCSR(), steps=9)
    model, optimizer, method = run(gs.formats.PackedCSR(), steps=5)
    states = [thing.state_dict() for thing in (model, optimizer, method)]
    fresh = run(gs.formats.PackedCSR(), steps=0)
    for thing, state in zip(fresh, states, strict=True):
        thing.load_state_dict(state)
    resumed, *_ = run(None, steps=9, model=fresh[0], optimizer=fresh[1], method=fresh[2], start=5)
    assert_same_weights(straight, resumed)


def test_convolutions_stay_masked_and_straight_through_methods_refuse():
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 6, 4))
    gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5, format=gs.CSR())
    assert (model[0].weight.format, model[2].weight.format) == (gs.Masked(), gs.CSR())
    layer = nn.Linear(8, 8)
    with pytest.raises(ValueError, match="trains all weights"):
        gs.train.STE(layer, torch.optim.SGD(layer.parameters(), lr=0.1), "2:4", format=gs.CSR())


def test_the_dense_gradient_is_the_product_of_its_factors(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    shared = model[0]
    model.add_module("again", nn.Sequential(nn.Linear(4, 12), shared))  # a weight that is used twice
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, 0.5, every=1, until=10, format=gs.CSR())
    dense = gs.densify_(copy.deepcopy(model))
    seen = {}
    monkeypatch.setattr(method, "update", lambda layer: seen.update({layer.name: layer.grad.clone()}))
    for part in range(3):  # micro-batches, with tokens in two dimensions
        x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(part))
        for one in (model, dense):
            one(x).square().sum().backward()
    assert model[0].weight.grad.format == gs.CSR()  # never dense
    optimizer.step()
    method.step()
    assert set(seen) == {"0.weight", "2.weight", "again.0.weight"}
    for name, grad in seen.items():
        torch.testing.assert_close(grad, dense.get_parameter(name).grad)


def test_a_module_that_is_not_called_gets_a_dense_gradient_from_the_second_update_on():
    torch.manual_seed(0)
    layer = nn.Linear(12, 16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.RigL(layer, optimizer, 0.5, every=1, until=10, format=gs.CSR())
    for _ in range(3):
        optimizer.zero_grad()
        F.linear(torch.randn(4, 12), layer.weight, layer.bias).square().sum().backward()
        optimizer.step()
        method.step()
    assert method.log()["updates"] == 2


def test_steps_that_a_scaler_skips_leave_nothing_behind():
    torch.manual_seed(0)
    layer = nn.Linear(12, 16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.RigL(layer, optimizer, 0.5, every=1, until=10, format=gs.CSR())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(layer(torch.randn(6, 12)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        method.step()
    assert method.steps == 2 and not layer.weight.detach().to_dense().isnan().any()
