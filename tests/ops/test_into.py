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
