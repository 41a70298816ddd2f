"""Sums in vectors: every length around the lanes and the blocks, next to exact integers."""

import pytest
import torch

from gossamer.compiler.emit.blocks import WIDE
from gossamer.compiler.emit.sums import MOST
from gossamer.compiler.loops.nest import ZERO, Acc, Bin, For, Into, Let, Load, Nest, Num, Store, Var
from gossamer.compiler.run import runtime
from tests.compiler.emit.built import ran

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")
LENGTHS = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 100]
TYPES = [("float", torch.float32), ("double", torch.float64), ("long", torch.int64)]
Q, K = Var("q"), Var("k")


def numbers(n, dtype, seed=0):
    """Small integers: every sum of them is exact."""
    return torch.randint(-4, 5, (n,), generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("n", [*LENGTHS, WIDE - 1, WIDE, WIDE + 1, 2 * WIDE + 17])
@pytest.mark.parametrize("value, dtype", TYPES)
@pytest.mark.parametrize("long", [False, True])
def test_along_a_contiguous_dimension(n, value, dtype, long):
    turn = Into("out.acc", Bin("*", Load("A.val", K), Load("B.val", K)))
    body = [Acc("out.acc"), For("k", ZERO, Var("k.size"), [turn]), Store("out", ZERO, Var("out.acc"))]
    nest = Nest("", (("A.val", value), ("B.val", value), ("out", value)), ("k.size",), body, value, indices=("k",),
                long=long)  # fmt: skip
    a, b, out = numbers(n, dtype), numbers(n, dtype, 1), torch.full((1,), 9, dtype=dtype)
    source = ran(nest, {"A.val": a, "B.val": b, "out": out}, {"k.size": n})
    assert out.item() == (a * b).sum().item() and "_sum(" in source and (f"> {WIDE} ?" in source) == long


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("value, dtype", TYPES)
def test_along_a_sparse_level(n, value, dtype):
    turn = [Let("k", Load("crd", Q)), Into("out.acc", Bin("*", Load("A.val", Q), Load("B.val", K)))]
    body = [Acc("out.acc"), For("q", ZERO, Var("n.size"), turn), Store("out", ZERO, Var("out.acc"))]
    arrays = (("crd", "int"), ("A.val", value), ("B.val", value), ("out", value))
    nest = Nest("", arrays, ("n.size",), body, value, indices=("q", "k"))
    crd, a, b = torch.randperm(2 * n + 1)[:n].int(), numbers(n, dtype), numbers(2 * n + 1, dtype, 1)
    out = torch.zeros(1, dtype=dtype)
    ran(nest, {"crd": crd, "A.val": a, "B.val": b, "out": out}, {"n.size": n})
    assert out.item() == (a * b[crd.long()]).sum().item()


@pytest.mark.parametrize("entries", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("n, known", [(1, False), (16, False), (19, False), (16, True), (64, True), (128, True)])
@pytest.mark.parametrize("value, dtype", TYPES[:2])
def test_turns_of_a_sparse_loop_four_at_a_time(entries, n, known, value, dtype):
    """out[q] = row . B[crd[q]]: rows are read from memory, or kept in registers where their length is known."""
    inner = Into("out.acc", Bin("*", Load("A.val", K), Load("B.val", Bin("+", Bin("*", Var("j"), Var("B.s0")), K))))
    end = Num(n) if known else Var("k.size")
    body = [Let("j", Load("crd", Q)), Acc("out.acc"), For("k", ZERO, end, [inner]),
            Store("out", Q, Bin("*", Num(2.0), Var("out.acc")))]  # fmt: skip
    arrays = (("crd", "int"), ("A.val", value), ("B.val", value), ("out", value))
    nest = Nest("", arrays, ("n.size", "k.size", "B.s0"), [For("q", ZERO, Var("n.size"), body)], value,
                indices=("q", "k", "j"))  # fmt: skip
    crd, a, b = torch.randperm(12)[:entries].int(), numbers(n, dtype), numbers(12 * n, dtype, 1)
    out = torch.full((entries + 1,), -1, dtype=dtype)
    source = ran(nest, {"crd": crd, "A.val": a, "B.val": b, "out": out}, {"n.size": entries, "k.size": n, "B.s0": n})
    assert out.tolist() == [*(2 * (b.view(12, n)[crd.long()] @ a)).tolist(), -1]
    assert ("row0_0" in source) == (known and n * dtype.itemsize <= 64 * MOST)
