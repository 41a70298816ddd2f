"""The meaning of expressions on dense tensors, next to torch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.notation import parse

A = torch.tensor([[1.0, 2, 0], [0, 3, 4]])
X, Y = torch.tensor([1.0, 0, 2]), torch.tensor([10.0, 20])


def meaning(text, *tensors):
    return interpret(parse(text, [t.dim() for t in tensors]), tensors)


@pytest.mark.parametrize(
    "text, given, want",
    [
        ("ij,j->i", (A, X), [1, 8]),
        ("ij,j + i -> i", (A, X, Y), [11, 28]),
        ("ij + i -> ", (A, Y), 40),
        ("2 * (ij - i) -> i", (A, Y), [-14, -26]),
        ("max: ij->i", (A,), [2, 4]),
        ("mean: ij->j", (A,), [0.5, 2.5, 2]),
        ("min: ij->", (A,), 0),
        ("ij / sum(k) -> i", (A, X), [1, 7 / 3]),
        ("3 * i -> i", (Y,), [30, 60]),
    ],
)
def test_by_hand(text, given, want):
    torch.testing.assert_close(meaning(text, *given), torch.tensor(want, dtype=torch.float32))


def test_repeated_indices_are_diagonals():
    square = torch.arange(9.0).view(3, 3)
    assert meaning("ii->i", square).tolist() == [0, 4, 8]
    assert meaning("ii->", square).item() == 12
    cube = torch.arange(8.0).view(2, 2, 2)
    assert meaning("iii->i", cube).tolist() == [0, 7]


def test_a_result_does_not_share_memory_with_an_operand():
    x = A.clone()
    meaning("ij->ij", x).zero_()
    assert torch.equal(x, A)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1), (1, 3)])
def test_sizes(shape):
    x, v = torch.rand(shape), torch.rand(shape[1])
    torch.testing.assert_close(meaning("ij,j->i", x, v), x @ v)
    assert meaning("ij->ji", x).shape == shape[::-1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float16, torch.complex64])
def test_types_are_those_of_torch(dtype):
    x = torch.ones(2, 3, dtype=dtype)
    assert meaning("ij->i", x).dtype == x.sum(1).dtype
    assert meaning("0.5 * ij->ij", x).dtype == (0.5 * x).dtype


EQUATIONS = ["ik,kj->ij", "ik,kj->ji", "ij,ij->ij", "ij,kl->", "ij,kl->ik", "ij,jj->i"]


@given(st.sampled_from(EQUATIONS), st.tuples(*[st.integers(0, 3)] * 4))
def test_products_are_those_of_torch_einsum(equation, sizes):
    shapes = [[dict(zip("ijkl", sizes, strict=True))[v] for v in g] for g in equation.split("->")[0].split(",")]
    tensors = [torch.arange(1.0, 1 + torch.Size(s).numel(), dtype=torch.float64).view(s) for s in shapes]
    assert torch.equal(meaning(equation, *tensors), torch.einsum(equation, tensors))
