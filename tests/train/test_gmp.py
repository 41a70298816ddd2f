"""Gradual magnitude pruning."""

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


def test_gmp_reaches_its_sparsity_and_never_grows():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.GMP(model, optimizer, 0.9, every=3, until=10)
    masks = [model[0].weight.mask()]
    for step in range(12):
        steps(model, optimizer, method, 1, start=step)
        masks.append(model[0].weight.mask())
        assert not (masks[-1] & ~masks[-2]).any()
    assert method.log()["kept"] == round(0.1 * (192 + 96))


@pytest.mark.parametrize("schedule", ["linear", "cubic", lambda x: x**2])
def test_the_schedule_says_how_many_are_kept(schedule):
    shares = {"linear": lambda x: x, "cubic": lambda x: 1 - (1 - x) ** 3}
    share = shares.get(schedule, schedule)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.GMP(model, optimizer, 0.8, every=1, start=2, until=6, schedule=schedule, distribution="uniform")
    kept = []
    for step in range(7):
        steps(model, optimizer, method, 1, start=step)
        kept.append(int(model[0].weight.mask().sum()))
    assert kept[:2] == [192, 192] and kept[-1] == pytest.approx(0.2 * 192, abs=1)
    for at in range(2, 6):
        assert kept[at] == pytest.approx(192 * (1 - 0.8 * share((at - 1) / 4)), abs=1)


def test_a_layer_with_a_sparsity_of_its_own_goes_evenly_with_the_others():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"0.weight": 0.5, "2.weight": 0.75}
    method = gs.train.GMP(model, optimizer, 0.6, every=1, until=2, schedule="linear", distribution=given)
    steps(model, optimizer, method, 1)
    assert [layer.kept for layer in method.layers] == [192 - 48, 96 - 36]
    steps(model, optimizer, method, 1)
    assert [layer.kept for layer in method.layers] == [96, 24]


def test_until_is_needed():
    model = network()
    with pytest.raises(ValueError, match="give until="):
        gs.train.GMP(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5)
