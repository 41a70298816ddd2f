"""Affine access: where it is read, and where a + is a sum."""

import pytest

from gossamer.compiler.language.affine import Window, affine


def test_windows():
    found = affine("o c p q, b c 2 * y + p x+3*q -> b o y x", 2)
    assert found.expression == "o c p q, b c y p x q -> b o y x"
    assert found.windows == (Window(1, 2, "y", "p", 2, 1), Window(1, 3, "x", "q", 1, 3))


@pytest.mark.parametrize(
    ("text", "operands"),
    [("ij,j + i -> i", 3), ("ij + ij -> ij", 2), ("ij,jk->ik", 2), ("relu(i+k), k -> i", 2), ("max: i+k, k -> i", 2),
     ("i+k+l, k -> i", 2), ("i+k, k", 2)],
)  # fmt: skip
def test_none(text, operands):
    assert affine(text, operands) is None
