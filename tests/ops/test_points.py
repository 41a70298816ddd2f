"""Indexing by vectors: slices of a dimension stay sparse, points are read without a dense copy."""

import pytest
import torch

import gossamer as gs

FORMATS = [gs.CSR(), gs.COO(), gs.CSC(), gs.DCSR()]


def matrix(format, rows=6, cols=9):
    torch.manual_seed(0)
    dense = torch.randn(rows, cols, dtype=torch.float64) * (torch.rand(rows, cols) < 0.4)
    return dense, gs.from_dense(dense, format)


@pytest.fixture(autouse=True)
def no_dense_copy():
    with gs.fallback("error"):
        yield


def test_by_hand():
    t = gs.from_dense(torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]), gs.CSR())
    assert t[:, torch.tensor([2, 0])].to_dense().tolist() == [[2, 0], [0, 3]]
    assert t[torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2])].tolist() == [2, 3, 0]


INDICES = {
    "columns": lambda i: (slice(None), i),
    "last": lambda i: (..., i),
    "rows and a slice": lambda i: (i, slice(1, 4)),
    "a slice and columns": lambda i: (slice(0, 5, 2), i),
    "a list": lambda i: (slice(None), i.tolist()),
    "negative": lambda i: (slice(None), -1 - i),
    "new dimension": lambda i: (None, slice(None), i),
    "new dimension at the end": lambda i: (slice(None), i, None),
    "int32": lambda i: (slice(None), i.int()),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", INDICES)
def test_slices_of_a_dimension(format, name):
    dense, t = matrix(format)
    for vector in (torch.tensor([3, 1, 1, 5]), torch.tensor([0]), torch.tensor([], dtype=torch.int64)):
        index = INDICES[name](vector)
        out, expected = t[index], dense[index]
        assert isinstance(out, gs.SparseTensor) and torch.equal(out.to_dense(), expected)


def test_masks_and_a_subgraph():
    dense, t = matrix(gs.CSR(), 9, 9)
    mask = torch.rand(9) < 0.5
    assert torch.equal(t[:, mask].to_dense(), dense[:, mask])
    nodes = torch.tensor([7, 2, 3])
    sub = t[nodes][:, nodes]
    assert isinstance(sub, gs.SparseTensor) and torch.equal(sub.to_dense(), dense[nodes][:, nodes])


@pytest.mark.parametrize("format", FORMATS)
def test_points(format):
    dense, t = matrix(format)
    i, j = torch.tensor([0, 5, -1, 2]), torch.tensor([8, 0, -9, 2])
    assert torch.equal(t[i, j], dense[i, j])
    assert torch.equal(t[i[:, None], j], dense[i[:, None], j])
    assert torch.equal(t[[1, 2], [3, 4]], dense[[1, 2], [3, 4]])
    assert t[i[:0], j[:0]].shape == (0,)
    empty = gs.from_dense(torch.zeros(3, 3), format)
    assert empty[torch.tensor([1]), torch.tensor([2])].tolist() == [0]


def test_three_dimensions():
    dense = torch.randn(3, 4, 5) * (torch.rand(3, 4, 5) < 0.4)
    t, i = gs.from_dense(dense, gs.COO()), torch.tensor([2, 0])
    for index in ((slice(None), i), (..., i), (i, ..., slice(1, 3)), (slice(None), slice(1, 3), i)):
        assert torch.equal(t[index].to_dense(), dense[index])
    assert torch.equal(t[i, i, i], dense[i, i, i])


def test_gradients():
    dense, t = matrix(gs.CSR())
    t, leaf = t.requires_grad_(), dense.clone().requires_grad_()
    i, j = torch.tensor([0, 5, 5]), torch.tensor([1, 2, 2])
    (t[:, j].to_dense().square().sum() + t[i, j].square().sum()).backward()
    (leaf[:, j].square().sum() + leaf[i, j].square().sum()).backward()
    torch.testing.assert_close(t.grad.to_dense(), leaf.grad * (dense != 0))


def test_a_graph_that_has_no_dense_copy():
    size = 1_000_000
    place = torch.arange(size)
    t = gs.from_torch(torch.sparse_coo_tensor(torch.stack([place, place]), torch.ones(size), (size, size)))
    assert t[torch.tensor([5, 6]), torch.tensor([5, 7])].tolist() == [1, 0]
    assert t[:, torch.tensor([5, 6])].nnz == 2


def test_out_of_range():
    _, t = matrix(gs.CSR())
    with pytest.raises(IndexError):
        t[:, torch.tensor([9])]
    with pytest.raises(IndexError):
        t[torch.tensor([0]), torch.tensor([9])]


def test_what_is_left_to_torch():
    dense, t = matrix(gs.CSR())
    i = torch.tensor([1, 2])
    with gs.fallback("silent"):
        for index in ((1, i), (i, None, i), (slice(None), i[:, None]), (dense > 0,), (slice(None), [True] * 9)):
            got = t[index]
            assert torch.equal(got.to_dense() if isinstance(got, gs.SparseTensor) else got, dense[index])
