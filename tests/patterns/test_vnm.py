from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import NM, VNM


def exact(scores: torch.Tensor, v: int, m: int) -> float:
    """The largest possible sum of kept scores, by trying every set of 4 columns."""
    total = 0.0
    for top in range(0, scores.shape[0], v):
        for left in range(0, scores.shape[1], m):
            tile = scores[top : top + v, left : left + m].double()
            width = tile.shape[1]
            sets = torch.tensor(list(combinations(range(width), min(4, width))))
            total += float(tile[:, sets].topk(min(2, width), dim=2).values.sum((0, 2)).max())
    return total


def test_by_hand() -> None:
    scores = torch.tensor(
        [
            [9.0, 0.0, 8.0, 0.0, 7.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 6.0, 9.0, 7.0, 0.0, 0.0, 0.0],
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
        ]
    )
    assert VNM(2, 2, 8).select(scores).int().tolist() == [
        [1, 0, 1, 0, 0, 0, 0, 0],  # columns 0, 2, 3, 4 are shared
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],  # columns 0, 1, 6, 7 are shared
        [1, 1, 0, 0, 0, 0, 0, 0],
    ]
    assert VNM(2, 2, 8).select(torch.ones(2, 8)).int().tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exact_and_well_formed_for_any_shape(data: st.DataObject) -> None:
    v, m = data.draw(st.integers(0, 6)), data.draw(st.integers(4, 9))  # 0: all
    rows, columns = data.draw(st.integers(1, 13)), data.draw(st.integers(1, 20))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    scores = torch.randn(rows, columns, generator=generator)
    if data.draw(st.booleans()):
        scores = scores.mul(2).round().abs()
    mask = VNM(v or "all", 2, m).select(scores)
    height = v or rows
    for top in range(0, rows, height):
        for left in range(0, columns, m):
            tile = mask[top : top + height, left : left + m]
            assert (tile.sum(1) == min(2, tile.shape[1])).all()
            assert tile.any(0).sum() <= 4
    assert float(scores.double()[mask].sum()) == pytest.approx(exact(scores, height, m), rel=1e-6, abs=1e-5)


def test_sixteen_columns_and_tall_blocks() -> None:
    scores = torch.randn(300, 32, generator=torch.Generator().manual_seed(0)).abs()
    for v in (16, 300):
        kept = float(scores.double()[VNM(v, 2, 16).select(scores)].sum())
        assert kept == pytest.approx(exact(scores, v, 16), rel=1e-6)
    assert torch.equal(VNM("all", 2, 16).select(scores), VNM(300, 2, 16).select(scores))


@pytest.mark.parametrize(("v", "m"), [(2, 20), (3, 17), (4, 20), (8, 32), (32, 24)])
@pytest.mark.parametrize("power", [1, 3])
def test_exact_up_to_32_columns(v: int, m: int, power: int) -> None:
    scores = torch.randn(v * 3, m * 4, generator=torch.Generator().manual_seed(v)).abs() ** power
    kept = float(scores.double()[VNM(v, 2, m).select(scores)].sum())
    assert kept == pytest.approx(exact(scores, v, m), rel=1e-6)


def test_columns_that_complement_each_other() -> None:
    """Columns 0-3 are the best four together, though each of them alone is worth less than columns 4-7."""
    scores = torch.zeros(4, 20)
    scores[0, 0] = scores[1, 1] = scores[2, 2] = scores[3, 3] = 10.0
    scores[:, 4:8] = 4.0
    scores[:2, 4:8] += 0.1
    kept = float(scores[VNM(4, 2, 20).select(scores)].sum())
    assert kept == pytest.approx(exact(scores, 4, 20))


@pytest.mark.parametrize("v", [3, 8, 32])
def test_refined_above_32_columns(v: int) -> None:
    scores = torch.randn(v * 4, 36 * 2, generator=torch.Generator().manual_seed(v)).abs()
    kept = float(scores.double()[VNM(v, 2, 36).select(scores)].sum())
    best = exact(scores, v, 36)
    assert 0.99 * best <= kept <= best * (1 + 1e-6)


def test_special_cases_are_nm() -> None:
    scores = torch.randn(10, 30)
    assert torch.equal(VNM(1, 2, 10).select(scores), NM(2, 10).select(scores))
    assert torch.equal(VNM(5, 2, 4).select(scores), NM(2, 4).select(scores))


def test_wide_groups() -> None:
    mask = VNM(64, 2, 100).select(torch.rand(100, 250))
    assert mask.sum(1).tolist() == [6] * 100  # 100 + 100 + 50 columns
    assert mask[:64, :100].any(0).sum() <= 4 and mask[64:, 200:].any(0).sum() <= 4


def test_errors() -> None:
    with pytest.raises(ValueError, match="n = 2"):
        VNM(64, 1, 8)
    with pytest.raises(ValueError, match="m must be at least 4"):
        VNM(64, 2, 3)
    with pytest.raises(ValueError, match="at least 1"):
        VNM(0, 2, 8)
    with pytest.raises(ValueError, match='"all"'):
        VNM("every", 2, 8)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        VNM(1.5, 2, 8)  # type: ignore[arg-type]
