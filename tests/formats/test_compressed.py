"""CSR, CSC, DCSR and CSF by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import gossamer as gs
from tests.formats import _draw

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]])


def arrays(t: gs.SparseTensor) -> dict[str, list]:
    return {name: array.tolist() for name, array in t.structure.arrays.items()}


def test_csc() -> None:
    t = gs.from_dense(X, gs.CSC())
    assert arrays(t) == {"pos1": [0, 1, 2, 2, 4], "crd1": [2, 0, 0, 2]}
    assert t.values().tolist() == [3.0, 1.0, 2.0, 4.0]
    assert t.structure.entries().keys.tolist() == [8, 1, 3, 11]
    view = t.structure.matrix()
    assert view.transposed and (view.rows, view.cols) == (3, 4) and view.index is None


def test_dcsr() -> None:
    t = gs.from_dense(X, gs.DCSR())
    assert arrays(t) == {"pos0": [0, 2], "crd0": [0, 2], "pos1": [0, 2, 4], "crd1": [1, 3, 0, 3]}
    assert t.structure.matrix().pos.tolist() == [0, 2, 2, 4]


def test_csf() -> None:
    x = torch.zeros(2, 3, 4)
    x[0, 1, 2], x[0, 1, 3], x[1, 0, 0] = 1.0, 2.0, 3.0
    t = gs.from_dense(x, gs.CSF())
    assert arrays(t) == {
        "pos0": [0, 2],
        "crd0": [0, 1],
        "pos1": [0, 1, 2],
        "crd1": [1, 0],
        "pos2": [0, 2, 3],
        "crd2": [2, 3, 0],
    }
    assert len(gs.CSF().stack(5)) == 5 and len(gs.CSF().stack(0)) == 1


def test_convolutions_are_matrices() -> None:
    x = torch.randn(4, 3, 2, 2) * (torch.rand(4, 3, 2, 2) < 0.5)
    t = gs.from_dense(x, gs.CSR())
    view = t.structure.matrix()
    assert (view.rows, view.cols) == (4, 12) and torch.equal(t.to_dense(), x)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (4, 0), (0, 4), (0, 0), (2, 0, 3)])
@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.DCSR(), gs.CSF()], ids=repr)
def test_nothing_to_store(format: gs.Format, shape: tuple[int, ...]) -> None:
    t = gs.from_dense(torch.zeros(shape), format)
    assert t.nnz == 0 and t.values().shape == (0,) and torch.equal(t.to_dense(), torch.zeros(shape))


@given(_draw.dense((2, 2)))
def test_a_transpose_shares_its_arrays(x: torch.Tensor) -> None:
    t = gs.from_dense(x, gs.CSR())
    turned = t.t()
    assert turned.format == gs.CSC() and torch.equal(turned.to_dense(), x.t())
    assert turned.structure.arrays["crd1"] is t.structure.arrays["crd1"]


@given(_draw.dense((2, 3)))
def test_columns_are_the_rows_of_the_transpose(x: torch.Tensor) -> None:
    matrix = x.reshape(x.shape[0], -1) if x.numel() else torch.zeros(x.shape[0], x[0].numel() if len(x) else 0)
    csc, csr = gs.from_dense(matrix, gs.CSC()), gs.from_dense(matrix.t(), gs.CSR())
    assert arrays(csc) == arrays(csr) and torch.equal(csc.values(), csr.values())
