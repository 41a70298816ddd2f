"""Recipes train, resume, and set the learning rates that they say."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs

INPUTS = torch.randn(12, 16, 64, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))


def steps(model, recipe, batches):
    for x in batches:
        output = model(x)
        recipe.loss((output - x[:, :8]).square().mean(), output, x).backward()
        recipe.step()


def test_learning_rates_follow_the_density():
    model = network()
    recipe = gs.train.Recipe(model, "90%", steps=60, lr=1e-3)
    assert repr(recipe) == "Recipe(GMP 90%, 60 steps, learning rate of sparse layers x 15.8)"
    dense, sparse = recipe.optimizer.param_groups
    assert {p.shape for p in sparse["params"]} == {(32, 64), (8, 32)}
    seen, boosts = [], []
    for number in range(60):
        density = sum(layer.kept for layer in recipe.method.layers) / (32 * 64 + 8 * 32)
        assert sparse["lr"] == pytest.approx(dense["lr"] * density**-1.2)
        assert density == 1 or number >= 9  # dense for 15 % of the steps
        seen.append(dense["lr"])
        boosts.append(recipe.boost)
        steps(model, recipe, INPUTS[:1])
    assert max(seen) == pytest.approx(1e-3, rel=0.01) and seen[0] == pytest.approx(5e-4) and seen[-1] < 2e-6
    assert boosts[0] == 1 and boosts[45] == pytest.approx(10**1.2, rel=0.01) and boosts == sorted(boosts)


@pytest.mark.parametrize("how", ["2:4", "all:2:8", "block 4x4 75%", "fan-in 75%", 0.8])
def test_every_pattern_is_reached_gradually(how):
    recipe = gs.train.Recipe(model := network(), how, steps=12)
    assert type(recipe.method) is gs.train.GMP and recipe.boost == 1
    steps(model, recipe, INPUTS)
    assert recipe.boost == pytest.approx((1 - recipe.method.sparsity) ** -1.2, rel=0.05)
    for layer in recipe.method.layers:
        if layer.pattern is not None:
            assert torch.equal(layer.pattern.select(layer.mask.float()) & layer.mask, layer.mask)


def test_from_a_trained_net():
    dense = network()
    recipe = gs.train.Recipe(model := copy.deepcopy(dense), "75%", steps=12, lr=1e-2, teacher=dense)
    assert repr(recipe) == "Recipe(GMP 75%, 12 steps, distilled)" and recipe.boost == 1
    x = INPUTS[0]
    with torch.no_grad():
        plain = torch.tensor(3.0)
        assert float(recipe.loss(plain, model(x), x)) == pytest.approx(1.5)  # equal to its teacher: half of the loss
        assert float(recipe.loss(plain, model(x) + torch.randn(16, 8), x)) > 1.5
    steps(model, recipe, INPUTS)
    assert sum(layer.kept for layer in recipe.method.layers) == (32 * 64 + 8 * 32) // 4
    assert not dense.training and dense[0].weight.grad is None


def test_resume_is_exact():
    model, other = network(), network()
    recipe = gs.train.Recipe(model, "80%", steps=12, lr=1e-2)
    steps(model, recipe, INPUTS[:6])
    saved = copy.deepcopy((model.state_dict(), recipe.state_dict()))
    again = gs.train.Recipe(other, "80%", steps=12, lr=1e-2, seed=5)
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    for net, made in ((model, recipe), (other, again)):
        steps(net, made, INPUTS[6:])
    for name, weight in model.named_parameters():
        assert torch.equal(other.get_parameter(name), weight)


def test_options_and_errors():
    recipe = gs.train.Recipe(model := network(), 0.5, steps=5, skip="2", optimizer=torch.optim.SGD)
    assert isinstance(recipe.optimizer, torch.optim.SGD) and recipe.method.left
    assert not gs.nn.all_weights(model)["2.weight"].is_sparse
    with pytest.raises(ValueError, match="steps=0 must be a number of optimizer steps"):
        gs.train.Recipe(network(), "90%", steps=0)
