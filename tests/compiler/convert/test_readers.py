"""Nests that read: a walk over levels, numbers and nonzeros, by hand and by the interpreter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.convert.readers import (
    Walked,
    counter,
    dense_reader,
    keyed,
    nonzero,
    number_reader,
    reader,
    walk,
)
from gossamer.compiler.language.program import LevelUse, Walk
from gossamer.compiler.loops.nest import Nest, Store, Var, show
from gossamer.formats.levels import Bitmap, Compressed, Dense, Fixed

ROWS = (Cut(0), Cut(1))


def use(level, n, *arrays, numbers=()):
    return LevelUse(Walk(*level.walk), "", n, tuple((a, "int") for a in arrays), numbers)


CSR = Walked(
    (use(Dense(), 0), use(Compressed(), 1, "pos", "crd")), ((0, 1), (1, 1)), frozenset(), (0, 1), (0, 0)
)  # fmt: skip


def text(source, name="x"):
    return str(Nest("", (), (), walk(source, name, lambda at: [Store("out", at, Var(f"{name}0"))]))).splitlines()


def test_rows_by_hand():
    assert text(CSR) == [
        "for A0.q in 0 .. A.size0:",
        "  A0.i = A0.q",
        "  for A1.q in A.pos1[A0.q] .. A.pos1[A0.q + 1]:",
        "    A1.i = A.crd1[A1.q]",
        "    x0 = A0.i",
        "    x1 = A1.i",
        "    out[A1.q] = x0",
    ]
    assert CSR.types() == {"A.pos1": "int", "A.crd1": "int"}


def test_padding_ends_a_row_and_zeros_that_are_stored_are_left_out():
    ell = Walked(
        (use(Dense(), 0), use(Fixed(), 1, "crd", numbers=("width",))), ((0, 1), (1, 1)), frozenset({1}), (0, 1), (0, 0)
    )
    assert text(ell)[2:] == [
        "  for A1.q in A0.q * A.width1 .. (A0.q + 1) * A.width1:",
        "    if A.crd1[A1.q] >= 0:",
        "      A1.i = A.crd1[A1.q]",
        "      x0 = A0.i",
        "      x1 = A1.i",
        "      if x1 < A.dim1:",
        "        out[A1.q] = x0",
        "    else:",
        "      stop",
    ]
    mask = Walked((use(Dense(), 0), use(Bitmap(), 1, "mask")), ((0, 1), (1, 1)), frozenset(), (0, 1), (0, 0))
    assert "    if A.mask1[A1.q]:" in text(mask)


def test_a_small_dense_level_is_walked_before_those_above_it():
    blocks = Walked(
        (use(Dense(), 0), use(Compressed(), 1, "pos", "crd"), use(Dense(), 2)),
        ((0, 4), (1, 1), (0, 1)),
        frozenset(),
        (0, 2, 1),
        (0, 0, 4),
    )
    assert text(blocks)[2:] == [
        "  for A2.q in 0 .. 4:",
        "    A2.i = A2.q",
        "    for A1.q in A.pos1[A0.q] .. A.pos1[A0.q + 1]:",
        "      A1.i = A.crd1[A1.q]",
        "      A2.at = A1.q * 4 + A2.i",
        "      x0 = A0.i * 4 + A2.i",
        "      x1 = A1.i",
        "      out[A2.at] = x0",
    ]


def test_keys_by_hand():
    assert [show(let.value) for let in keyed((Cut(0, 4), Cut(1), Cut(0, 1, 4)), "int")] == [
        "x0 / 4",
        "x1",
        "x0 % 4",
        "now.0 << B.shift0 | now.1 << B.shift1 | now.2 << B.shift2",
    ]


def test_entries_of_a_stack_are_read():
    key, where = torch.zeros(5, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    arrays = {"A.pos1": torch.tensor([0, 2, 2, 3], dtype=torch.int32), "A.crd1": torch.tensor([1, 4, 0])}
    arrays["A.crd1"] = arrays["A.crd1"].int()
    passes = Passes({"read": reader(CSR, ROWS, 0, "int", "int")})
    given = {"A.size0": 3, "B.shift0": 3, "B.shift1": 0}
    assert passes.interpret("read", arrays | {"key": key, "where": where}, given) == 3
    assert key.tolist()[:3] == [0b000_001, 0b000_100, 0b010_000] and where.tolist()[:3] == [0, 1, 2]
    regrouped = Passes({"read": reader(CSR, (Cut(0),), 1, "int", None)})  # 3 x 5 as one dimension
    assert regrouped.interpret("read", arrays | {"key": key}, given | {"A.dim1": 5, "B.shift0": 0}) == 3
    assert key.tolist()[:3] == [1, 4, 10]


@given(st.lists(st.integers(0, 59), max_size=12))
def test_numbers_in_any_order(numbers):
    key = torch.zeros(len(numbers) + 1, dtype=torch.int32)
    passes = Passes({"read": number_reader(3, (Cut(2), Cut(0), Cut(1)), "int")})
    given = {"n": len(numbers), "B.dim1": 4, "B.dim2": 5, "B.shift0": 4, "B.shift1": 2, "B.shift2": 0}
    falls = passes.interpret("read", {"numbers": torch.tensor(numbers, dtype=torch.int64), "key": key}, given)
    assert key.tolist()[:-1] == [(x % 5) << 4 | (x // 20) << 2 | x // 5 % 4 for x in numbers]
    assert falls == (sorted(set(numbers)) != numbers)


@pytest.mark.parametrize("cols", [1, 15, 16, 17, 40, 64])
@pytest.mark.parametrize(
    ("dtype", "ctype"), [(torch.float32, "float"), (torch.float16, "half"), (torch.complex64, "float 2")]
)
def test_what_is_not_zero(cols, dtype, ctype):
    x = torch.zeros(3, cols, dtype=dtype)
    x[0, 0], x[1, cols // 2], x[2, cols - 1] = 2.0, float("nan"), -1.0
    x[0, -1] = -0.0 if cols > 1 else x[0, -1]  # a zero with a sign is one
    n = int((x != 0).sum())
    counted = Passes({"count": counter(ctype)}).interpret("count", {"values": x}, {"places": x.numel()})
    key, where = torch.zeros(n + 1, dtype=torch.int32), torch.zeros(n + 1, dtype=torch.int32)
    passes = Passes({"read": dense_reader(ctype, 2, ROWS, "int", "int")})
    arrays = {"values": x, "key": key, "where": where}
    given = {"B.dim0": 3, "B.dim1": cols, "B.shift0": 7, "B.shift1": 0}
    assert passes.interpret("read", arrays, given) == counted == n
    assert where[:n].tolist() == torch.nonzero(x.view(-1)).squeeze(1).tolist()
    assert key[:n].tolist() == [(at // cols) << 7 | at % cols for at in where[:n].tolist()]


def test_halves_are_looked_at_as_bits():
    assert show(nonzero("half", Var("k"))) == "values[k] & 32767 != 0"
