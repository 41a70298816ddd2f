"""BSR: blocks that divide and blocks that don't, and the matrix view that needs no sort."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import gossamer as gs
from gossamer.formats import structure
from tests.formats import _draw

X = torch.tensor(
    [[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 0.0]]
)  # two blocks of 2x2 in use


def test_by_hand() -> None:
    t = gs.from_dense(X, gs.BSR((2, 2)))
    assert t.structure.arrays["pos1"].tolist() == [0, 1, 2] and t.structure.arrays["crd1"].tolist() == [0, 1]
    assert t.values().tolist() == [[[1.0, 2.0], [3.0, 4.0]], [[0.0, 5.0], [0.0, 0.0]]]
    assert t.nnz == 8 and t.structure.valid() is None and not t.format.any_pattern


def test_matrix_view_by_hand() -> None:
    view = gs.from_dense(X, gs.BSR((2, 2))).structure.matrix()
    assert view.pos.tolist() == [0, 2, 4, 6, 8]
    assert view.crd.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert view.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    two = gs.from_dense(torch.ones(2, 4), gs.BSR((2, 2))).structure.matrix()  # two blocks side by side
    assert two.index.tolist() == [0, 1, 4, 5, 2, 3, 6, 7] and two.crd.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_blocks_that_do_not_divide_are_padded() -> None:
    t = gs.from_dense(torch.ones(3, 3), gs.BSR((2, 2)))
    assert t.values().shape == (4, 2, 2) and t.nnz == 9
    assert t.structure.valid()[3].tolist() == [[True, False], [False, False]]
    view = t.structure.matrix()
    assert view.pos.tolist() == [0, 3, 6, 9] and view.crd.tolist() == [0, 1, 2] * 3
    with pytest.raises(ValueError, match="a value outside the pattern is not zero"):
        gs.SparseTensor.from_arrays(t.format, (3, 3), torch.ones(4, 2, 2), t.structure.arrays)


@given(_draw.dense((1, 3)), _draw.blocked())
def test_matrix_view_is_sorted_and_has_the_stored_entries(x: torch.Tensor, format: gs.BSR) -> None:
    t = gs.from_dense(x, format)
    view, slow = t.structure.matrix(), structure._sorted_matrix(t.structure)
    assert torch.equal(_draw.matrix_to_dense(t), x.reshape(structure.matrix_sizes(x.shape)))
    assert view.transposed == (format.order is not None) and view.crd.numel() == t.nnz
    assert torch.equal(
        view.index.sort().values, slow.index.sort().values if slow.index is not None else torch.arange(t.nnz)
    )
    for r in range(view.pos.numel() - 1):
        row = view.crd[view.pos[r] : view.pos[r + 1]]
        assert bool((row[1:] > row[:-1]).all())
    if not view.transposed and slow.index is not None:
        assert all(
            torch.equal(a, b)
            for a, b in zip((view.pos, view.crd, view.index), (slow.pos, slow.crd, slow.index), strict=True)
        )


@given(_draw.dense((2, 2)), _draw.blocked())
def test_products(x: torch.Tensor, format: gs.BSR) -> None:
    t = gs.from_dense(x, format).requires_grad_()
    right = torch.arange(1.0, 3 * x.shape[1] + 1).view(x.shape[1], 3).double()
    out = t @ right
    assert torch.equal(out.detach(), x @ right)
    out.sum().backward()
    want = torch.ones(x.shape[0], 3).double() @ right.t()
    assert torch.equal(t.grad.to_dense(), want * t.mask())


@pytest.mark.parametrize("block", [(0, 2), (2,), (2, 2, 2), (2.0, 2), ("2", 2), (-1, 1)])
def test_blocks_must_be_two_sizes(block: tuple) -> None:
    with pytest.raises(ValueError, match="two positive integers"):
        gs.BSR(block)


def test_transpose_reads_the_same_blocks() -> None:
    format = gs.BSR((2, 3))
    assert format.transposed() == gs.BSR((3, 2), order=(1, 0)) and format.transposed().transposed() == format
    t = gs.from_dense(X, format)
    assert torch.equal(t.t().to_dense(), X.t()) and t.t().format == format.transposed()
