"""Structures as the compiler sees them: as stored, and repacked in another order."""

import itertools

import pytest
import torch
from hypothesis import given

import gossamer as gs
from gossamer.compiler.run.views import fans_for, native, repacked, stack_for, without_empty_rows
from gossamer.formats.levels import Compressed, Dense
from tests.formats._draw import blocked, dense, stacks

A = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4]])


def test_csr_as_it_is_stored():
    structure = gs.from_dense(A, gs.CSR()).structure
    view = native(structure)
    assert view.arrays is structure.arrays and view.index is None and native(structure) is view
    assert view.sizes == (3, 4) and view.parts == ((0, 1), (1, 1)) and not view.guards and not view.cut
    assert view.fans == (3.0, 4 / 3) and view.entries == 4
    stack = view.stack(("i", "j"))
    assert (
        stack.vars == ("i", "j") and stack.levels[0].full and stack.levels[1].arrays == (("pos", "int"), ("crd", "int"))
    )


def test_blocks_cut_dimensions():
    view = native(gs.from_dense(A, gs.BSR((2, 2))).structure)
    assert view.cut and view.parts == ((0, 2), (1, 2), (0, 1), (1, 1)) and view.sizes == (2, 2, 2, 2)
    assert view.guards == {0}  # two blocks of two rows, for three


@pytest.mark.parametrize("format", [gs.COO()], ids=str)
def test_what_is_not_walked_as_it_is_stored(format):
    assert native(gs.from_dense(A, format).structure) is None


def test_columns_first_by_hand():
    view = repacked(gs.from_dense(A, gs.CSR()).structure, (1, 0))
    assert view.arrays["pos1"].tolist() == [0, 1, 2, 3, 4] and view.arrays["crd1"].tolist() == [0, 2, 0, 2]
    assert view.index.tolist() == [0, 2, 1, 3] and view.parts == ((1, 1), (0, 1))
    assert view.nbytes() > 0


def test_few_entries_of_many_rows_are_compressed():
    assert stack_for((0, 1), (10_000, 5), 2) == (Compressed(), Compressed())
    assert stack_for((0, 1), (4000, 5), 2)[0] == Dense() and stack_for((0,), (5,), 3) == (Compressed(),)
    assert fans_for((0, 1), (10, 100), 50) == (10.0, 5.0) and fans_for((0, 1), (10, 2), 50) == (10.0, 2.0)


def read(view, values, shape):
    """The dense tensor of a repacked view, level by level."""
    out, flat = torch.zeros(shape), values.reshape(-1)
    at = [((), 0)]
    for n, (level, size) in enumerate(zip(view.levels, view.sizes, strict=True)):
        if level.full:
            at = [((*coords, c), p * size + c) for coords, p in at for c in range(size)]
        else:
            pos, crd = view.arrays[f"pos{n}"].tolist(), view.arrays[f"crd{n}"].tolist()
            at = [((*coords, crd[q]), q) for coords, p in at for q in range(pos[p], pos[p + 1])]
    for coords, p in at:
        place = [0] * len(shape)
        for (d, _), c in zip(view.parts, coords, strict=True):
            place[d] = c
        out[tuple(place)] = flat[p if view.index is None else view.index[p]]
    return out


@given(x=dense(dims=(1, 3)), format=blocked() | stacks())
def test_any_format_in_any_order(x, format):
    x = x.float()
    try:
        a = gs.from_dense(x, format)
    except ValueError:
        return  # a level that does not hold these entries
    for order in itertools.permutations(range(x.dim())):
        view = repacked(a.structure, order)
        assert torch.equal(read(view, a.values(), x.shape), x), order


def test_rows_with_entries_alone():
    x = torch.zeros(5000, 4)
    x[7], x[4999] = torch.tensor([1.0, 0, 2, 0]), torch.tensor([0, 3.0, 0, 4])
    structure = gs.from_dense(x, gs.CSR()).structure
    view = without_empty_rows(structure)
    assert {n: a.tolist() for n, a in view.arrays.items()} == {
        "pos0": [0, 2], "crd0": [7, 4999], "pos1": [0, 2, 4], "crd1": [0, 2, 1, 3]
    }  # fmt: skip
    assert view.fans == (2.0, 2.0) and view.index is None and without_empty_rows(structure) is view
    assert view.arrays["crd1"] is structure.arrays["crd1"]
    for other in (gs.from_dense(A, gs.CSR()), gs.from_dense(x, gs.DCSR()), gs.from_dense(x, gs.ELL())):
        assert without_empty_rows(other.structure) is None
    empty = without_empty_rows(gs.from_dense(torch.zeros(5000, 4), gs.CSR()).structure)
    assert empty.arrays["pos1"].tolist() == [0] and empty.fans == (0.0, 0.0)


@pytest.mark.parametrize(
    "expression", ["ij,j->i", "ij,jk->ik", "ij->i", "max: ij->i", "ij + i -> i", "ij,j->", "ji,jk->ik"]
)
def test_without_empty_rows_results_are_the_same(expression):
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(6000, 40, dtype=torch.float64)
    x.view(-1)[torch.randint(240000, (900,), generator=generator)] = -1.5
    a = gs.from_dense(x, gs.CSR())
    shapes = {"j": (40,), "jk": (40, 3), "i": (6000,)}
    groups = expression.split(": ")[-1].split(" ->")[0].split("->")[0].replace("+", ",").split(",")[1:]
    others = [torch.randn(*shapes[g.strip()], generator=generator, dtype=torch.float64) for g in groups]
    if expression == "ji,jk->ik":
        others = [torch.randn(6000, 3, generator=generator, dtype=torch.float64)]
    from gossamer.compiler import interpret, parse

    want = interpret(parse(expression, [2, *(o.dim() for o in others)]), [x, *others])
    torch.testing.assert_close(gs.einsum(expression, a, *others), want)
