"""Targets and the keys of their entries: bits by hand, and every coordinate comes back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import Layout, Target
from gossamer.formats.levels import Bitmap, Compressed, Dense


def target(*sizes, stack=None):
    stack = stack or (Dense(),) * (len(sizes) - 1) + (Compressed(),)
    return Target(stack, sizes, tuple(Cut(d) for d in range(len(sizes))), sizes)


def test_by_hand():
    layout = Layout.of(target(3, 100))
    assert (layout.bits, layout.shifts, layout.key, layout.dtype) == ((2, 7), (7, 0), "int", torch.int32)
    named = {"B.shift0": 7, "B.shift1": 0, "B.field0": 3, "B.field1": 127, "B.size0": 3, "B.size1": 100}
    assert layout.integers == named | {"B.dim0": 3, "B.dim1": 100}


def test_a_key_has_31_bits_or_63_or_there_is_none():
    assert Layout.of(target(2**15, 2**16)).key == "int"
    assert Layout.of(target(2**16, 2**16)).dtype == torch.int64
    assert Layout.of(target(2**31, 2**32)).key == "long"
    assert Layout.of(target(2**32, 2**32)) is None


def test_dense_levels_at_the_end_need_no_order():
    assert target(3, 4).needed == 2
    assert target(3, 4, 5, stack=(Dense(), Compressed(), Dense())).needed == 2
    assert target(3, 4, stack=(Dense(), Dense())).needed == 0
    assert target(3, 4, stack=(Dense(), Bitmap())).needed == 2  # it has a place for each, and an array


@given(st.lists(st.integers(1, 2**12), min_size=1, max_size=5), st.data())
def test_fields_do_not_touch(sizes, data):
    layout = Layout.of(target(*sizes))
    coords = [data.draw(st.integers(0, size - 1)) for size in sizes]
    key = sum(c << shift for c, shift in zip(coords, layout.shifts, strict=True))
    named = layout.integers
    assert [key >> named[f"B.shift{m}"] & named[f"B.field{m}"] for m in range(len(sizes))] == coords
    assert key < 2 ** (31 if layout.key == "int" else 63)
