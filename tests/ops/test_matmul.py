"""Products: linear, matmul and their family, on either side, in every format."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import MATRICES, check, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)
matrices = pytest.mark.parametrize("shape", MATRICES, ids=str)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


@formats
def test_by_hand(format):
    a = gs.from_dense(torch.tensor([[0.0, 3.0, 0.0], [1.0, 0.0, 2.0]]), format)
    assert (a @ torch.tensor([1.0, 10.0, 100.0])).tolist() == [30.0, 201.0]
    assert (torch.tensor([1.0, 10.0]) @ a).tolist() == [10.0, 3.0, 20.0]
    assert F.linear(torch.tensor([[1.0, 1.0, 1.0]]), a, torch.tensor([0.5, -1.0])).tolist() == [[3.5, 2.0]]
    assert (a @ a.t()).to_dense().tolist() == [[9.0, 0.0], [0.0, 5.0]]


@formats
@matrices
def test_linear(format, shape):
    w, bias = sample(shape, format), randn(shape[0])
    check(F.linear, sample((2, shape[1]), format, seed=2), w, sample((shape[0],), format), gradients=0 not in shape)
    for lead in ((), (3,), (0,), (2, 4)):
        x = randn(*lead, shape[1])
        check(F.linear, x, w, gradients=lead in ((3,), (2, 4)))
        check(F.linear, x, w, bias, gradients=lead == (3,))


@formats
@matrices
def test_a_matrix_times_a_dense_one_on_either_side(format, shape):
    a = sample(shape, format)
    check(torch.matmul, a, randn(shape[1], 3))
    check(torch.matmul, randn(3, shape[0]), a)
    check(torch.mm, a, randn(shape[1], 1))
    check(torch.mv, a, randn(shape[1]))
    check(torch.matmul, randn(2, 3, shape[0]), a, gradients=False)


@formats
def test_strided_operands(format):
    a = sample((5, 7), format)
    wide = randn(3, 14)[:, ::2].t()
    assert not wide.is_contiguous()
    check(torch.matmul, a, wide)
    check(F.linear, wide.t(), a)
    check(torch.matmul, a.t(), randn(5, 2).t().contiguous().t())


@formats
@matrices
def test_sparse_times_sparse_is_sparse(format, shape):
    a, b = sample(shape, format, seed=1), sample((shape[1], 4), format, seed=2)
    assert isinstance(check(torch.matmul, a, b), SparseTensor)


@formats
def test_batches(format):
    a = sample((3, 4, 5), format)
    check(torch.bmm, a, randn(3, 5, 2))
    check(torch.bmm, randn(3, 2, 4), a)
    check(torch.baddbmm, randn(3, 4, 2), a, randn(3, 5, 2))
    check(torch.bmm, a, sample((3, 5, 2), format, seed=2))
    check(torch.matmul, a, randn(5, 2))


@formats
@pytest.mark.parametrize("beta, alpha", [(1, 1), (0, 2), (0.5, 0)])
def test_sums_with_products(format, beta, alpha):
    a = sample((4, 5), format)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha), randn(4, 3), a, randn(5, 3))
    check(lambda c, b, a: torch.addmm(c, b, a, beta=beta, alpha=alpha), randn(3), randn(2, 4), sample((4, 3), format))
    check(lambda c, a, b: torch.addmv(c, a, b, beta=beta, alpha=alpha), randn(4), a, randn(5))


def test_beta_of_zero_ignores_even_nan():
    a = gs.from_dense(torch.eye(2), gs.CSR())
    assert torch.addmm(torch.full((2, 2), torch.nan), a, torch.ones(2, 2), beta=0).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@formats
def test_vectors(format):
    a, b = sample((6,), format, seed=1), sample((6,), format, seed=2)
    check(torch.dot, a, b)
    check(torch.dot, a, randn(6))
    check(torch.outer, a, b)
    check(torch.matmul, a, b)
    check(torch.matmul, a, randn(6, 3))
    check(torch.matmul, sample((4, 6), format), b)
    check(torch.inner, a, sample((4, 6), format))
    check(lambda x, y: torch.linalg.vecdot(x, y, dim=0), sample((4, 6), format), randn(4, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((2, 3)), gs.Masked()], ids=repr)
def test_precision_is_what_theory_allows(format, dtype):
    w, x = sample((33, 65), format).to(dtype), torch.randn(9, 65).to(dtype)
    exact = x.double() @ w.double().to_dense().t()
    bound = x.double().abs() @ w.double().to_dense().abs().t()
    unit = torch.finfo(dtype).eps
    terms = 65 if dtype == torch.float32 else 2  # half precision is summed in float32, then rounded
    assert ((F.linear(x, w).double() - exact).abs() <= terms * unit * bound + torch.finfo(dtype).tiny).all()


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a @ torch.randn(4, 2, dtype=torch.float64),
        lambda a: a @ torch.randn(5, 2),
        lambda a: F.linear(torch.randn(2, 4, dtype=torch.float64), a),
        lambda a: torch.mm(a, torch.randn(5, dtype=torch.float64)),
        lambda a: torch.bmm(a, torch.randn(5, 2, dtype=torch.float64)),
        lambda a: torch.dot(a, a),
    ],
)
def test_errors_are_torchs_own(f):
    a = sample((3, 5), gs.CSR())
    with pytest.raises(RuntimeError):
        f(a.to_dense())
    with gs.fallback("silent"), pytest.raises(RuntimeError):
        f(a)


def test_masked_times_masked_is_one_dense_product():
    """By its stored zeros: 256 x 256 took seconds entry by entry."""
    torch.manual_seed(0)
    a = gs.sparsify(torch.randn(33, 20, dtype=torch.float64), "80%", format=gs.Masked()).requires_grad_()
    b = gs.sparsify(torch.randn(20, 17, dtype=torch.float64), "80%", format=gs.Masked()).requires_grad_()
    for product in (a @ b, torch.mm(a, b)):
        assert product.format == gs.Masked()
        assert torch.equal(product.mask(), (a.mask().double() @ b.mask().double()) > 0)
        torch.testing.assert_close(product.to_dense(), a.to_dense() @ b.to_dense())
    assert "masked_masked" in str(gs.explain(torch.mm, a, b))
    (a @ b).to_dense().square().sum().backward()
    dense = [t.detach().to_dense().requires_grad_() for t in (a, b)]
    (dense[0] @ dense[1]).square().sum().backward()
    for ours, theirs, t in zip((a.grad, b.grad), (x.grad for x in dense), (a, b), strict=True):
        torch.testing.assert_close(ours.to_dense(), theirs * t.mask())
