from __future__ import annotations

import torch

from gossamer.scores import Movement

W = torch.tensor([[1.0, -2.0], [0.0, 0.5]])
G = torch.tensor([[-3.0, -1.0], [9.0, 2.0]])


def test_movement_sums_over_steps() -> None:
    assert torch.equal(Movement()(W, grad=torch.stack([G, G, G])), 3 * Movement()(W, grad=G))
    total = None
    for _ in range(3):
        total = Movement.accumulate(total, W, G)
    assert total is not None and torch.equal(total, 3 * Movement()(W, grad=G))
