"""How long sums may be."""

import torch

import gossamer as gs
from gossamer.compiler.language.notation import parse
from gossamer.compiler.run.lengths import LONG, longest, ragged, uneven, widest
from gossamer.compiler.run.views import native
from gossamer.core.join import from_entries

WIDE = 3 * LONG


def view(x, format=None):
    return native(gs.from_dense(x, format or gs.CSR()).structure)


def rows_of(*counts, cols=WIDE):
    """Rows with so many entries each."""
    keys = torch.cat([r * cols + torch.arange(n) for r, n in enumerate(counts)])
    return native(from_entries(keys, torch.ones(len(keys)), (len(counts), cols), gs.CSR()).structure)


def test_by_hand():
    small = view(torch.eye(3, 5))
    assert widest(small, 0) == 3 and widest(small, 1) == 3  # no more than there are entries
    assert widest(rows_of(LONG + 5, 7, 0), 1) == LONG + 5  # counted
    assert widest(view(torch.ones(2, LONG)), 1) == LONG  # not worth counting


def test_levels_that_count_nothing_have_their_size():
    x = torch.zeros(3, WIDE)
    x[:, : LONG // 2] = 1
    assert widest(view(x, gs.ELL()), 1) == WIDE
    assert widest(rows_of(LONG + 5), 0) == 1


def test_a_factor_bounds_a_sum_and_a_term_does_not():
    rows = rows_of(LONG + 5, 7)
    product, total = parse("ij,j->i", (2, 1)), parse("ij + ij -> i", (2, 2))
    assert longest(product.tree, [(rows, "ij"), None], {"j": WIDE}) == LONG + 5
    assert longest(total.tree, [(rows, "ij"), None], {"j": WIDE}) == WIDE
    assert longest(product.tree, [None, None], {"j": WIDE}) == WIDE
    assert longest(product.tree, [(rows, "ij"), None], {"i": 2, "j": WIDE}) == 2 * (LONG + 5)


def test_sums_of_nothing_have_one_term():
    assert longest(parse("ij,j->i", (2, 1)).tree, [None, None], {}) == 1
    assert longest(parse("ij,j->i", (2, 1)).tree, [None, None], {"j": 0}) == 1
    assert widest(view(torch.zeros(2, 3)), 1) == 1


def test_rows_that_differ_in_length():
    even, long = torch.arange(0, 6000, 10), torch.arange(0, 60000, 8)
    assert not ragged(even) and not ragged(long)
    assert ragged(torch.arange(600).remainder(5).cumsum(0))
    assert not ragged(torch.arange(50).remainder(5).cumsum(0))  # few rows
    assert not ragged(torch.tensor([0])) and not ragged((8 * torch.arange(600).remainder(5)).cumsum(0))  # no ends


def test_formats_without_pointers_are_even():
    x = torch.eye(100)
    assert not any(
        uneven(gs.from_dense(x, f).structure) for f in (gs.CSR(), gs.COO(), gs.ELL(), gs.DCSR(), gs.Masked())
    )
    x = torch.tril(torch.ones(100, 100))
    assert uneven(gs.from_dense(x, gs.CSR()).structure) and uneven(gs.from_dense(x, gs.CSC()).structure)
