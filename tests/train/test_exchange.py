"""Growth by other scores, by gradients of several steps, and from a later step on."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.train.rules import exchange


def layer_and_inputs():
    torch.manual_seed(0)
    return nn.Linear(12, 8), torch.randn(6, 5, 12)


@pytest.mark.parametrize("format", [gs.Masked(), gs.formats.PackedCSR()], ids=str)
@pytest.mark.parametrize("growth", [3, "mean of 3 steps"])
def test_growth_by_the_mean_of_three_steps(format, growth):
    model, inputs = layer_and_inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = gs.train.RigL(model, optimizer, 0.75, every=5, until=100, fraction=0.5, growth=growth, format=format)
    (layer,) = method.layers
    dense, grads = nn.Linear(12, 8), []
    with torch.no_grad():
        dense.weight.copy_(layer.weight)
        dense.bias.copy_(model.bias)
    for step in range(5):
        dense.weight.grad = None
        dense(inputs[step]).square().sum().backward()
        grads.append(dense.weight.grad.clone())
        if step == 4:  # as the update sees it
            method.steps, layer.grad = 5, sum(grads[-3:]) / 3
            wanted = exchange(layer, int(method.share * layer.kept), method.saliency, method.prospect)
            last = exchange(layer, int(method.share * layer.kept), method.saliency, lambda _: grads[-1].abs())
            method.steps, layer.grad = 4, None
        model(inputs[step]).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert torch.equal(layer.mask, wanted) and not torch.equal(wanted, last)
    assert not method.gradients.state_dict()


def test_a_window_longer_than_every_averages_what_there_is():
    model, inputs = layer_and_inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = gs.train.RigL(model, optimizer, 0.75, every=2, until=4, growth=8)
    for step in range(6):
        model(inputs[step]).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        counts = [count for _, count in method.gradients.state_dict().values()]
        assert counts == ([1] if step in (0, 2) else [])  # nothing is collected after the last update
    assert method.log()["updates"] == 2


def test_updates_begin_at_start():
    model, inputs = layer_and_inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = gs.train.SET(model, optimizer, 0.75, start=3, every=2.0, until=5.9)
    for step in range(6):
        model(inputs[step]).square().sum().backward()
        optimizer.step()
        method.step()
    assert sorted({row["step"] for row in method.history.rows}) == [3, 5]
    method.steps = 3
    assert method.share == method.fraction  # the schedule runs from start
    method.steps = 5
    assert method.share == 0


def test_growth_by_a_score_sees_a_weight_of_one():
    model, _ = layer_and_inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = gs.train.RigL(model, optimizer, 0.75, until=10, growth=gs.Movement())
    (layer,) = method.layers
    layer.grad = torch.randn(8, 12)
    assert torch.equal(method.prospect(layer), -layer.grad)
    method.growth = method.usual
    assert torch.equal(method.prospect(layer), layer.grad.abs())


def test_random_scores_differ_from_update_to_update():
    model, _ = layer_and_inputs()
    method = gs.train.SET(model, torch.optim.SGD(model.parameters(), lr=0.01), 0.75, until=10, growth=gs.Random(1))
    (layer,) = method.layers
    first = method.prospect(layer)
    method.steps = 1
    assert not torch.equal(first, method.prospect(layer))


@pytest.mark.parametrize("method", [gs.train.RigL, gs.train.SET, gs.train.SRigL])
def test_without_until_masks_are_exchanged_to_the_end(method):
    model, inputs = layer_and_inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made = method(model, optimizer, sparsity=0.5, start=2, every=2)
    for step in range(6):
        model(inputs[step]).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        made.step()
        assert made.share == made.fraction
    assert made.log()["updates"] == 3
