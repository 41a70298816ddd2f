"""Static: masks that never change."""

import pytest
import torch
from torch import nn

import gossamer as gs


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8))


def steps(model, optimizer, method, count, start=0):
    for step in range(start, start + count):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(6, 16)).square().mean().backward()
        optimizer.step()
        method.step()


@pytest.mark.parametrize("how", ["75%", "2:8", "fan-in 75%"])
def test_masks_never_change(how):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    method = gs.train.Static(model, optimizer, how, every=1)
    masks = [layer.mask.clone() for layer in method.layers]
    steps(model, optimizer, method, 4)
    assert all(torch.equal(layer.mask, mask) for layer, mask in zip(method.layers, masks, strict=True))
    assert not any(layer.weight[~layer.mask].any() for layer in method.layers)


def test_by_score_the_first_masks_keep_the_highest():
    model = network()
    weight = model[0].weight.detach().clone()
    gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), "2:4", score="magnitude")
    assert torch.equal(model[0].weight.mask(), gs.NM(2, 4).select(weight.abs()))


def test_at_random_by_the_seed():
    masks = []
    for seed in (1, 1, 2):
        model = network()
        gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5, seed=seed)
        masks.append(model[0].weight.mask())
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
