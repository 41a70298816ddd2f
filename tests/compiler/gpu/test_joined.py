"""Sparse results on a GPU, in the emulator: patterns of products and of sums."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.gpu import joined
from gossamer.compiler.gpu.design import NoKernelError
from tests.compiler.gpu.emulated import arg, gpu, needs_a_compiler, right, sparse

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]


def test_a_product_by_hand():
    a = gs.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), gs.CSR())
    out = gs.einsum("ij,jk->ik", a, a)
    assert out.format == gs.CSR() and out.nnz == 2 and out.to_dense().tolist() == [[6.0, 0.0], [0.0, 6.0]]


def test_products():
    a, b = sparse(13, 20), sparse(20, 9)
    assert right("ij,jk->ik", a, b).format == gs.CSR()
    assert right("ij,jk->ik", a, b, out=gs.CSC(), gradients=False).format == gs.CSC()
    right("ij,kj->ik", a, sparse(7, 20, format=gs.COO()), gradients=False)
    right("ijk,kl->ijl", sparse(4, 5, 6, format=gs.CSF()), sparse(6, 7), gradients=False)
    right("ij,ij->ij", a, sparse(13, 20, density=0.6))
    assert right("ij,jk->ik", gs.from_dense(torch.zeros(3, 20), gs.CSR()), b, gradients=False).nnz == 0


def test_sums_and_transposes():
    a = sparse(9, 9)
    right("ij + ij -> ij", a, sparse(9, 9, density=0.6))
    right("ij - ji -> ij", a, sparse(9, 9, format=gs.COO()), gradients=False)
    right("ij->ji", a)
    right("ijk->ik", sparse(4, 5, 6, format=gs.CSF()))
    right("ijk,j->ik", sparse(4, 5, 6, format=gs.CSF()), torch.randn(5))


def test_pairs():
    a, b = sparse(3, 4), sparse(4, 5)
    args = [arg("ij", a), arg("jk", b)]
    first, second = joined.pairs(args, [joined._entries(x) for x in args], {"i": 3, "j": 4, "k": 5})
    wanted = int(((a.to_dense() != 0).double() @ (b.to_dense() != 0).double()).sum())
    assert first.numel() == second.numel() == wanted and bool((first.diff() >= 0).all())


def test_too_many_pairs(monkeypatch):
    monkeypatch.setattr(joined, "_MOST", 3)
    args = [arg("ij", sparse(5, 6)), arg("jk", sparse(6, 5))]
    with pytest.raises(NoKernelError, match="pairs of entries"):
        joined.JoinedPlan(parse("ij,jk->ik", (2, 2)), args, {"i": 5, "j": 6, "k": 5}, torch.float32, gs.CSR())
    with pytest.raises(NotImplementedError, match="pairs of entries"):
        gs.einsum("ij,jk->ik", sparse(5, 6), sparse(6, 5))


def test_explained():
    found = gs.explain(gs.einsum, "ij,jk->ik", sparse(5, 6), sparse(6, 5))
    assert found.how == "compiled" and "sum over entries that meet" in found.why
    assert "union" in gs.explain(gs.einsum, "ij + ij -> ij", sparse(5, 6), sparse(5, 6, density=0.5)).why
