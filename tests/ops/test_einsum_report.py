"""gs.explain(gs.einsum, ...): the plan, what lost, operations and bytes."""

import torch

import gossamer as gs


def test_a_plan_in_pairs():
    a = gs.sparsify(torch.randn(400, 400), "98%", format=gs.CSR())
    text = str(gs.explain(gs.einsum, "nm,mk,ko->no", a, torch.randn(400, 64), torch.randn(64, 8)))
    assert "in 2 steps, A (B C)" in text and "lost: " in text and "A B C at once" in text
    assert "204,800 multiplications" in text and " MB" in text  # 400 * 64 * 8
    assert "E[n, o] = sum over m of A[n, m] * D[m, o]" in text and "loops: n > o > m" in text


def test_one_kernel():
    a = gs.sparsify(torch.randn(400, 400), "98%", format=gs.CSR())
    found = gs.explain(gs.einsum, "nm,mk->nk", a, torch.randn(400, 8))
    assert found.how == "compiled" and "steps" not in found.why and found.formats == ("CSR", "Dense")


def test_what_torch_computes():
    x = torch.randn(4, 4)
    assert gs.explain(gs.einsum, "ij,jk->ik", x, x).how == "torch"
    full = gs.from_dense(x, gs.CSR())
    assert gs.explain(gs.einsum, "ij,jk->ik", full, x).how == "torch"
    odd = gs.from_dense(x.to(torch.complex64), gs.CSR())
    assert gs.explain(gs.einsum, "ij,jk->ik", odd, odd).how == "fallback"


def test_affine_access_and_fills():
    a, inf = gs.sparsify(torch.randn(40, 30), "80%", format=gs.CSR()), float("inf")
    assert gs.explain(gs.einsum, "o k, i+k -> o i", a, torch.randn(99)).how == "compiled"
    assert gs.explain(gs.einsum, "min: ij + j -> i", a, torch.randn(30), fill=inf).how == "compiled"
    assert gs.explain(gs.einsum, "max: ij + j -> i", a, torch.randn(30), fill=inf).how == "fallback"
    assert gs.explain(gs.einsum, "ij -> i", a, out=torch.zeros(40), beta=1.0).how == "compiled"


def test_a_kernel_of_affine_access_can_be_looked_at():
    k = gs.compile("o k, 2*i+k -> o i", gs.CSR(), gs.Dense())
    assert "B.val[" in k.loops
    w = gs.from_dense(torch.eye(3), gs.CSR())
    assert torch.equal(k(w, torch.arange(9.0)), torch.tensor([[0.0, 2, 4, 6], [1, 3, 5, 7], [2, 4, 6, 8]]))
