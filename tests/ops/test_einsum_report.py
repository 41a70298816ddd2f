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
