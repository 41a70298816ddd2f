"""Estimates of entries: exact where they must be, close on random patterns."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.compiler.planner.facts import Facts, filled, joined, result, rounded


def test_an_entry_meets_a_row():
    a, x = Facts(("i", "k"), (10, 20), 30.0, True), Facts(("k", "j"), (20, 4), 80.0, False)
    assert joined([a, x]) == 30 * 4
    assert result([a, x], ("i", "j"), 120.0)[0] == (10, 4)


def test_a_sampled_product_visits_its_entries():
    a = Facts(("i", "j"), (10, 20), 30.0, True)
    q, k = Facts(("i", "d"), (10, 8), 80.0, False), Facts(("j", "d"), (20, 8), 160.0, False)
    assert abs(joined([a, q, k]) - 30 * 8) < 1e-6


@given(st.floats(1e-6, 1e9), st.floats(1e-6, 1e9))
def test_filled_places_are_bounded(balls, places):
    assert 0 <= filled(balls, places) <= min(balls, places) * (1 + 1e-9)


def test_random_products_have_about_as_many_entries_as_estimated():
    torch.manual_seed(0)
    a = gs.from_dense((torch.rand(300, 200) < 0.03).double(), gs.CSR())
    b = gs.from_dense((torch.rand(200, 400) < 0.02).double(), gs.CSR())
    facts = [Facts(("i", "k"), (300, 200), float(a.nnz), True), Facts(("k", "j"), (200, 400), float(b.nnz), True)]
    turns = joined(facts)
    _, entries = result(facts, ("i", "j"), turns)
    dense = a.to_dense() @ b.to_dense()
    assert abs(turns / float(dense.sum()) - 1) < 0.1
    assert abs(entries / int((dense != 0).sum()) - 1) < 0.1


def test_patterns_that_hardly_differ_have_equal_facts():
    assert rounded(100_300.0) == rounded(99_800.0) == 1e5


def test_nothing_is_divided_by_zero():
    empty = Facts(("i", "k"), (0, 20), 0.0, True)
    assert joined([empty, Facts(("k",), (20,), 20.0, False)]) == 0
    assert result([empty], ("i",), 0.0) == ((0,), 0.0)
