"""Hard concrete gates: they close by their price, and are fixed at the end."""

import pytest
import torch
from torch import nn

import gossamer as gs


def run(price, count=30, **options):
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = gs.train.HardConcrete(model, optimizer, price, until=20, **options)
    for step in range(count):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(6, 16)).square().mean().backward()
        optimizer.step()
        method.step()
    return model, method


def test_a_higher_price_closes_more():
    kept = [int(run(price, lr=1.0)[0].weight.mask().sum()) for price in (0.0, 1.5, 10.0)]
    assert kept[0] == 128 and kept[2] == 0 and kept == sorted(kept, reverse=True)


def test_gates_stand_still_after_until():
    model, method = run(0.05, 22, lr=1.0)
    mask, alpha = model.weight.mask(), method.layers[0].extra["log_alpha"].clone()
    gate = method.layers[0].extra["gate"].clone()
    model(torch.randn(6, 16)).square().mean().backward()
    method.optimizer.step()
    method.step()
    own = method.layers[0].extra
    assert torch.equal(model.weight.mask(), mask) and torch.equal(own["log_alpha"], alpha)
    assert torch.equal(own["gate"], gate)


def test_the_model_computes_with_weights_times_gates():
    model, method = run(0.05, 5)
    own = method.layers[0].extra
    torch.testing.assert_close(model.weight.to_dense().detach(), own["dense"] * own["gate"])


@pytest.mark.parametrize("options", [{"pattern": "2:4"}, {"score": "magnitude"}, {"sparsity": 0.9}])
def test_sparsities_patterns_and_scores_are_refused(options):
    model = nn.Linear(16, 8)
    with pytest.raises(ValueError, match="gates decide"):
        gs.train.HardConcrete(model, torch.optim.SGD(model.parameters(), lr=0.1), until=2, **options)
