"""Statements: what is summed, how they are written, and equal ones under other letters."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.statement import Statement, canonical, equation, write
from gossamer.compiler.language.tree import Access


@pytest.mark.parametrize(
    "text, dims, shown",
    [
        ("ij,j->i", (2, 1), "C[i] = sum over j of A[i, j] * B[j]"),
        ("ij->ji", (2,), "B[j, i] = A[i, j]"),
        ("mean: ij->", (2,), "B[] = mean over i, j of A[i, j]"),
        ("ij / sum(ik) -> ij", (2, 2), "C[i, j] = A[i, j] / sum(B[i, k])"),
    ],
)
def test_by_hand(text, dims, shown):
    assert str(parse(text, dims)) == shown


def test_summed_indices_are_in_the_order_in_which_they_appear():
    assert parse("kj,ji->", (2, 2)).summed == ("k", "j", "i")
    assert parse("ij->ij", (2,)).summed == ()


@pytest.mark.parametrize(
    "text, dims, yes",
    [("ij,j->i", (2, 1), True), ("ij + ij->i", (2, 2), False), ("2 * ij->i", (2,), False), ("max: ij->i", (2,), False)],
)
def test_products_of_operands_alone(text, dims, yes):
    assert parse(text, dims).multiplies is yes


@pytest.mark.parametrize("text, dims", [("max: relu(ij) -> i", (2,)), ("(), ij -> ij", (0, 2)), ("ii -> i", (2,))])
def test_written_and_read_again(text, dims):
    statement = parse(text, dims)
    assert canonical(parse(write(statement), dims)) == canonical(statement)


def test_equation():
    assert equation(parse("batch row col, col batch -> batch", (3, 2))) == "abc,ca->a"
    assert equation(parse(",i->i", (0, 1))) == ",a->a"


def test_more_indices_than_letters():
    group = tuple(f"n{k}" for k in range(53))
    assert len(equation(Statement((group[:52],), (), Access(0)))) == 52 + 2
    with pytest.raises(ValueError, match="has 53 indices, more than there are letters"):
        write(Statement((group,), (), Access(0)))


@given(st.permutations(string.ascii_lowercase), st.sampled_from(["ik,kj->ij", "ii->i", "max: ij->j", "ij + j -> j"]))
def test_canonical_does_not_depend_on_letters(letters, text):
    head, _, rest = text.rpartition(": ")
    other = rest.translate(str.maketrans(string.ascii_lowercase, "".join(letters)))
    dims = [len(group) for group in rest.split("->")[0].replace("+", ",").replace(" ", "").split(",")]
    renamed = parse(f"{head}: {other}" if head else other, dims)
    assert canonical(renamed) == canonical(parse(text, dims)) == canonical(canonical(renamed))
