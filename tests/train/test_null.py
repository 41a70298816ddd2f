"""Null: the dense run of the same script."""

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


def test_null_changes_nothing():
    model, dense = network(), network()
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (model, dense)]
    method = gs.train.Null(model, optimizers[0], 0.9, every=7, until=10)
    steps(model, optimizers[0], method, 3)
    steps(dense, optimizers[1], type("None", (), {"step": lambda self: None})(), 3)
    torch.testing.assert_close(model[0].weight.detach().to_dense(), dense[0].weight.detach())


@pytest.mark.parametrize("options", [{"sparsity": "90%"}, {"pattern": "2:4"}, {"sparsity": 0.9, "score": gs.Random(1)}])
def test_it_takes_the_arguments_of_the_others_and_logs(options):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.Null(model, optimizer, every=2, until=4, **options)
    steps(model, optimizer, method, 4)
    assert method.log()["density"] == 1.0 and repr(method) == "Null(2 layers, step 4, sparsity 0.00%)"
