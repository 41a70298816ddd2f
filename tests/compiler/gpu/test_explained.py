"""What a plan says about itself."""

import torch

from gossamer.compiler import parse
from gossamer.compiler.gpu.plan import GpuPlan
from tests.compiler.gpu.emulated import arg, sparse


def test_words():
    a, x = sparse(3, 400, density=0.9), torch.ones(8, 400)
    args, sizes = [arg("ij", a), arg("kj", x)], {"i": 3, "j": 400, "k": 8}
    lines = GpuPlan(parse("ij,kj->ik", (2, 2)), args, sizes, torch.float32, "dense").explain().splitlines()
    assert lines[0] == "C[i, k] = sum over j of A[i, j] * B[k, j], on the GPU"
    assert lines[1] == "  A: CSR(), leads: its entries by (i, j)"
    assert lines[2] == "  B: dense, copied so that 'k' is contiguous"
    assert "share the columns of 'k', 4 at once" in lines[4] and "sums of pieces are added up in order" in lines[5]
    assert lines[6] == "  2 launches, the same bits every time"


def test_values_alone():
    a = sparse(3, 4)
    text = GpuPlan(parse("ij,ij->", (2, 2)), [arg("ij", a)] * 2, {"i": 3, "j": 4}, torch.float32, "dense").explain()
    assert text.endswith("torch computes it on the values alone")
