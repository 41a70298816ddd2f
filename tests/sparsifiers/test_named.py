"""Sparsifiers with names: the pattern and the score that each stands for."""

import pytest
import torch

from gossamer import patterns, scores
from gossamer.sparsifiers import named

X = torch.tensor([[1.0, -4.0, 2.0, -3.0], [0.5, 0.0, -6.0, 5.0]])
T, F = True, False


@pytest.mark.parametrize(
    ("sparsifier", "mask"),
    [
        (named.KeepAll(), [[T, T, T, T], [T, T, T, T]]),
        (named.ScalarThreshold(2.0), [[F, T, F, T], [F, F, T, T]]),  # 2 itself is removed
        (named.ScalarFraction(0.5), [[F, T, F, T], [F, F, T, T]]),
        (named.ScalarFraction(0.25), [[T, T, T, T], [F, F, T, T]]),
        (named.PerBlockFraction(1, 4), [[F, T, F, F], [F, F, T, F]]),
        (named.BlockwiseFraction(0.5, (2, 2)), [[F, F, T, T], [F, F, T, T]]),
        (named.RandomFraction(0.0), [[T, T, T, T], [T, T, T, T]]),
        (named.RandomFraction(1.0), [[F, F, F, F], [F, F, F, F]]),
        (named.GroupedNM(1, 2, 1), [[T, F, T, F], [F, T, F, T]]),
    ],
    ids=repr,
)
def test_masks_by_hand(sparsifier, mask):
    if isinstance(sparsifier, named.GroupedNM):  # 1 of 2, and the two rows take different ones
        out = sparsifier.mask(X)
        assert out.view(2, 2, 2).sum(-1).tolist() == [[1, 1], [1, 1]] and bool((out[0] ^ out[1]).all())
    else:
        assert sparsifier.mask(X).tolist() == mask


def test_scores_other_than_magnitude():
    grad = torch.tensor([[1.0, 1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]])
    kept = named.Movement(0.5).mask(X, grad=grad)  # -w g: -1, 4, 2, -3, 0, 0, 0, 0
    assert kept[0].tolist() == [F, T, T, F] and int(kept.sum()) == 4
    gates = torch.tensor([[-9.0, 9.0, -9.0, 9.0]]).expand(2, 4)
    assert named.HardConcrete().mask(X, log_alpha=gates).tolist() == [[F, T, F, T]] * 2
    assert isinstance(named.Movement(0.5).score, scores.Movement)


def test_a_random_fraction_is_of_its_size_and_of_its_seed():
    x = torch.ones(100, 100)
    one = named.RandomFraction(0.3, seed=1).mask(x)
    assert 0.66 < float(one.float().mean()) < 0.74
    assert torch.equal(one, named.RandomFraction(0.3, seed=1).mask(x))
    assert not torch.equal(one, named.RandomFraction(0.3, seed=2).mask(x))


@pytest.mark.parametrize(
    ("sparsifier", "text"),
    [
        (named.KeepAll(), "KeepAll()"),
        (named.RandomFraction(0.5, seed=3), "RandomFraction(0.5, seed=3)"),
        (named.ScalarThreshold(0.01), "ScalarThreshold(0.01)"),
        (named.ScalarFraction(0.9), "ScalarFraction(0.9)"),
        (named.BlockwiseFraction(0.8), "BlockwiseFraction(0.8, (4, 4))"),
        (named.PerBlockFraction(2, 4), "PerBlockFraction(2, 4)"),
        (named.GroupedNM(1, 8, 16), "GroupedNM(1, 8, 16)"),
        (named.Movement(0.5), "Movement(0.5)"),
        (named.HardConcrete(), "HardConcrete()"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_they_print_as_they_are_written(sparsifier, text):
    assert repr(sparsifier) == text
    assert repr(eval(text, vars(named))) == text


def test_their_patterns():
    assert named.PerBlockFraction(2, 4).pattern == patterns.NM(2, 4)
    assert named.BlockwiseFraction(0.8, (2, 4)).pattern == patterns.Blocks(0.8, (2, 4))
    assert named.GroupedNM(1, 8, 16).pattern == patterns.GroupedNM(1, 8, 16)
    for wrong in (
        lambda: named.RandomFraction(1.5),
        lambda: named.ScalarFraction(-1),
        lambda: named.PerBlockFraction(5, 4),
    ):
        with pytest.raises(ValueError):
            wrong()
