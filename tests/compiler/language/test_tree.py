"""Trees as text: brackets where they are needed, numbers, names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.language.notation import parse, parse_groups
from gossamer.compiler.language.statement import Statement, write
from gossamer.compiler.language.tree import Access, Const, Op, operand_name, show, spelled

A, B, C = Access(0), Access(1), Access(2)


@pytest.mark.parametrize(
    "tree, text",
    [
        (Op("-", (Op("-", (A, B)), C)), "A - B - C"),
        (Op("-", (A, Op("-", (B, C)))), "A - (B - C)"),
        (Op("*", (Op("+", (A, B)), C)), "(A + B) * C"),
        (Op("/", (A, Op("*", (B, C)))), "A / (B * C)"),
        (Op("<", (Op("+", (A, B)), Const(0.5))), "A + B < 0.5"),
        (Op("where", (Op(">", (A, B)), B, Access(2, stored=True))), "where(A > B, B, [C])"),
        (Op("neg", (Op("*", (A, Const(2))),)), "neg(A * 2)"),
    ],
)
def test_by_hand(tree, text):
    assert str(tree) == show(tree) == text


def test_exact_text_keeps_the_association():
    tree = Op("+", (A, Op("+", (B, C))))
    assert spelled(tree, ["A", "B + C"]) == "A + B + C"
    assert spelled(tree, ["A", "B + C"], exactly=True) == "A + (B + C)"


def test_names_of_many_operands_differ():
    names = [operand_name(k) for k in range(100)]
    assert names[:2] == ["A", "B"] and names[25:27] == ["Z", "A1"] and len(set(names)) == 100


@st.composite
def trees(draw, depth=3):
    """Trees in which each operand stands once, numbered from the left, as expressions have them."""
    count = iter(range(100))

    def tree(depth):
        kind = draw(st.sampled_from(["operand", "number", "binary", "compare", "call"])) if depth else "operand"
        if kind == "operand":
            return Access(next(count))
        if kind == "number":
            return Const(draw(st.sampled_from([2, 0.5, 1e-7, 1234567.25])))
        if kind == "call":
            return Op(draw(st.sampled_from(["relu", "neg", "abs"])), (tree(depth - 1),))
        names = ["+", "-", "*", "/"] if kind == "binary" else ["<", ">=", "==", "!="]
        return Op(draw(st.sampled_from(names)), (tree(depth - 1), tree(depth - 1)))

    return Op("+", (tree(depth), Access(next(count))))


@given(trees())
def test_what_is_written_is_read_as_the_same_tree(tree):
    count = 1 + max(int(k) for k in _operands(tree))
    statement = Statement((("i",),) * count, ("i",), tree)
    text = write(statement)
    assert parse(text, [1] * len(parse_groups(text))).tree == tree


def _operands(tree):
    if isinstance(tree, Access):
        return [tree.operand]
    return [k for arg in tree.args for k in _operands(arg)] if isinstance(tree, Op) else []
