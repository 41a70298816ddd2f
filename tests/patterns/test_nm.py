from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import NM


def test_by_hand() -> None:
    scores = torch.tensor(
        [
            [1.0, 9.0, 8.0, 2.0, 5.0, 5.0, 5.0, 5.0],
            [4.0, 3.0, 2.0, 1.0, 1.0, 2.0, 3.0, 4.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
            [-1.0, -2.0, -3.0, -4.0, 7.0, 0.0, 7.0, 7.0],
        ]
    )
    assert NM(2, 4).select(scores).int().tolist() == [
        [0, 1, 1, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 1, 1],
        [1, 1, 0, 0, 1, 0, 0, 1],
        [1, 1, 0, 0, 1, 0, 1, 0],
    ]
    # Columns that don't divide: 3 + 3 + 2, and the tail of 2 keeps min(1, 2).
    assert NM(1, 3).select(scores[:1]).int().tolist() == [[0, 1, 0, 0, 1, 0, 1, 0]]
    assert NM(3, 3).select(scores).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.data())
def test_each_group_keeps_its_best(m: int, data: st.DataObject) -> None:
    n, rows, columns = data.draw(st.integers(1, m)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 30))
    values = data.draw(st.lists(st.integers(-3, 3), min_size=rows * columns, max_size=rows * columns))
    scores = torch.tensor(values).float().view(rows, columns)
    mask = NM(n, m).select(scores)
    for row, kept in zip(scores.tolist(), mask.tolist(), strict=True):
        for start in range(0, columns, m):
            group = row[start : start + m]
            best = sorted(range(len(group)), key=lambda i: (-group[i], i))[:n]
            assert kept[start : start + m] == [i in best for i in range(len(group))]


def test_convolutions_are_matrices() -> None:
    scores = torch.rand(4, 3, 2, 2)
    assert torch.equal(NM(2, 4).select(scores), NM(2, 4).select(scores.view(4, 12)).view(4, 3, 2, 2))


@pytest.mark.parametrize(("n", "m"), [(0, 4), (5, 4), (2, 0), (-1, 2)])
def test_bad_numbers(n: int, m: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|n <= m"):
        NM(n, m)


def test_bad_types() -> None:
    for bad in (2.0, "2", True):
        with pytest.raises(TypeError, match="integer"):
            NM(bad, 4)  # type: ignore[arg-type]
