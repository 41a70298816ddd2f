"""Matrices of a stack: indexed without a copy, multiplied by their own kernels, with gradients."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedCSR, Stacked
from gossamer.ops.stacked import is_stack

INNER = [gs.CSR(), gs.BSR((4, 4)), PackedCSR(), PackedCSR(order=(1, 0))]


def stack(inner, shape=(3, 20, 36)):
    torch.manual_seed(0)
    dense = torch.randn(shape) * (torch.rand(shape) < 0.3)
    return gs.from_dense(dense, Stacked(inner)), dense


def close(a, b, terms):
    """Sums of so many terms of size about 10, in another order."""
    torch.testing.assert_close(a, b, rtol=0, atol=10 * terms * 2**-23)


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_an_index_gives_a_matrix_in_its_format(inner):
    t, dense = stack(inner)
    for index in (0, 2, -1, -3, torch.tensor(1), torch.tensor(-2, dtype=torch.int32)):
        part = t[index]
        assert part.format == inner and torch.equal(part.to_dense(), dense[index])
        part.structure.check(part._values)
    for found, wanted in zip(t.unbind(), dense, strict=True):
        assert found.format == inner and torch.equal(found.to_dense(), wanted)
    assert t.select(0, 1)._values.untyped_storage().data_ptr() == t._values.untyped_storage().data_ptr()


def test_other_indices_are_as_before():
    t, dense = stack(gs.CSR())
    assert torch.equal(t.select(1, 3).to_dense(), dense.select(1, 3))
    assert torch.equal(t[1:].to_dense(), dense[1:])
    assert torch.equal(t[[2, 0]].to_dense(), dense[[2, 0]])
    assert torch.equal(t[1, 4].to_dense(), dense[1, 4])
    with gs.fallback("silent"), pytest.raises(IndexError):
        t[3]


def test_a_number_as_a_tensor_indexes_any_format():
    dense = torch.eye(4)
    assert torch.equal(gs.from_dense(dense, gs.CSR())[torch.tensor(2)].to_dense(), dense[2])


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_gradients_reach_the_stack(inner):
    t, dense = stack(inner)
    t.requires_grad_()
    other = dense.clone().requires_grad_()
    x = torch.randn(5, 36)
    for w in (t, other):
        (F.linear(x, w[1]).sum() + (F.linear(x, w[2]) ** 2).sum()).backward()
    close(t.grad.to_dense(), other.grad * t.mask(), 36 * 5)


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_bmm_multiplies_matrix_by_matrix(inner):
    t, dense = stack(inner)
    x = torch.randn(3, 7, 20)
    with gs.fallback("error"):
        close(torch.bmm(x, t), torch.bmm(x, dense), 20)
    with gs.fallback("silent"), pytest.raises(RuntimeError):
        torch.bmm(torch.randn(3, 7, 21), t)


def test_only_three_dimensions_are_a_stack():
    assert is_stack(stack(gs.CSR())[0])
    assert not is_stack(gs.from_dense(torch.ones(2, 2, 3, 3), Stacked(gs.CSR())))
    assert not is_stack(gs.from_dense(torch.ones(3, 3), gs.CSR()))
    flat = gs.from_dense(torch.ones(2, 2, 3, 3), Stacked(gs.CSR()))
    assert torch.equal(flat[1].to_dense(), torch.ones(2, 3, 3))
