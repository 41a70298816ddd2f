from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import Blocks


def test_by_hand() -> None:
    scores = torch.zeros(4, 8)
    scores[1, 1], scores[2, 5], scores[0, 6:] = 3.0, 1.0, 2.0
    # Sums of the 2x2 blocks: 3 0 0 4 / 0 0 1 0; half of 8 stay, the fourth is the first of the zeros.
    assert Blocks(0.5, (2, 2)).select(scores).int().tolist() == [
        [1, 1, 1, 1, 0, 0, 1, 1],
        [1, 1, 1, 1, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
    ]


def test_smaller_blocks_at_the_edges_rank_by_their_mean() -> None:
    scores = torch.tensor([[1.0, 1.0, 1.0, 1.0, 3.0], [1.0, 1.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0, 0.5]])
    # 2x4 blocks: sums 8 6 / 8 0.5, means 1 3 / 2 0.5.
    assert Blocks(0.5, (2, 4)).select(scores).int().tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 0]]
    assert Blocks(0.5, (100, 4)).select(scores).int().tolist() == [[0, 0, 0, 0, 1]] * 3
    assert not Blocks(1.0, (64, 64)).select(scores).any()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_blocks_stay_whole_and_are_the_best(height: int, width: int, rows: int, columns: int, fraction: float) -> None:
    scores = torch.randint(0, 4, (rows, columns)).float()
    mask = Blocks(fraction, (height, width)).select(scores)
    tiles = [
        (slice(i, i + height), slice(j, j + width)) for i in range(0, rows, height) for j in range(0, columns, width)
    ]
    kept = [bool(mask[tile].all()) for tile in tiles]
    assert all(bool(mask[tile].any()) == whole for tile, whole in zip(tiles, kept, strict=True))
    means = [Fraction(int(scores[tile].sum()), scores[tile].numel()) for tile in tiles]
    best = sorted(range(len(tiles)), key=lambda i: (-means[i], i))[: sum(kept)]
    assert kept == [i in best for i in range(len(tiles))]


def test_errors() -> None:
    assert Blocks(0.5, 3).block == (3, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two integers"):
        Blocks(0.5, (4, 4, 4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        Blocks(0.5, (0, 4))
    with pytest.raises(ValueError, match="from 0"):
        Blocks(1.1)
