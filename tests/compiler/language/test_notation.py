import pytest
import torch

from gossamer.compiler import NotationError, interpret, parse
from gossamer.compiler.language.notation import parse_groups


@pytest.mark.parametrize(
    "text, dims, inputs, output",
    [
        ("ik,kj->ij", (2, 2), (("i", "k"), ("k", "j")), ("i", "j")),
        (" i k , k j -> i j ", (2, 2), (("i", "k"), ("k", "j")), ("i", "j")),
        ("ba,bc", (2, 2), (("b", "a"), ("b", "c")), ("a", "c")),  # implied: once, in the order of the alphabet
        ("ii", (2,), (("i", "i"),), ()),
        ("...ij,...jk", (3, 2), (("_0", "i", "j"), ("j", "k")), ("_0", "i", "k")),
        ("i...->...i", (3,), (("i", "_0", "_1"),), ("_0", "_1", "i")),
        ("...i->i", (3,), (("_0", "_1", "i"),), ("i",)),  # what '...' stands for is summed, as in torch
        (",ij->ij", (0, 2), ((), ("i", "j")), ("i", "j")),
        ("->", (0,), ((),), ()),
        ("Ab,bA->", (2, 2), (("A", "b"), ("b", "A")), ()),
        ("row col, col -> row", (2, 1), (("row", "col"), ("col",)), ("row",)),
        ("ij k, k -> ij", (3, 1), (("i", "j", "k"), ("k",)), ("i", "j")),  # as many letters as dimensions: no words
        ("ij k, k -> ij", (2, 1), (("ij", "k"), ("k",)), ("ij",)),
        ("... in_1, in_1 out -> ... out", (3, 2), (("_0", "_1", "in_1"), ("in_1", "out")), ("_0", "_1", "out")),
    ],
)
def test_indices(text, dims, inputs, output):
    statement = parse(text, dims)
    assert statement.inputs == inputs
    assert statement.output == output


@pytest.mark.parametrize(
    "text, tree",
    [
        ("ij + ij -> ij", "A + B"),
        ("ij - ij * ij -> ij", "A - B * C"),
        ("(ij - ij) * ij -> ij", "(A - B) * C"),
        ("relu(ij) * 2 -> ij", "relu(A) * 2"),
        ("max(ij, -ij) -> ij", "max(A, neg(B))"),
        ("ij, jk + ik -> ik", "A * B + C"),
    ],
)
def test_trees(text, tree):
    assert str(parse(text, [len(g) for g in parse_groups(text)]).tree) == tree


@pytest.mark.parametrize(
    "text, dims, why",
    [
        ("ij,jk->il", (2, 2), "the output has 'l', which no operand has"),
        ("ij->ii", (2,), "the output has 'i' twice"),
        ("ij,jk->ik->i", (2, 2), "more than one '->'"),
        ("ij,jk", (2,), "2 groups of indices for 1 operands"),
        ("ijk->i", (2,), "operand 0 has 2 dimensions, but 'ijk' names 3"),
        ("...ijk->i", (2,), "fewer than the indices"),
        ("......i->i", (3,), "more than one '...'"),
        ("i1->i", (1,), "the output has 'i', which no operand has"),
        ("cosh(ij)->ij", (2,), "unknown function 'cosh'; known are max, min, neg, abs"),
        ("max(ij)->ij", (2,), "max takes 2 argument(s), not 1"),
        ("relu(ij->ij", (2,), "not closed"),
        ("prod: ij->i", (2,), "the reduction 'prod' is not one of sum, max, min, mean"),
        ("ij+->ij", (2,), "it ends where an operand should be"),
        ("ij->i.j", (2,), "must be indices"),
    ],
)
def test_errors_repeat_the_expression_and_say_why(text, dims, why):
    with pytest.raises(NotationError) as error:
        parse(text, dims)
    assert repr(text) in str(error.value) and why in str(error.value)


def test_an_expression_must_be_text():
    with pytest.raises(TypeError, match="'ik,kj->ij' is needed, not 3"):
        parse(3, ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["ij,jk->ik", "ij->ji", "ii->i", "ij,ij->", "i,j->ij", "ijk->j", "ij,jk,kl->il", "...i,...i->...", "iij,ji->j"],
)
def test_the_interpreter_means_what_torch_einsum_means(text):
    sizes = {"i": 3, "j": 4, "k": 2, "l": 5, ".": 1}
    tensors = [
        torch.randn([sizes[v] for v in "".join(g).replace("...", "jk")], dtype=torch.float64)
        for g in parse_groups(text)
    ]
    got = interpret(parse(text, [t.dim() for t in tensors]), tensors)
    assert torch.allclose(got, torch.einsum(text, *tensors))


def test_reductions():
    x = torch.tensor([[1.0, -2.0], [0.0, 5.0]])
    assert interpret(parse("max: ij->i", (2,)), [x]).tolist() == [1.0, 5.0]
    assert interpret(parse("min: ij->j", (2,)), [x]).tolist() == [0.0, -2.0]
    assert interpret(parse("mean: ij->", (2,)), [x]).item() == 1.0
