"""What a plan says of itself."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.explained import Stored, stored
from gossamer.compiler.run.runtime import available
from gossamer.compiler.run.views import native, repacked
from gossamer.ops.plans_of import plan_of

A = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4]])


def test_operands_by_hand():
    structure = gs.from_dense(A, gs.CSR()).structure
    arg = Arg(("i", "j"), structure, (3, 4))
    assert str(stored(arg, native(structure))) == "CSR(), 4 entries, walked as it is stored"
    assert str(stored(arg, repacked(structure, (1, 0)))) == "CSR(), 4 entries, sorted by (j, i) and kept"
    assert str(stored(arg, None)) == "CSR(), read as the dense tensor that it stores"
    assert "all operands have one pattern" in str(stored(arg, None, flat=True))
    assert str(Stored(None, 0, "")) == "dense"


@pytest.mark.skipif(not available(), reason="no C compiler")
def test_plans():
    a = gs.from_dense(A, gs.CSR())
    text = plan_of("ij,jk->ik", (a, torch.ones(4, 5)), None).explain()
    assert text.splitlines()[:3] == [
        "C[i, k] = sum over j of A[i, j] * B[j, k]", "  A: CSR(), 4 entries, walked as it is stored", "  B: dense",
    ]  # fmt: skip
    assert "  result: dense" in text and "'k' in strips of vectors" in text
    assert "one thread here: too little work for two" in text
    product = plan_of("ij,kj->ik", (a, gs.from_dense(A, gs.CSC())), None).explain()
    assert "  result: CSR()" in product and "workspace over 'k' gathers each row of the result" in product
