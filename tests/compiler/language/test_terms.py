"""Statements in terms that sum different indices."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.terms import terms


def split(text, *dimensions):
    found = terms(parse(text, dimensions))
    return None if found is None else ([str(part.statement) for part in found.parts], str(found.whole))


def test_by_hand():
    assert split("ij,j + i -> i", 2, 1, 1) == (
        ["C[i] = sum over j of A[i, j] * B[j]", "B[i] = A[i]"], "C[i] = A[i] + B[i]",
    )  # fmt: skip
    assert split("ij,j - i -> i", 2, 1, 1)[0][1] == "B[i] = neg(A[i])"
    assert split("ij + ij -> i", 2, 2) is None and split("ij + i -> ij", 2, 1) is None


def test_operands_of_the_parts():
    found = terms(parse("i - ij,j -> i", (1, 2, 1)))
    assert [part.operands for part in found.parts] == [(0,), (1, 2)] and found.operands == (-1, -2)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("ij - i -> i", lambda a, b, v: a.sum(1) - v),
        ("i - ij -> i", lambda a, b, v: v - a.sum(1)),
        ("ij - (i - jk) -> i", lambda a, b, v: a.sum(1) - (v - b.sum())),
        ("2 * (ij - i) -> i", lambda a, b, v: 2 * (a.sum(1) - v)),
        ("-(ij + i) -> i", lambda a, b, v: -(a.sum(1) + v)),
        ("(ij - i) * (i - 1) -> i", lambda a, b, v: (a.sum(1) - v) * (v - 1)),
        # Two factors have j: multiplied out, the last of the four products does not.
        ("(ij - i) * (ij + i) -> i", lambda a, b, v: (a * a).sum(1) + a.sum(1) * v - v * a.sum(1) - v * v),
        ("3 * (i + ij) * -(ij - i) -> i", lambda a, b, v: -3 * ((a * a).sum(1) + v * a.sum(1) - v * a.sum(1) - v * v)),
    ],
)
def test_signs_are_kept(text, want):
    torch.manual_seed(0)
    a, b, v = torch.randn(5, 4).double(), torch.randn(4, 3).double(), torch.randn(5).double()
    given = {"ij": gs.from_dense(a, gs.CSR()), "jk": b, "i": v}
    names = "".join(c if c.isalpha() else " " for c in text.split("->")[0]).split()
    torch.testing.assert_close(torch.as_tensor(gs.einsum(text, *(given[n] for n in names))), want(a, b, v))
    dense = {"ij": a, "jk": b, "i": v}
    statement = parse(text, [dense[n].dim() for n in names])
    torch.testing.assert_close(interpret(statement, [dense[n] for n in names]), want(a, b, v))
