"""Costs: the orders of magnitude that decide between plans."""

from gossamer.compiler.planner.costs import FREE, Cost, cost
from gossamer.compiler.planner.facts import Facts

A = Facts(("i", "k"), (1000, 1000), 10_000.0, True)
X = Facts(("k", "j"), (1000, 64), 64_000.0, False)
Y = Facts(("i", "j"), (1000, 64), 64_000.0, False)


def test_costs_add_up():
    one = cost([A, X], Y, False)
    assert one + FREE == one and one + one == Cost(2 * one.time, 2 * one.operations, 2 * one.moved)


def test_a_sparse_product_does_the_work_of_its_entries():
    assert cost([A, X], Y, False).operations == 10_000 * 64


def test_bytes_are_those_of_operands_and_result():
    assert cost([A, X], Y, False).moved == 10_000 * 8 + 2 * 64_000 * 4


def test_a_dense_product_is_cheaper_by_the_multiplication():
    dense = Facts(("i", "k"), (1000, 1000), 1e6, False)
    by_dense = cost([dense, X], Y, False)
    assert by_dense.time < cost([Facts(("i", "k"), (1000, 1000), 1e6, True), X], Y, False).time
    assert by_dense.time > cost([A, X], Y, False).time


def test_a_new_pattern_costs_more_than_a_known_one():
    made = Facts(("i", "j"), (1000, 1000), 5_000.0, True)
    assert cost([A, A], made, True).time > cost([A, A], made, False).time
