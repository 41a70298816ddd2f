"""torch.einsum with sparse operands: as it is called, and what is said of it."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.runtime import available
from gossamer.ops.torch_einsum import Task

A = torch.tensor([[1.0, 0, 2], [0, 0, 3]])
B = torch.arange(6.0).view(3, 2)


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.BSR((1, 3)), gs.Masked()], ids=str)
def test_by_hand(format):
    a = gs.from_dense(A, format)
    assert torch.equal(torch.as_tensor(torch.einsum("ik,kj->ij", a, B)), torch.tensor([[8.0, 11], [12, 15]]))
    assert (
        torch.einsum("ik,kj->ij", [a, B]).tolist() == torch.einsum("ik,kj->ij", (a, B)).tolist() == [[8, 11], [12, 15]]
    )


def test_the_sparse_operand_may_stand_anywhere():
    a = gs.from_dense(A, gs.CSR())
    for equation, operands in (("kj,ik->ij", (B, a)), ("kj , ik -> ij", (B, a)), ("...k,kj", (a, B))):
        torch.testing.assert_close(torch.as_tensor(torch.einsum(equation, *operands)), A @ B)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64])
def test_types(dtype):
    a, b = A.to(dtype), B.to(dtype)
    got = torch.as_tensor(torch.einsum("ik,kj->ij", gs.from_dense(a, gs.CSR()), b))
    assert got.dtype == dtype and torch.equal(got, torch.einsum("ik,kj->ij", a, b))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_sizes(shape):
    a, b = torch.ones(shape), torch.ones(shape[1], 2)
    assert torch.equal(torch.as_tensor(torch.einsum("ik,kj->ij", gs.from_dense(a, gs.CSR()), b)), a @ b)


def test_lists_of_numbers_are_computed_too():
    got = torch.einsum(gs.from_dense(A, gs.CSR()), [0, 1], B, [1, 2], [0, 2])
    torch.testing.assert_close(torch.as_tensor(got), A @ B)


@pytest.mark.skipif(not available(), reason="no C compiler")
def test_what_is_said():
    a = gs.from_dense(A, gs.CSR())
    with gs.dense_from(None):
        assert Task("ik,kj->ij", (a, B)).describe().startswith("as gs.einsum('ik,kj->ij'): C[i, j] = sum over k")
    with gs.dense_from(0):
        assert (
            "leaves it to torch: at this density a dense product is faster (gs.dense_from)"
            in Task("ik,kj->ij", (a, B)).describe()
        )
    assert Task("ik,kj->ij", (A, B)).describe() == "gs.einsum('ik,kj->ij') is torch's: no operand is sparse"
    assert Task("ij->ji", (a,), gs.CSR()).run().format == gs.CSR()
