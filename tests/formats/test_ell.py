"""ELL by hand: padding, widths, and the matrix view."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs
from tests.formats import _draw

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]])


def test_by_hand() -> None:
    t = gs.from_dense(X, gs.ELL())
    assert t.structure.arrays["crd1"].tolist() == [[1, 3], [-1, -1], [0, -1]]
    assert t.values().tolist() == [1.0, 2.0, 0.0, 0.0, 3.0, 0.0]
    assert t.structure.valid().tolist() == [True, True, False, False, True, False]
    assert t.nnz == 3 and t.structure.entries().where.tolist() == [0, 1, 4]


@pytest.mark.parametrize("width", [2, 3, 4, 9])
def test_width(width: int) -> None:
    t = gs.from_dense(X, gs.ELL(width))
    assert t.structure.arrays["crd1"].shape == (3, width) and torch.equal(t.to_dense(), X)
    assert torch.equal(_draw.matrix_to_dense(t), X)
    t.structure.check(t.values())
    leaf = t.requires_grad_()
    (leaf @ torch.ones(4)).sum().backward()
    assert torch.equal(leaf.grad.to_dense(), (X != 0).float())


def test_too_narrow() -> None:
    with pytest.raises(ValueError, match="a row needs 2 places, but the level has a width of 1"):
        gs.from_dense(X, gs.ELL(1))
    for width in (-1, 1.5, "2", True):
        with pytest.raises(ValueError, match="must be a non-negative integer"):
            gs.ELL(width)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (0,), ()])
@pytest.mark.parametrize("format", [gs.ELL(), gs.ELL(2)], ids=repr)
def test_no_columns_to_read(format: gs.ELL, shape: tuple[int, ...]) -> None:
    """Padding reads column 0, so with no columns there must be no padding."""
    t = gs.from_dense(torch.zeros(shape), format)
    view = t.structure.matrix()
    assert view.crd.numel() == 0 or view.cols > 0
    assert torch.equal(t.to_dense(), torch.zeros(shape))
