from __future__ import annotations

from itertools import pairwise
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from gossamer.patterns import NM, GroupedNM, _transport


def exact(pattern: GroupedNM, scores: torch.Tensor) -> float:
    """The largest possible sum of kept scores, block by block and chunk by chunk."""
    rows, columns = scores.shape
    padded = torch.nn.functional.pad(scores, (0, -columns % pattern.m)).double()
    total = 0.0
    for start in range(0, rows, pattern.chunk):
        for left in range(0, columns, pattern.m):
            part = padded[start : start + pattern.chunk, left : left + pattern.m]
            gains = torch.stack([part[:, list(kept)].sum(1) for kept in pattern.patterns], 1).numpy()
            slots = np.repeat(gains, pattern.g, axis=1)
            total += slots[linear_sum_assignment(slots, maximize=True)].sum()
    return total


def test_by_hand() -> None:
    # 1:2 with g = 2: of 4 rows two take column 0, two column 1. Columns 4-7 tie, so that any fair choice is as good.
    scores = torch.tensor(
        [
            [9.0, 1.0, 3.0, 3.1, 1.0, 1.0, 1.0, 1.0],
            [8.0, 1.0, 3.0, 3.2, 1.0, 1.0, 1.0, 1.0],
            [7.0, 5.0, 3.0, 3.3, 1.0, 1.0, 1.0, 1.0],
            [6.0, 5.0, 3.0, 3.4, 1.0, 1.0, 1.0, 1.0],
        ]
    )
    mask = GroupedNM(1, 2, 2).select(scores)
    assert mask[:, :4].int().tolist() == [[1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 0, 1]]
    assert mask.view(4, 4, 2).sum(0).tolist() == [[2, 2]] * 4


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (2, 4), (3, 7), (4, 8), (5, 6)])
def test_neighbouring_patterns_differ_in_one_position(n: int, m: int) -> None:
    patterns = GroupedNM(n, m, 1).patterns
    assert len(patterns) == len(set(patterns)) == comb(m, n)
    assert all(kept == tuple(sorted(set(kept))) and len(kept) == n and max(kept) < m for kept in patterns)
    for one, two in pairwise(patterns):
        assert len(set(one) & set(two)) == n - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.data())
def test_exact_and_balanced_for_any_shape(m: int, data: st.DataObject) -> None:
    n, g = data.draw(st.integers(1, m)), data.draw(st.integers(1, 4))
    rows, columns = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 13))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    scores = torch.randn(rows, columns, generator=generator)
    if data.draw(st.booleans()):
        scores = scores.mul(2).round()  # ties, zeros and negative scores
    pattern = GroupedNM(n, m, g)
    mask, used = pattern.select(scores), pattern.assign(scores)
    blocks, chunks = -(-columns // m), -(-rows // pattern.chunk)
    assert used.shape == (blocks, chunks, pattern.chunk)
    lines = used.flatten(1)
    assert (lines[:, rows:] == -1).all() and (lines[:, :rows] >= 0).all()
    for block in range(blocks):
        for chunk in range(chunks):
            counts = torch.bincount(used[block, chunk][used[block, chunk] >= 0], minlength=len(pattern.patterns))
            whole = (chunk + 1) * pattern.chunk <= rows
            assert (counts == g).all() if whole else (counts <= g).all()
        for row in range(rows):
            kept = [block * m + i for i in pattern.patterns[lines[block, row]] if block * m + i < columns]
            assert mask[row, block * m : (block + 1) * m].nonzero().view(-1).add(block * m).tolist() == kept
    assert float(scores.double()[mask].sum()) == pytest.approx(exact(pattern, scores), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "pattern", [GroupedNM(1, 4, 8), GroupedNM(2, 4, 8), GroupedNM(1, 10, 4), GroupedNM(1, 20, 2)], ids=str
)
def test_layers_are_exact(pattern: GroupedNM) -> None:
    scores = torch.randn(768, 3072, generator=torch.Generator().manual_seed(0)).abs()
    mask = pattern.select(scores)
    part = scores[: 2 * pattern.chunk, : 4 * pattern.m]
    kept = float(part.double()[mask[: 2 * pattern.chunk, : 4 * pattern.m]].sum())
    assert kept == pytest.approx(exact(pattern, part), rel=1e-6)


def test_many_patterns() -> None:
    scores = torch.rand(160, 16, generator=torch.Generator().manual_seed(1))
    pattern = GroupedNM(4, 8, 1)  # 70 patterns: two whole chunks and one of 20 rows
    kept = float(scores.double()[pattern.select(scores)].sum())
    assert kept == pytest.approx(exact(pattern, scores), rel=1e-6)
    assert kept <= float(scores[NM(4, 8).select(scores)].sum()) * (1 + 1e-6)


def test_scores_of_any_size() -> None:
    scores = torch.rand(24, 8, generator=torch.Generator().manual_seed(2))
    pattern = GroupedNM(1, 4, 3)
    mask = pattern.select(scores)
    for factor in (2.0**-100, 2.0**100):
        assert torch.equal(pattern.select(scores * factor), mask)
    assert pattern.select(torch.zeros(24, 8)).sum() == 48


def test_errors() -> None:
    for bad in ((0, 4, 1), (1, 4, 0), (5, 4, 1)):
        with pytest.raises(ValueError, match=r"at least 1|n <= m"):
            GroupedNM(*bad)
    with pytest.raises(ValueError, match="155117520 patterns"):
        GroupedNM(15, 30, 1)
    with pytest.raises(TypeError, match="integer"):
        GroupedNM(1, 4, "g8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="NaN"):
        GroupedNM(1, 4, 1).assign(torch.full((2, 2), torch.nan))


def test_threads_are_as_before_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def solve(gains: torch.Tensor, g: int) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    threads = torch.get_num_threads()
    monkeypatch.setattr(_transport, "_solve", solve)
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            GroupedNM(1, 4, 2).select(torch.rand(8, 8))
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
