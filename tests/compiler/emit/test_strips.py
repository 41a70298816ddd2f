"""Strips of vectors: every number of columns around their sizes, with rows that are short, long and empty."""

import pytest
import torch

from gossamer.compiler.emit.blocks import BLOCK
from gossamer.compiler.emit.strips import STRIPS, adds, strip_in
from gossamer.compiler.loops.nest import ONE, ZERO, Acc, Bin, For, If, Into, Let, Load, Nest, Num, Store, Var
from gossamer.compiler.run import runtime
from tests.compiler.emit.built import ran

ROW, COL, Q = Var("row"), Var("col"), Var("q")
TYPES = [("float", torch.float32), ("double", torch.float64), ("int", torch.int32)]
compiled = pytest.mark.skipif(not runtime.available(), reason="no C compiler")


def test_what_is_added_here():
    assert adds([If(ONE, [], [Into("out.acc", ONE)])])
    assert not adds([Into("out.acc", ONE, "max="), For("i", ZERO, ONE, [Into("out.acc", ONE)])])


def test_the_strip_in_a_nest():
    strip = For("j", ZERO, Var("j.size"), [], "strip")
    assert strip_in([Acc("out.acc"), For("i", ZERO, ONE, [If(ONE, [], [strip])])]) is strip
    assert strip_in([For("i", ZERO, ONE, [])]) is None


@compiled
@pytest.mark.parametrize("n", [0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 127, 129, 300])
@pytest.mark.parametrize("value, dtype", TYPES)
def test_strips(n, value, dtype):
    """out[col] = sum over row of A[row, col]: a sum in vectors for each size of strip."""
    index = Bin("+", Bin("*", ROW, Var("A.s0")), COL)
    body = [Acc("out.acc"), For("row", ZERO, Num(3), [Into("out.acc", Load("A.val", index))]),
            Store("out", COL, Var("out.acc"))]  # fmt: skip
    nest = Nest("", (("A.val", value), ("out", value)), ("col.size", "A.s0"),
                [For("col", ZERO, Var("col.size"), body, "strip")], value, indices=("row", "col"))  # fmt: skip
    a, out = torch.arange(3 * n, dtype=dtype).view(3, n), torch.full((n + 1,), -7, dtype=dtype)
    source = ran(nest, {"A.val": a, "out": out}, {"col.size": n, "A.s0": n})
    assert out[:n].tolist() == a.sum(0).tolist() and out[n] == -7
    assert "v16" in source or value == "double"


def product(value, long=False):
    """out[row, col] = sum over q of A.val[q] * B.val[crd[q], col]."""
    turn = [
        Let("k", Load("crd", Q)),
        Into("out.acc", Bin("*", Load("A.val", Q), Load("B.val", Bin("+", Bin("*", Var("k"), Var("B.s0")), COL)))),
    ]
    walk = For("q", Load("pos", ROW), Load("pos", Bin("+", ROW, ONE)), turn)
    place = Bin("+", Bin("*", ROW, Var("B.s0")), COL)
    strip = For("col", ZERO, Var("col.size"), [Acc("out.acc"), walk, Store("out", place, Var("out.acc"))], "strip")
    arrays = (("pos", "int"), ("crd", "int"), ("A.val", value), ("B.val", value), ("out", value))
    rows = For("row", ZERO, Var("row.size"), [strip], "units")
    return Nest("", arrays, ("row.size", "col.size", "B.s0"), [rows], value, Var("row.size"), long=long,
                indices=("row", "col", "q", "k"))  # fmt: skip


@compiled
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("columns", sorted({0, 1, 2, 5, 12, 40, *(c * w // 4 for c, w in STRIPS)}))
@pytest.mark.parametrize("value, dtype", TYPES)
def test_rows_of_a_product(value, dtype, columns, long):
    lengths = [0, 1, 2, 3, 9, *([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3] if long else [])]
    pos = torch.tensor([0, *lengths]).cumsum(0).int()
    generator = torch.Generator().manual_seed(columns)
    crd = torch.randint(7, (int(pos[-1]),), generator=generator, dtype=torch.int32)
    a = torch.randint(-3, 4, crd.shape, generator=generator).to(dtype)
    b = torch.randint(-3, 4, (7, columns), generator=generator).to(dtype)
    out = torch.full((len(lengths), columns), 99, dtype=dtype)
    sizes = {"row.size": len(lengths), "col.size": columns, "B.s0": columns}
    source = ran(product(value, long), {"pos": pos, "crd": crd, "A.val": a, "B.val": b, "out": out}, sizes)
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    want = torch.zeros_like(out).index_add_(0, row, a[:, None] * b[crd.long()])
    assert torch.equal(out, want)  # small integers: exact in every order
    assert ("_before" in source) == long and "== 8) {" in source


@compiled
def test_a_strip_whose_indices_jump_has_no_version():
    turn = Into("out.acc", Load("A.val", Bin("*", COL, Num(2))))
    strip = For("col", ZERO, Var("col.size"), [Acc("out.acc"), For("q", ZERO, Num(2), [turn]),
                                               Store("out", COL, Var("out.acc"))], "strip")  # fmt: skip
    rows = For("row", ZERO, Var("row.size"), [strip], "units")
    nest = Nest("", (("A.val", "float"), ("out", "float")), ("row.size", "col.size"), [rows], "float", Var("row.size"),
                indices=("row", "col", "q"))  # fmt: skip
    a, out = torch.arange(16.0), torch.zeros(8)
    source = ran(nest, {"A.val": a, "out": out}, {"row.size": 1, "col.size": 8})
    assert out.tolist() == (2 * a[::2]).tolist() and "== 8) {" not in source
