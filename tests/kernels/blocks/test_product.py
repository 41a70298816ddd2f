"""Weights of blocks: what is theirs alone. What they share with packed ones: tests/kernels/test_product.py."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer import native
from gossamer.kernels.blocks.operators import blocks_of
from tests.kernels.test_product import assert_right

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")


def pair(shape, block, sparsity="50%"):
    dense = gs.sparsify(torch.randn(shape), f"block {block[0]}x{block[1]} {sparsity}", format=gs.Dense())
    return dense, gs.from_dense(dense, gs.BSR(block))


@needs_kernels
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_values_that_are_not_finite_stay_where_they_belong(tokens):
    """Neither the padding of the last blocks nor rows without a block let an infinity through."""
    dense = torch.zeros(10, 11)
    dense[4:8, 8:] = 1.0
    x, grad = torch.full((tokens, 11), torch.inf), torch.full((tokens, 10), torch.inf)
    weight = gs.from_dense(dense, gs.BSR((4, 4))).requires_grad_()
    out = F.linear(x, weight)
    assert torch.equal(out, torch.where(torch.arange(10) // 4 == 1, torch.inf, 0.0).expand(tokens, 10))
    values = torch.autograd.grad(out, weight, grad)[0]._values
    assert torch.equal(values[0, :, 3], torch.zeros(4)) and torch.all(values[0, :, :3] == torch.inf)


@needs_kernels
def test_operators_keep_torchs_rules():
    weight = pair((22, 40), (4, 4))[1]
    arrays, sizes = blocks_of(weight.structure)
    values = weight.values().detach().clone().requires_grad_()
    x, bias = torch.randn(5, 40, requires_grad=True), torch.randn(22, requires_grad=True)
    grad, ops = torch.randn(5, 22, requires_grad=True), torch.ops.gossamer
    torch.library.opcheck(ops.blocks_linear, (*arrays, values, x, bias, *sizes, 0))
    torch.library.opcheck(ops.blocks_linear, (*arrays, values, x, None, *sizes, 0))
    torch.library.opcheck(ops.blocks_linear_t, (*arrays, values, grad, *sizes))
    torch.library.opcheck(ops.blocks_sample, (*arrays, grad, x, *sizes, 4, 4))


@needs_kernels
def test_a_wrong_operand_is_refused():
    weight = pair((20, 40), (4, 4))[1]
    (pos, crd), sizes = blocks_of(weight.structure)
    x, values = torch.randn(5, 40), weight._values
    for arguments, message in (
        ((pos, crd, values, x.double(), None, *sizes, 0), "x must be float32"),
        ((pos, crd, values, x[:, :39], None, *sizes, 0), "x must be float32"),
        ((pos, crd, values[1:], x, None, *sizes, 0), "as many blocks"),
        ((pos, crd, values.flatten(), x, None, *sizes, 0), "values must be float32"),
        ((pos, crd, values.transpose(1, 2), x, None, *sizes, 0), "values must be float32"),
        ((pos, crd, values, x, torch.randn(19), *sizes, 0), "bias must be float32"),
        ((pos[1:], crd, values, x, None, *sizes, 0), "pos must be int32"),
        ((pos, crd.long(), values, x, None, *sizes, 0), "crd must be int32"),
        ((pos, crd[:-1], values[:-1], x, None, *sizes, 0), "pos must run"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.gossamer.blocks_forward(*arguments)


@needs_kernels
def test_products_either_way_round():
    dense, weight = pair((30, 70), (4, 8))
    for x in (torch.randn(70), torch.randn(70, 1), torch.randn(70, 9), torch.randn(9, 70).t()):
        assert_right((weight @ x).t(), x.t(), dense)
        assert (weight @ x).shape == (dense @ x).shape
    turned = weight.t()  # blocks of 8x4 with their inputs first, as a Conv1D of transformers has them
    assert turned.format.order == (1, 0)
    for x in (torch.randn(9, 70), torch.randn(2, 3, 70)):
        assert_right(x @ turned, x, dense)
    bias = torch.randn(30)
    assert_right(torch.addmm(bias, torch.ones(5, 70), turned), torch.ones(5, 70), dense, bias)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_another_reduction_than_a_sum_is_torchs_own(reduce):
    x, y = torch.randn(5, 6) * (torch.rand(5, 6) < 0.5), torch.randn(6, 4)
    rows, blocks = x.to_sparse_csr(), gs.from_dense(y, gs.BSR((2, 2)))
    with gs.fallback("silent"):
        torch.testing.assert_close(torch.sparse.mm(rows, blocks, reduce), torch.sparse.mm(rows, y, reduce))
