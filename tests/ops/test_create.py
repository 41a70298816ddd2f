"""Copies, casts, and tensors made like another one."""

import pytest
import torch

import gossamer as gs
from tests.formats_under_test import ALL

X = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


def csr():
    return gs.from_dense(X, gs.CSR())


@pytest.mark.parametrize("format", ALL, ids=repr)
def test_zeros_like_has_the_pattern_and_ones_like_has_none(format):
    t = gs.from_dense(X, format)
    zeros = torch.zeros_like(t)
    assert zeros.format == format and zeros.to_dense().tolist() == torch.zeros(2, 3).tolist()
    assert zeros.mask().tolist() == t.mask().tolist()
    ones = torch.ones_like(t)
    assert type(ones) is torch.Tensor and ones.tolist() == [[1.0] * 3] * 2
    assert torch.full_like(t, 7).tolist() == [[7.0] * 3] * 2 and torch.rand_like(t).shape == (2, 3)
    assert int(torch.empty_like(t).structure.nnz) == t.nnz


def test_options_of_like():
    zeros = torch.zeros_like(csr(), dtype=torch.int8)
    assert zeros.dtype is torch.int8 and not zeros.requires_grad
    assert torch.zeros_like(csr(), requires_grad=True).requires_grad
    assert torch.ones_like(csr(), dtype=torch.float64).dtype is torch.float64
    assert torch.zeros_like(csr().requires_grad_()).requires_grad is False


def test_new_tensors_are_dense_and_of_its_type():
    t = csr().double()
    for made in (t.new_zeros(2), t.new_ones(2), t.new_full((2,), 1.0), t.new_empty(2), t.new_tensor([1, 2])):
        assert type(made) is torch.Tensor and made.dtype is torch.float64 and made.shape == (2,)


@pytest.mark.parametrize(
    ("cast", "dtype"),
    [
        (lambda t: t.double(), torch.float64),
        (lambda t: t.half(), torch.float16),
        (lambda t: t.bfloat16(), torch.bfloat16),
        (lambda t: t.int(), torch.int32),
        (lambda t: t.bool(), torch.bool),
        (lambda t: t.to(torch.float64), torch.float64),
        (lambda t: t.to("cpu", torch.float16), torch.float16),
        (lambda t: t.to(torch.ones(1, dtype=torch.int64)), torch.int64),
        (lambda t: t.type_as(torch.ones(1, dtype=torch.float64)), torch.float64),
        (lambda t: torch.ones(1, dtype=torch.float64).to(t), None),
    ],
)
def test_casts(cast, dtype):
    t = csr()
    t.grad_format = gs.Dense()
    out = cast(t)
    if dtype is None:
        assert type(out) is torch.Tensor and out.dtype is torch.float32
        return
    assert out.dtype is dtype and out.format == gs.CSR() and out.grad_format == gs.Dense()
    assert out.to_dense().to(torch.float32).tolist() == (X != 0).float().tolist() if dtype is torch.bool else X.tolist()


def test_to_without_a_change_is_the_tensor_itself_unless_a_copy_is_asked_for():
    t = csr()
    assert t.to(torch.float32) is t and t.to("cpu") is t and t.contiguous() is t
    assert t.to(torch.float32, copy=True) is not t


def test_casts_and_clones_are_differentiable():
    t = csr().requires_grad_()
    (t.double().clone().to_dense() * 3).sum().backward()
    assert t.grad.dtype is torch.float32 and t.grad.to_dense().tolist() == (3 * (X != 0)).tolist()


def test_data_shares_values_and_takes_others():
    t = csr().requires_grad_()
    t.data._values[0] = 9.0
    assert t._values.tolist() == [9.0, 3.0, 4.0] and not t.data.requires_grad
    t.data = gs.from_dense(torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), gs.CSR())
    assert t.to_dense().tolist()[0] == [5.0, 0.0, 0.0] and t.nnz == 1 and t.requires_grad
    t.data = torch.full((2, 3), 8.0)
    assert t.to_dense().tolist() == [[8.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_item():
    assert gs.from_dense(torch.tensor([[5.0]]), gs.CSR()).item() == 5.0
    assert gs.from_dense(torch.zeros(1), gs.COO()).item() == 0.0
    with pytest.raises(RuntimeError), gs.fallback("silent"):
        csr().item()


def test_coalesce_drops_explicit_zeros():
    t = csr()
    t._values[1] = 0.0
    out = t.coalesce()
    assert t.is_coalesced() and t.nnz == 3 and out.nnz == 2 and out.to_dense().tolist() == t.to_dense().tolist()


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.BSR((2, 3))], ids=repr)
def test_equal_whatever_the_formats(format):
    t, other = csr(), gs.from_dense(X, format)
    assert torch.equal(t, other)
    assert not torch.equal(t, gs.from_dense(X + X, format)) and not torch.equal(t, other.double())
    assert not torch.equal(t, gs.from_dense(X[:, :2], format))
    assert not torch.equal(t, gs.from_dense(torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 4.0]]), format))
