"""tensordot and kron."""

import pytest
import torch

import gossamer as gs


def sparse(*shape, format=None):
    dense = torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < 0.4)
    return dense, gs.from_dense(dense, format or gs.COO())


@pytest.fixture(autouse=True)
def no_dense_copy():
    torch.manual_seed(0)
    with gs.fallback("error"):
        yield


def test_by_hand():
    a = gs.from_dense(torch.tensor([[1.0, 2.0]]), gs.CSR())
    b = gs.from_dense(torch.tensor([[0.0], [3.0]]), gs.CSR())
    assert torch.kron(a, b).to_dense().tolist() == [[0, 0], [3, 6]]
    assert torch.tensordot(a, b, 1).to_dense().tolist() == [[6]]


CASES = {
    "matrices": ((4, 5), (5, 3), 1),
    "outer": ((4, 2), (3,), 0),
    "two": ((3, 4, 5), (4, 5, 2), 2),
    "named": ((3, 4, 5), (5, 2, 3), ([0, 2], [2, 0])),
    "negative": ((3, 4), (4, 2), ([-1], [-2])),
    "all": ((3, 4), (3, 4), 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("both", [True, False])
def test_tensordot(name, both):
    left, right, dims = CASES[name]
    (a, x), (b, y) = sparse(*left), sparse(*right)
    out = torch.tensordot(x, y if both else b, dims)
    torch.testing.assert_close(out.to_dense() if isinstance(out, gs.SparseTensor) else out, torch.tensordot(a, b, dims))
    if both and name != "outer":
        assert isinstance(out, gs.SparseTensor)


def test_tensordot_has_gradients():
    (a, x), (b, y) = sparse(3, 4, 5), sparse(4, 5, 2)
    x, y, a, b = x.requires_grad_(), y.requires_grad_(), a.requires_grad_(), b.requires_grad_()
    torch.tensordot(x, y, 2).to_dense().square().sum().backward()
    torch.tensordot(a, b, 2).square().sum().backward()
    torch.testing.assert_close(x.grad.to_dense(), a.grad * (a != 0))
    torch.testing.assert_close(y.grad.to_dense(), b.grad * (b != 0))


@pytest.mark.parametrize("format", [gs.COO(), gs.CSR(), gs.CSC()])
@pytest.mark.parametrize("shapes", [((3, 4), (2, 5)), ((1, 1), (3, 2)), ((4,), (2, 3)), ((2, 2), (3,))])
def test_kron(format, shapes):
    (a, x), (b, y) = (sparse(*shape, format=format if len(shape) == 2 else gs.COO()) for shape in shapes)
    out = torch.kron(x, y)
    assert isinstance(out, gs.SparseTensor) and torch.equal(out.to_dense(), torch.kron(a, b))
    assert out.nnz == x.nnz * y.nnz


def test_what_torch_refuses():
    (_, x), (_, y) = sparse(4, 5), sparse(4, 3)
    with gs.fallback("silent"), pytest.raises(RuntimeError):
        torch.tensordot(x, y, 1)
