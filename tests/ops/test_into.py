"""einsum(..., out=tensor, beta=): written to, added to, refused."""

import pytest
import torch

import gossamer as gs

A = gs.from_dense(torch.tensor([[0.0, 3.0], [4.0, 0.0]]), gs.CSR())
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
def test_dense(beta):
    out = torch.ones(2, 2).t()
    got = gs.einsum("ij,jk->ik", A, X, out=out, beta=beta)
    assert got is out and torch.equal(out, beta * torch.ones(2, 2) + A.to_dense() @ X)


def test_what_was_there_does_not_count_without_beta():
    out = torch.full((2, 2), float("nan"))
    assert torch.equal(gs.einsum("ij,jk->ik", A, X, out=out), A.to_dense() @ X)


def test_sparse_results():
    out = torch.ones(2, 2)
    assert torch.equal(gs.einsum("ij,ij->ij", A, X, out=out), A.to_dense() * X)
    kept = gs.SparseTensor(torch.ones(2), A.structure)
    got = gs.einsum("ij,ij->ij", A, X, out=kept, beta=2.0)
    assert got is kept and kept.values().tolist() == [2 + 6, 2 + 12]


@pytest.mark.parametrize(("dtype", "beta"), [(torch.int64, 1.0), (torch.int16, -2.0), (torch.bool, 1.0)])
def test_integers_and_bools(dtype, beta):
    a = gs.from_dense(torch.tensor([[0, 3], [4, 0]]).to(dtype), gs.CSR())
    out = torch.ones(2, 2, dtype=dtype)
    got = gs.einsum("ij->ij", a, out=out, beta=beta)
    assert got is out and torch.equal(out, (a.to_dense().long() + int(beta)).to(dtype))
    stored = gs.SparseTensor(torch.ones(2, dtype=dtype), a.structure)
    gs.einsum("ij->ij", a, out=stored, beta=beta)
    assert torch.equal(stored.values(), (a.values().long() + int(beta)).to(dtype))


@pytest.mark.parametrize(("dtype", "beta"), [(torch.int64, 0.5), (torch.bool, 2.0)])
def test_factors_that_a_type_does_not_have(dtype, beta):
    a = gs.from_dense(torch.eye(2, dtype=dtype), gs.CSR())
    with pytest.raises(ValueError, match="can't be multiplied by beta"):
        gs.einsum("ij->ij", a, out=torch.ones(2, 2, dtype=dtype), beta=beta)


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.CSC(), gs.ELL(), gs.Masked(), gs.BSR((2, 2))])
def test_a_sparse_tensor_may_have_more_entries_than_the_result(format):
    """It was refused, though all that was asked for is that no entry of the result is lost."""
    square = gs.einsum("ij,jk->ik", A, A).to_dense()
    out = gs.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), format)
    before = out.to_dense().clone()
    assert gs.einsum("ij,jk->ik", A, A, out=out, beta=2.0) is out
    assert torch.equal(out.to_dense(), 2 * before + square)
    gs.einsum("ij,ij->ij", A, gs.from_dense(torch.eye(2), gs.CSR()), out=out)  # nothing at all
    assert not out.to_dense().any()


def test_gradients_flow_into_it():
    x = X.clone().requires_grad_()
    out = torch.zeros(2, 2)
    gs.einsum("ij,jk->ik", A, x, out=out, beta=1.0).sum().backward()
    assert x.grad.tolist() == [[4, 4], [3, 3]]


def test_refused():
    with pytest.raises(ValueError, match="needs a tensor"):
        gs.einsum("ij,jk->ik", A, X, beta=1.0)
    with pytest.raises(ValueError, match="out is"):
        gs.einsum("ij,jk->ik", A, X, out=torch.zeros(2))
    with pytest.raises(ValueError, match="float64"):
        gs.einsum("ij,jk->ik", A, X, out=torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="other entries"):
        gs.einsum("ij,jk->ik", A, A, out=gs.SparseTensor(torch.ones(2), A.structure))


def test_in_a_trace():
    f = torch.compile(lambda x, y: gs.einsum("ij,jk->ik", A, x, out=y, beta=1.0), backend="aot_eager", fullgraph=True)
    assert torch.equal(f(X, torch.ones(2, 2)), 1 + A.to_dense() @ X)
