"""Semirings: which statements are, and that they need all their operands."""

from gossamer.compiler import parse
from gossamer.compiler.language.algebra import needed, without
from gossamer.compiler.language.semiring import semiring
from gossamer.compiler.language.tree import ZERO

INF = float("inf")


def test_a_sum_needs_both_sides():
    tree = semiring(parse("max: ik + kj -> ij", (2, 2)), -INF).tree
    assert needed(tree, frozenset({0, 1})) == {frozenset({0, 1})}
    assert without(tree, frozenset({1})) == ZERO


def test_what_is_none():
    cases = {"max: ij + ij -> i": INF, "ij + ij -> i": INF, "min: relu(ij) -> i": INF, "min: ij -> i": 0.0}
    for text, fill in cases.items():
        assert semiring(parse(text, (2,) * text.count("ij")), fill) is None
