"""There and back: torch.sparse and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from tests.formats import _draw

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0], [0.0, 5.0, 6.0, 0.0]])
LAYOUTS = {
    torch.sparse_csr: gs.CSR(),
    torch.sparse_csc: gs.CSC(),
    torch.sparse_bsr: gs.BSR((2, 2)),
    torch.sparse_coo: gs.COO(),
}
SHAPES = [(0, 0), (4, 0), (0, 4), (2, 2), (4, 6)]


def to_layout(x: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    return x.to_sparse(layout=layout, blocksize=(2, 2)) if layout == torch.sparse_bsr else x.to_sparse(layout=layout)


# -- torch.sparse


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_round_trip(layout: torch.layout, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype) * (torch.rand(shape) < 0.5)
    theirs = to_layout(x, layout)
    t = gs.from_torch(theirs)
    assert t.format == LAYOUTS[layout] and t.dtype == dtype and torch.equal(t.to_dense(), x)
    back = t.to_torch()
    assert back.layout == layout and torch.equal(back.to_dense(), x)
    with torch.sparse.check_sparse_tensor_invariants():
        gs.from_torch(to_layout(back.to_dense(), layout)).to_torch()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_index_types_are_kept(index: torch.dtype) -> None:
    pos, crd = torch.tensor([0, 1, 2], dtype=index), torch.tensor([1, 0], dtype=index)
    for make in (torch.sparse_csr_tensor, torch.sparse_csc_tensor):
        theirs = make(pos, crd, torch.tensor([1.0, 2.0]), (2, 2))
        t = gs.from_torch(theirs)
        assert t.structure.arrays["crd1"].dtype == index and torch.equal(t.to_dense(), theirs.to_dense())
        assert torch.equal(t.to_torch().to_dense(), theirs.to_dense())


def test_torch_duplicates_are_summed() -> None:
    indices = torch.tensor([[1, 0, 1, 0], [1, 2, 1, 0]])
    theirs = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0, 4.0]), (2, 3))
    t = gs.from_torch(theirs)
    assert t.to_dense().tolist() == [[4.0, 0.0, 2.0], [0.0, 4.0, 0.0]] and t.nnz == 3


def test_torch_duplicates_carry_gradients() -> None:
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), values, (3,))
    (gs.from_torch(theirs).to_dense() * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert values.grad.tolist() == [10.0, 1.0, 10.0]


@given(_draw.dense((1, 4)), st.booleans())
def test_torch_coo_of_any_dimensions(x: torch.Tensor, explicit: bool) -> None:
    theirs = x.to_sparse()
    theirs = (
        torch.sparse_coo_tensor(theirs.indices(), theirs.values() * 0, x.shape, is_coalesced=True)
        if explicit
        else theirs
    )
    t = gs.from_torch(theirs)
    assert t.nnz == theirs._nnz() and torch.equal(t.to_dense(), theirs.to_dense())
    assert torch.equal(t.to_torch().to_dense(), theirs.to_dense()) and t.to_torch().is_coalesced()


def test_torch_scalars() -> None:
    t = gs.from_torch(torch.sparse_coo_tensor(torch.zeros(0, 2, dtype=torch.long), torch.tensor([1.0, 2.0]), ()))
    assert t.shape == () and t.to_dense().item() == 3.0
    assert t.to_torch().to_dense().item() == 3.0


@given(_draw.dense((1, 3)), _draw.formats())
def test_every_format_goes_to_torch(x: torch.Tensor, format: gs.Format) -> None:
    t = gs.from_dense(x, format)
    assert torch.equal(t.to_torch().to_dense(), x)
    assert torch.equal(gs.from_torch(t.to_torch()).to_dense(), x)


def test_what_torch_has_and_we_do_not() -> None:
    with pytest.raises(TypeError, match=r"gs.from_dense"):
        gs.from_torch(X)
    with pytest.raises(TypeError, match="not a list"):
        gs.from_torch([1, 2])
    with pytest.raises(NotImplementedError, match="dense dimensions"):
        gs.from_torch(torch.ones(2, 3).to_sparse(1))
    with pytest.raises(NotImplementedError, match="batch or dense dimensions"):
        gs.from_torch(torch.ones(2, 3, 4).to_sparse_csr())
    with pytest.raises(NotImplementedError, match=r"sparse_bsc.*to_sparse_csr"):
        gs.from_torch(X.to_sparse(layout=torch.sparse_bsc, blocksize=(2, 2)))
    t = gs.from_dense(X, gs.CSR())
    assert gs.from_torch(t) is t


# -- scipy

FORMATS = ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"]
OURS = {"csr": gs.CSR, "csc": gs.CSC, "bsr": gs.BSR}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", [sp.coo_array, sp.coo_matrix])
@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (3, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scipy_round_trip(format: str, kind: Any, shape: tuple[int, int], dtype: Any) -> None:
    x = (torch.randn(shape) * (torch.rand(shape) < 0.5)).numpy().astype(dtype)
    theirs = kind(x).asformat(format)
    t = gs.from_scipy(theirs)
    assert isinstance(t.format, OURS.get(format, gs.COO)) and np.array_equal(t.to_dense().numpy(), x)
    back = t.to_scipy()
    assert np.array_equal(back.toarray(), x) and back.dtype == dtype
    assert back.format == (format if format in OURS else "coo")


@pytest.mark.parametrize("format", FORMATS)
def test_scipy_empty(format: str) -> None:
    t = gs.from_scipy(sp.coo_array((3, 4)).asformat(format))
    assert t.nnz == 0 and t.shape == (3, 4) and t.to_scipy().nnz == 0


@pytest.mark.parametrize("format", ["csr", "csc"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_scipy_unsorted_and_repeated(format: str, index: Any) -> None:
    make = sp.csr_array if format == "csr" else sp.csc_array
    data, indices = np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([2, 0, 2, 1, 0], dtype=index)
    theirs = make(
        (data[:4], indices[:4], np.array([0, 3, 4], dtype=index)), shape=(2, 3) if format == "csr" else (3, 2)
    )
    want = theirs.toarray()
    theirs.indices, theirs.data = indices, data  # and space left at the end
    t = gs.from_scipy(theirs)
    assert np.array_equal(t.to_dense().numpy(), want) and t.nnz == 3
    assert theirs.indices.tolist() == [2, 0, 2, 1, 0]  # theirs is as it was


def test_scipy_unsorted_blocks() -> None:
    data = np.arange(12.0).reshape(3, 2, 2)
    theirs = sp.bsr_array((data, np.array([1, 0, 1]), np.array([0, 3])), shape=(2, 4))
    want = theirs.toarray()
    t = gs.from_scipy(theirs)
    assert np.array_equal(t.to_dense().numpy(), want) and t.values().shape == (2, 2, 2)


def test_scipy_vectors_and_bools() -> None:
    t = gs.from_scipy(sp.coo_array(np.array([0.0, 1.0, 0.0, 2.0])))
    assert t.shape == (4,) and t.to_dense().tolist() == [0.0, 1.0, 0.0, 2.0]
    flags = sp.csr_array((np.array([True, True]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    assert gs.from_scipy(flags).to_dense().tolist() == [[False, True]]


@given(_draw.dense((2, 2)), _draw.formats())
def test_every_format_goes_to_scipy(x: torch.Tensor, format: gs.Format) -> None:
    t = gs.from_dense(x, format)
    assert np.array_equal(t.to_scipy().toarray(), x.numpy())


def test_nothing_is_shared_with_scipy() -> None:
    t = gs.from_dense(X, gs.CSR())
    theirs = t.to_scipy()
    theirs.data[:] = 0
    theirs.eliminate_zeros()
    theirs.indices[:] = 7
    assert torch.equal(t.to_dense(), X) and t.structure.arrays["crd1"].max() < 4


def test_what_scipy_can_not_hold() -> None:
    with pytest.raises(TypeError, match=r"from_scipy needs a scipy.sparse matrix, not a Tensor|not a torch.strided"):
        gs.from_scipy(X)
    with pytest.raises(TypeError, match="not a ndarray"):
        gs.from_scipy(X.numpy())
    with pytest.raises(ValueError, match="scipy holds matrices"):
        gs.from_dense(torch.ones(2, 2, 2), gs.COO()).to_scipy()
    with pytest.raises(TypeError, match=r"no torch.bfloat16.*float"):
        gs.from_dense(X.bfloat16(), gs.CSR()).to_scipy()
    big_endian = sp.csr_array(np.eye(2))
    big_endian.data = big_endian.data.astype(">f8")
    with pytest.raises(TypeError, match="can't become a tensor"):
        gs.from_scipy(big_endian)
