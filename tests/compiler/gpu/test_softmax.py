"""Softmax over rows on a GPU, in the emulator; with SDDMM and SpMM it is attention."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.gpu.softmax import softmax
from tests.compiler.gpu.emulated import gpu, needs_a_compiler, sparse

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]


def test_by_hand():
    a = gs.from_dense(torch.tensor([[0.0, 1.0, 1.0], [5.0, 0.0, 0.0]]), gs.CSR())
    assert torch.softmax(a, -1).to_dense().tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC()], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax_and_its_gradient(format, dim):
    a = sparse(7, 90, format=format)
    leaf, whole = torch.nn.Parameter(a), a.to_dense().requires_grad_()
    out = torch.softmax(leaf, dim)
    expected = whole.masked_fill(~a.mask(), -torch.inf).softmax(dim).nan_to_num()
    torch.testing.assert_close(out.to_dense(), expected)
    arriving = torch.randn(7, 90)
    (found,) = torch.autograd.grad(out.to_dense(), leaf, arriving)
    (wanted,) = torch.autograd.grad(expected, whole, arriving)
    torch.testing.assert_close(found.to_dense(), wanted.nan_to_num() * a.mask(), rtol=1e-4, atol=1e-5)


def test_large_scores_and_no_entries():
    a = gs.from_dense(torch.tensor([[1000.0, 999.0], [0.0, 0.0]]), gs.CSR())
    assert torch.softmax(a, -1).to_dense()[0].tolist() == torch.tensor([1000.0, 999.0]).softmax(0).tolist()
    assert torch.softmax(gs.from_dense(torch.zeros(3, 4), gs.CSR()), -1).nnz == 0


def test_attention():
    mask = gs.mask(sparse(9, 9, density=0.5))
    q, k, v = (torch.randn(9, 16, requires_grad=True) for _ in range(3))
    out = gs.einsum("ij,jd->id", torch.softmax(gs.einsum("ij,id,jd->ij", mask, q, k), -1), v)[1:]
    expected = (q @ k.t()).masked_fill(~mask.mask(), -torch.inf)[1:].softmax(-1) @ v
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    found, wanted = (torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (out, expected))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


def test_second_derivative():
    a = sparse(4, 5, dtype=torch.float64)
    values, structure = a.values().clone().requires_grad_(), a.structure
    assert torch.autograd.gradcheck(lambda v: softmax(v, structure, 1), values)
    assert torch.autograd.gradgradcheck(lambda v: softmax(v, structure, 1), values)
