"""Blocks: short sums are written without, long ones are sums of blocks."""

import pytest
import torch

from gossamer.compiler.emit.blocks import BLOCK, WIDE
from gossamer.compiler.loops.nest import ZERO, Acc, Bin, For, Into, Let, Load, Nest, Store, Var
from gossamer.compiler.run import runtime
from tests.compiler.emit.built import ran

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("long", [False, True])
def test_a_sum_of_any_length_has_all_its_terms(n, long):
    turn = [
        Let("k", Load("crd", Var("q"))),
        Into("out.acc", Bin("*", Load("A.val", Var("q")), Load("B.val", Var("k")))),
    ]
    body = [Acc("out.acc"), For("q", ZERO, Var("n.size"), turn), Store("out", ZERO, Var("out.acc"))]
    arrays = (("crd", "int"), ("A.val", "float"), ("B.val", "float"), ("out", "float"))
    nest = Nest("", arrays, ("n.size",), body, "float", indices=("q", "k"), long=long)
    crd, out = torch.arange(n).int(), torch.zeros(1)
    tensors = {"crd": crd, "A.val": torch.ones(n), "B.val": torch.ones(n), "out": out}
    source = ran(nest, tensors, {"n.size": n})
    assert out.item() == n and (f"> {BLOCK}, 0)" in source) == long


def test_blocks_of_wide_vectors_are_longer():
    assert WIDE == 4 * BLOCK
