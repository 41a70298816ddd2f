"""AC/DC: phases that take turns."""

import pytest
import torch
from torch import nn

import gossamer as gs


def densities(steps, **options):
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    method = gs.train.ACDC(model, optimizer, **options)
    found = []
    for _ in range(steps):
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        found.append(method.log()["density"])
    return found


@pytest.mark.parametrize("options", [{"sparsity": 0.5}, {"sparsity": "2:4"}, {"pattern": "all:2:4"}])
def test_phases_take_turns_and_end_sparse(options):
    dense, sparse = 1.0, 0.5
    found = densities(10, start=3, every=2, until=8, **options)
    assert found == [dense] * 2 + [sparse] * 2 + [dense] * 2 + [sparse] * 4  # the phase that `until` meets is sparse
    assert densities(8, start=2, every=2, until=5, **options) == [dense] + [sparse] * 2 + [dense] + [sparse] * 4


def test_weights_train_again_in_a_dense_phase():
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    method = gs.train.ACDC(model, optimizer, 0.75, start=1, every=1, until=9)
    counts = []
    for _ in range(3):
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        counts.append(int(torch.count_nonzero(model.weight.detach().to_dense())))
        optimizer.zero_grad()
        method.step()
    assert counts == [128, 32, 128]  # the first step was dense, the second sparse, the third dense again
