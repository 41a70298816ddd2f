"""Cuts of dimensions, orders of walks, names: the arithmetic of conversions, by hand and by trying."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.convert.conversion import Cut, cuts, orders, unsorted_levels
from gossamer.compiler.loops.nest import show

ROWS, COLUMNS = (Cut(0), Cut(1)), (Cut(1), Cut(0))


def test_cuts_by_hand():
    assert cuts(((0, 1), (1, 1)), (3, 5)) == ROWS
    assert cuts(((0, 4), (0, 1)), (3, 4)) == (Cut(0, 4), Cut(0, 1, 4))
    assert cuts(((0, 1), (0, 1)), (3, 4)) is None  # one weight twice
    assert cuts(((0, 7), (1, 1)), (1, 4)) == (Cut(0, 1, 1), Cut(1))  # a level of one coordinate counts nothing


def test_coordinates():
    assert show(Cut(1).coordinate()) == "x1" and show(Cut(0, 4, 3).coordinate()) == "(x0 / 4) % 3"


def test_orders():
    assert orders(()) == [()] and orders((False, False)) == [(0, 1)]
    assert sorted(orders((True, True, True))) == sorted(itertools.permutations(range(3)))


def value(cut, x):
    q = x[cut.dim] // cut.weight
    return q % cut.size if cut.size else q


BLOCKS = (Cut(0, 2), Cut(1, 2), Cut(0, 1, 2), Cut(1, 1, 2))
STACKS = st.sampled_from([ROWS, COLUMNS, BLOCKS, (Cut(0, 3), Cut(1), Cut(0, 1, 3)), (Cut(1, 2), Cut(0), Cut(1, 1, 2))])


@given(STACKS, STACKS, st.data())
def test_a_stable_sort_by_these_levels_is_enough(source, target, data):
    needed = data.draw(st.integers(0, len(target)))
    every = sorted(itertools.product(range(6), range(6)), key=lambda x: [value(c, x) for c in source])
    by = unsorted_levels(source, target, needed)
    got = sorted(every, key=lambda x: [value(c, x) for c in target[:by]])
    keys = [[value(c, x) for c in target[:needed]] for x in got]
    assert by <= needed and keys == sorted(keys)
