"""Statements cut into steps: by hand, and their results next to the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.steps import CASES, cases, steps


def listed(text, dims, sparse=True):
    return [(str(s.statement), s.operands) for s in steps(parse(text, dims), [sparse] * len(dims))]


def test_a_product_is_one_step():
    assert listed("ij,jk->ik", (2, 2)) == [("C[i, k] = sum over j of A[i, j] * B[j, k]", (0, 1))]


def test_a_sum_of_four_is_cut_into_halves():
    assert listed("i + i - i + i -> i", (1,) * 4) == [
        ("C[i] = A[i] + B[i]", (0, 1)),
        ("C[i] = neg(A[i]) + B[i]", (2, 3)),
        ("C[i] = A[i] + B[i]", (4, 5)),
    ]
    assert len(listed("i + i - i + i -> i", (1,) * 4, sparse=False)) == 1
    assert len(listed("i + i + i -> i", (1,) * 3)) == 1


@pytest.mark.parametrize(
    "text, want", [("i * i + i -> i", 3), ("exp(i) * i -> i", 2), ("max(i, i) -> i", 3), ("2 * i -> i", 1)]
)
def test_cases(text, want):
    tree = parse(text, [1] * text.split("->")[0].count("i")).tree
    assert cases(tree, [True] * 5) == want
    assert cases(tree, [False] * 5) == 1


TEXTS = [
    "ij,j + i -> i", "ij + ij + ij - ij + ij -> i", "mean: ij + ij + ij + ij -> i", "max: ij + ij - ij + ij -> j",
    "(ij + ij) * (ij + ij + ij) -> i", "ij / sum(ij) + i -> ij", "ij / sum(square(ik)) -> ij",
    "relu(ij + ij - ij + ij) - 1 -> i",
    "mean: ij + i -> ", "min: max(ij + ij, ij - ij) + ij -> ",
]  # fmt: skip


@given(st.sampled_from(TEXTS), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99), st.booleans())
def test_steps_give_the_result_of_the_whole(text, rows, columns, seed, sparse):
    torch.manual_seed(seed)
    shape = {"i": rows, "j": columns, "k": 2}
    words = "".join(c if c in "ijk" else " " for c in _bare(text)).split()
    known = [torch.randint(-3, 4, [shape[v] for v in word]).double() + 0.5 for word in words]
    statement = parse(text, [len(w) for w in words])
    want = interpret(statement, known)
    for step in steps(statement, [sparse] * len(words)):
        assert not sparse or cases(step.statement.tree, [True] * len(step.operands)) <= CASES
        known.append(interpret(step.statement, [known[n] for n in step.operands]))
    torch.testing.assert_close(known[-1].expand_as(want), want)


def _bare(text):
    """The left side without the names of functions and reductions."""
    text = text.split("->")[0]
    for word in ("mean:", "max:", "min:", "max", "relu", "sum", "square"):
        text = text.replace(word, " ")
    return text
