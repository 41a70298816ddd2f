"""Plans before there is a result: of every step whose operands are known."""

import torch

import gossamer as gs
from gossamer.ops.plans_of import plan_of, plans_of

A = gs.sparsify(torch.randn(300, 300), "98%", format=gs.CSR())
B = 2 * A


def test_of_pairs_and_zips():
    x, w = torch.randn(300, 64), torch.randn(64, 4)
    assert [str(p.statement) for p in plans_of("nm,mk,ko->no", [A, x, w])] == [
        "C[n, o] = sum over m of A[n, m] * B[m, o]"
    ]
    assert len(plans_of("ij,ij->i", [A, B])) == 2


def test_what_is_not_known_is_left_out():
    assert len(plans_of("ij,jk,kl->il", [A, A, torch.randn(300, 299)])) >= 1
    assert plan_of("ij,jk->ik", [torch.ones(2, 2)] * 2) is None
