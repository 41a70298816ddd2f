"""Reductions: dense results from stored entries, with zeros where nothing is stored."""

import pytest
import torch

import gossamer as gs
from gossamer.core.join import from_entries
from tests.formats_under_test import ALL
from tests.ops.against_dense import SHAPES, check, check_refused, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)
SUMS = [torch.sum, torch.mean, torch.amax, torch.amin, torch.var, torch.std, torch.linalg.vector_norm]


@formats
def test_by_hand(format):
    t = gs.from_dense(torch.tensor([[0.0, 3.0, 0.0], [-4.0, 0.0, -1.0], [0.0, 0.0, 0.0]]), format)
    assert t.sum() == -2
    assert t.sum(0).tolist() == [-4.0, 3.0, -1.0]
    assert t.sum(1, keepdim=True).tolist() == [[3.0], [-5.0], [0.0]]
    assert t.mean(1).tolist() == pytest.approx([1.0, -5 / 3, 0.0])
    assert t.amax(1).tolist() == [3.0, 0.0, 0.0]
    assert t.amin(0).tolist() == [-4.0, 0.0, -1.0]
    assert (t.max(), t.min()) == (3, -4)
    assert t.any(1).tolist() == [True, True, False]
    assert t.all().item() is False
    assert t.prod(1).tolist() == [0.0, 0.0, 0.0]
    assert t.norm() == pytest.approx(26**0.5)
    assert torch.linalg.vector_norm(t, 1, 1).tolist() == [3.0, 5.0, 0.0]
    assert torch.count_nonzero(t, 1).tolist() == [1, 2, 0]


#: Of nothing at all torch has a sum and a norm; the others are NaN or an error.
CASES = [(f, s) for f in SUMS for s in SHAPES if 0 not in s or f in (torch.sum, torch.linalg.vector_norm)]


@formats
@pytest.mark.parametrize("f, shape", CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_over_everything(format, f, shape):
    check(f, sample(shape, format))


@formats
@pytest.mark.parametrize("dim", [0, -1, (0, 2), (1,)], ids=str)
@pytest.mark.parametrize("f", SUMS, ids=lambda f: f.__name__)
def test_along_dimensions(format, dim, f):
    check(lambda t: f(t, dim=dim), sample((4, 3, 5), format), gradients=dim in (0, (0, 2)))
    check(lambda t: f(t, dim=dim, keepdim=True), sample((4, 3, 5), format), gradients=False)


@formats
def test_a_product_has_a_gradient_only_where_all_is_stored(format):
    t = sample((4, 3), format, density=0.8)
    check(lambda t: t.prod(1), t)
    check(lambda t: t.prod(), t)
    check(lambda t: t.prod(1), sample((4, 3), format, density=1.0))


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.BSR((2, 2)), gs.Masked()], ids=repr)
@pytest.mark.parametrize("f", [torch.amax, torch.amin], ids=["amax", "amin"])
def test_ties_share_the_gradient_with_zeros_that_are_not_stored(format, f):
    # the row (0, 0, -, -) has four zeros, two of them stored: each gets a quarter
    keys = torch.tensor([0, 1])
    t = from_entries(keys, torch.zeros(2, dtype=torch.float64), (1, 4), format).requires_grad_()
    f(t, 1).sum().backward()
    assert t.grad.to_dense().tolist() == [[0.25, 0.25, 0.0, 0.0]]


@formats
def test_sums_without_nan(format):
    t = sample((3, 4, 5), format)
    hole = t * torch.where(torch.arange(5) == 2, torch.nan, 1.0).double()
    check(lambda t: torch.nansum(t, 2), hole, gradients=False)
    assert not torch.nansum(hole).isnan()


#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "mean of integers": (lambda t: t.int().mean(), "no floats"),
    "extremes of bools": (lambda t: torch.amax(t > 0, 0), "no order"),
    "any of bytes": (lambda t: t.byte().any(), "uint8"),
    "product of integers": (lambda t: t.int().prod(), "no floats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    check_refused(*REFUSED[name], sample((4, 5), gs.CSR()))


def test_types_and_errors():
    t = gs.from_dense(torch.eye(3), gs.CSR())
    assert t.int().sum().dtype == torch.int64
    assert t.sum(dtype=torch.float64).dtype == torch.float64
    assert (t > 0).sum(0).dtype == torch.int64
    assert t.any().dtype == torch.bool
    with gs.fallback("silent"):
        with pytest.raises(IndexError, match="out of range"):
            t.sum(2)
        with pytest.raises(RuntimeError, match="multiple times"):
            t.sum((0, 0))
        with pytest.raises(RuntimeError, match="dtype"):
            t.int().mean()
        with pytest.raises(IndexError):
            gs.from_dense(torch.zeros(0, 3), gs.CSR()).amax(0)
