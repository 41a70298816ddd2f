"""Gradual n:m by groups."""

import pytest
import torch

import gossamer as gs
from gossamer.train.groups import by_groups

PATTERNS = [gs.NM(2, 4), gs.NM(1, 8), gs.VNM("all", 2, 8), gs.VNM(4, 2, 8), gs.VNM(64, 2, 16)]


def test_the_groups_that_lose_least():
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0], [9.0, 8.0, 0.5, 0.0]])
    everything = torch.ones(2, 4, dtype=torch.bool)
    assert by_groups(gs.NM(2, 4), scores, everything, 0.5).int().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert by_groups(gs.NM(2, 4), scores, everything, 1.0).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert by_groups(gs.NM(2, 4), scores, everything, 0.0).all()


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("shape", [(16, 64), (10, 30), (3, 5), (1, 8), (8, 0)])
def test_nested_masks_that_end_in_the_pattern(pattern, shape):
    torch.manual_seed(0)
    mask, kept = torch.ones(shape, dtype=torch.bool), []
    for share in (0.0, 0.1, 0.3, 0.5, 0.5, 0.9, 1.0):
        scores = torch.rand(shape) * mask  # weights change between two updates
        new = by_groups(pattern, scores, mask, share)
        assert not (new & ~mask).any()
        mask = new
        kept.append(int(mask.sum()))
    assert kept[0] == mask.numel()
    assert torch.equal(pattern.select(mask.float()) & mask, mask)  # it has the pattern
    assert kept == sorted(kept, reverse=True)


def test_what_has_the_pattern_keeps_it():
    torch.manual_seed(0)
    scores = torch.rand(8, 32)
    first = by_groups(gs.VNM("all", 2, 8), scores, torch.ones(8, 32, dtype=torch.bool), 0.5)
    second = by_groups(gs.VNM("all", 2, 8), torch.rand(8, 32) * first, first, 0.75)
    whole = first.view(8, 4, 8).all(2).all(0)
    assert int(whole.sum()) == 2  # half of the four groups of columns keep everything
    assert torch.equal(second.view(8, 4, 8)[:, ~whole], first.view(8, 4, 8)[:, ~whole])


def test_scores_of_any_sign():
    scores = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert by_groups(gs.NM(2, 4), scores, mask, 1.0).int().tolist() == [[1, 1, 0, 0]]
