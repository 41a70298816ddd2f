"""Movement pruning by hand."""

import pytest
import torch
from torch import nn

import gossamer as gs


def test_movement_keeps_what_moves_away_from_zero():
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0, 1.0, -1.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.Movement(layer, optimizer, 0.5, until=1)
    layer(torch.tensor([[-1.0, -1.0, 1.0, 1.0]])).sum().backward()  # descent: + for 0 and 1, - for 2 and 3
    optimizer.step()
    method.step()
    assert layer.weight.mask().tolist() == [[True, False, False, True]]


@pytest.mark.parametrize(("until", "want"), [(1, [16]), (4, [40, 22, 17, 16])])
def test_sparsity_grows_along_a_cubic(until, want):
    torch.manual_seed(0)
    layer = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.Movement(layer, optimizer, 0.75, until=until)
    kept = []
    for _ in want:
        layer(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        kept.append(int(layer.weight.mask().sum()))
    assert kept == [round(16 + 48 * (1 - step / until) ** 3) for step in range(1, until + 1)]
    assert kept[-1] == want[-1]


def test_a_score_is_refused():
    layer = nn.Linear(8, 8)
    with pytest.raises(ValueError, match="it chooses by movement"):
        gs.train.Movement(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, until=2, score="magnitude")
