"""RigL: drop by magnitude, grow by gradient."""

import torch

import gossamer as gs
from tests.train.exchanged import update


def test_the_smallest_are_dropped_and_those_of_largest_gradient_grow():
    weight = torch.tensor([[4.0, 3.0, 2.0, 1.0], [8.0, 7.0, 6.0, 5.0]])
    gradient = torch.tensor([[1.0, 2.0, 3.0, 4.0], [8.0, 7.0, 6.0, 5.0]])
    for seed in range(4):
        before, after = update(gs.train.RigL, seed)
        stay = torch.zeros(8, dtype=torch.bool)
        stay[(weight * before).flatten().topk(4).indices] = True
        kept = stay.view(2, 4) & after
        dropped = int((before & ~after).sum())
        assert int(after.sum()) == 4 and dropped <= 2
        free = gradient.masked_fill(before & after, -1).flatten().topk(dropped).indices
        assert set((after & ~before).flatten().nonzero().view(-1).tolist()) <= set(free.tolist())
        assert kept[(weight * before) == (weight * before).max()].all()


def test_growth_by_gradient_is_the_usual():
    assert gs.train.RigL.usual.score is not None
