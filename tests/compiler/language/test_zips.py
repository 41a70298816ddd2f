"""Operands with one pattern are combined before anything is walked: the same numbers, formats and gradients."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.language.zips import zipped
from gossamer.ops.plans_of import plans_of

torch.manual_seed(0)
D = torch.randn(12, 9, dtype=torch.float64) * (torch.rand(12, 9) < 0.4)
A = gs.from_dense(D, gs.CSR())
B = gs.SparseTensor(torch.randn(A.nnz, dtype=torch.float64), A.structure)
C = gs.from_dense(D * (torch.rand(12, 9) < 0.5), gs.CSR())
X = torch.randn(9, 5, dtype=torch.float64)
CASES = {
    "ij,ij->i": (A, B), "ij,ij->j": (A, B), "ij,jk,ij->ik": (A, X, B), "ij + ij -> i": (A, B), "ij,ij,ij->i": (A, B, C),
    "relu(ij - ij) * jk -> ik": (A, B, X), "mean: ij * ij -> j": (A, B), "ij,ji->i": (A, B.t()),
    "(ij + ij) * ij -> ij": (A, B, C), "max(ij, ij) * jk -> ik": (A, B, X),
    "exp(ij - ij) -> i": (A, B), "ij,exp(ij),ij->i": (A, B, B),
}  # fmt: skip


def dense(t):
    return t.to_dense() if isinstance(t, gs.SparseTensor) else t


@pytest.mark.parametrize("expression", CASES)
def test_values_and_gradients(expression):
    from gossamer.compiler import interpret

    tensors = CASES[expression]
    given = [t.detach().requires_grad_() for t in tensors]
    other = [dense(t).detach().requires_grad_() for t in tensors]
    want = interpret(parse(expression, [t.dim() for t in other]), other)
    got = dense(gs.einsum(expression, *given))
    assert torch.allclose(got, want)
    weight = torch.randn_like(want)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for t, d in zip(given, other, strict=True):
        right = d.grad * t.detach().mask() if isinstance(t, gs.SparseTensor) else d.grad
        assert torch.allclose(dense(t.grad), right)


def test_no_merge_is_left():
    loops = [plan.kernel.loops for plan in plans_of("ij,ij->i", [A, B])]
    assert len(loops) == 2 and not any("while" in text for text in loops)


def test_forms_are_those_of_one_kernel():
    assert gs.einsum("ij,ij,ij->ij", A, B, C).format == gs.CSR()
    assert gs.einsum("ij,ij,i->ij", A, B, torch.ones(12, dtype=torch.float64)).structure is A.structure


def test_what_is_not_zipped():
    cases = {"ij,ij->ij": [0, 0], "ij,ij->i": [0, 1], "max: ij * ij -> i": [0, 0], "ij,ji->i": [0, 0]}
    for text, patterns in cases.items():
        assert zipped(parse(text, (2, 2)), patterns) is None


def test_a_function_around_the_part_stays():
    found = zipped(parse("exp(ij - ij) -> i", (2, 2)), [0, 0])
    assert str(found.whole) == "B[i] = sum over j of exp(A[i, j])"
