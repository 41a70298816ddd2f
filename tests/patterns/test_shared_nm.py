from __future__ import annotations

from itertools import combinations

import pytest
import torch

from gossamer.patterns import NM, VNM, SharedNM


def exact(scores: torch.Tensor, shared: int, n: int) -> float:
    """The largest possible sum of one block of rows, by trying every set of columns."""
    sets = torch.tensor(list(combinations(range(scores.shape[1]), shared)))
    return float(scores[:, sets].topk(n, dim=2).values.sum((0, 2)).max())


def test_by_hand() -> None:
    scores = torch.tensor([[9.0, 1.0, 8.0, 7.0], [1.0, 1.0, 6.0, 9.0]])
    assert SharedNM(2, 3, 2, 4).select(scores).int().tolist() == [[1, 0, 1, 0], [0, 0, 1, 1]]
    assert SharedNM(2, 2, 2, 4).select(scores).int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]


@pytest.mark.parametrize(("shared", "n"), [(6, 5), (5, 4), (5, 3), (3, 3), (6, 1)])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_close_to_the_best_and_well_formed(shared: int, n: int, rows: int) -> None:
    scores = torch.rand(rows, 8)
    mask = SharedNM("all", shared, n, 8).select(scores)
    assert (mask.sum(1) == n).all()
    assert rows == 1 or int(mask.any(0).sum()) <= shared
    assert rows == 1 or float(scores[mask].sum()) >= 0.99 * exact(scores, shared, n)


def test_special_cases() -> None:
    scores = torch.rand(8, 36)
    assert torch.equal(SharedNM(4, 4, 2, 8).select(scores), VNM(4, 2, 8).select(scores))
    assert torch.equal(SharedNM(1, 3, 2, 8).select(scores), NM(2, 8).select(scores))
    assert torch.equal(SharedNM(8, 8, 2, 8).select(scores), NM(2, 8).select(scores))


def test_errors() -> None:
    with pytest.raises(ValueError, match="n <= m"):
        SharedNM(4, 3, 4, 8)
    with pytest.raises(ValueError, match="n <= m"):
        SharedNM(4, 9, 4, 8)
    with pytest.raises(ValueError, match='"all"'):
        SharedNM("every", 4, 2, 8)  # type: ignore[arg-type]
