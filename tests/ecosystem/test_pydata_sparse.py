"""sparse (pydata): matrices by way of scipy, tensors by their coordinates."""

import pytest
import torch

import gossamer as gs

sparse = pytest.importorskip("sparse", reason="needs sparse: pip install sparse")


def test_matrices():
    theirs = sparse.random((30, 20), density=0.1, random_state=0)
    ours = gs.from_scipy(theirs.to_scipy_sparse())
    assert ours.nnz == theirs.nnz and ours.format == gs.COO()
    assert (sparse.COO.from_scipy_sparse(ours.to_scipy()) != theirs).nnz == 0


def test_more_dimensions():
    theirs = sparse.random((5, 6, 7), density=0.1, random_state=0)
    coords, data = torch.from_numpy(theirs.coords.copy()), torch.from_numpy(theirs.data.copy())
    ours = gs.from_torch(torch.sparse_coo_tensor(coords, data, theirs.shape))
    assert torch.equal(ours.to_dense(), torch.from_numpy(theirs.todense()))
    back = ours.to_torch()
    again = sparse.COO(back.indices().numpy(), back.values().numpy(), shape=theirs.shape)
    assert (again != theirs).nnz == 0
