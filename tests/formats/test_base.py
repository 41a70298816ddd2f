"""Format: names and stacks, what prints and reads back, and a format with a map of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given

import gossamer as gs
from gossamer.formats import as_format
from gossamer.formats.base import check_size
from gossamer.formats.levels import Compressed, Fixed
from gossamer.formats.levels import Dense as DenseLevel
from tests.formats import _draw

SAME = [
    (gs.CSR(), gs.Format("dense", "compressed")),
    (gs.CSR(), gs.Format("dense", "compressed", order=(0, 1))),
    (gs.CSR(), gs.Format(DenseLevel(), Compressed())),
    (gs.CSC(), gs.Format("dense", "compressed", order=(1, 0))),
    (gs.DCSR(), gs.Format("compressed", "compressed")),
    (gs.ELL(), gs.Format("dense", "fixed")),
    (gs.ELL(3), gs.Format("dense", Fixed(3))),
]


@pytest.mark.parametrize(("name", "stack"), SAME)
def test_names_equal_their_stacks(name: gs.Format, stack: gs.Format) -> None:
    assert name == stack and hash(name) == hash(stack) and len({name, stack}) == 1


def test_different_formats_differ() -> None:
    blocks = [gs.BSR((2, 2)), gs.BSR((2, 2), order=(1, 0)), gs.BSR((2, 4))]
    stacks = [gs.Format("compressed"), gs.Format("dense", "dense"), gs.Format("compressed", "compressed", order=(1, 0))]
    every = [gs.Dense(), *_draw.NAMED, gs.ELL(2), *blocks, *stacks]
    for a, b in itertools.combinations(every, 2):
        assert a != b
    assert gs.CSR() != "CSR()" and gs.CSR() != 1


def test_stacks_are_given_their_names() -> None:
    assert repr(gs.Format("dense", "compressed").named()) == "CSR()"
    assert isinstance(as_format(gs.Format("dense", "compressed", order=(1, 0))), gs.CSC)
    assert repr(gs.Format("dense", Fixed(2))) == "Format('dense', Fixed(width=2))"


@given(_draw.formats())
def test_printed_forms_read_back(format: gs.Format) -> None:
    assert as_format(repr(format)) == format
    assert as_format(str(format)).order == format.order


def test_as_format() -> None:
    assert as_format("CSR") == as_format(gs.CSR) == as_format("CSR()") == gs.CSR()
    assert as_format("BSR((2, 4), order=(1, 0))") == gs.BSR((2, 4), order=(1, 0))
    assert as_format("Format('dense', Fixed(3), 'dense')") == gs.Format("dense", Fixed(3), "dense")
    for wrong in (3, None, ["CSR"]):
        with pytest.raises(TypeError, match=r"a format such as gs\.CSR"):
            as_format(wrong)
    for text in ("SCR()", "Format()", "CSR(1)", "open('x')", "Format('dense', open('x'))"):
        with pytest.raises(ValueError, match=r"unknown format .*known are BSR, COO"):
            as_format(text)


@pytest.mark.parametrize("order", [(0,), (0, 0), (1, 2), (0, 1, 2), (1.0, 0.0), (True, False)])
def test_order_must_be_a_permutation(order: tuple) -> None:
    with pytest.raises(ValueError, match="permutation"):
        gs.Format("dense", "compressed", order=order)


def test_a_format_needs_a_level() -> None:
    with pytest.raises(ValueError, match="at least one level"):
        gs.Format()
    with pytest.raises(ValueError, match="unknown level 'squeezed'"):
        gs.Format("dense", "squeezed")


def test_dimensions_are_flattened_or_added() -> None:
    csr = gs.CSR()
    assert csr.group_sizes((5, 2, 3)) == (5, 6) and csr.group_sizes((7,)) == (1, 7) and csr.group_sizes(()) == (1, 1)
    assert gs.CSC().level_sizes((5, 2, 3)) == (6, 5)
    assert gs.COO().level_sizes((5, 2, 3)) == (5, 2, 3)
    assert gs.BSR((2, 4)).level_sizes((5, 2, 3)) == (3, 2, 2, 4)


def test_which_formats_store_whole_fibres() -> None:
    assert all(f.any_pattern for f in _draw.NAMED)
    whole = [gs.BSR((2, 2)), gs.Format("compressed", "dense"), gs.Format("dense", "dense")]
    assert not any(f.any_pattern for f in whole)


def test_check_size() -> None:
    assert check_size((2, 3), "the shape") == 6 and check_size((), "the shape") == 1
    for wrong in ((-1,), (2.0,), (2**62, 2), (0, 2**62, 2)):
        with pytest.raises(ValueError, match="the shape"):
            check_size(wrong, "the shape")


# -- a format with a map of its own, in less than thirty lines


class Diagonal(gs.Format):
    """Diagonals in use, each stored whole: coordinate (i, j) lies on diagonal j - i + rows - 1, at row i."""

    any_pattern = False

    def __init__(self) -> None:
        super().__init__("compressed", "dense")

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows, cols = self.group_sizes(shape)
        return (max(rows + cols - 1, 0), rows)

    def to_levels(self, coords: list[torch.Tensor], shape: Sequence[int]) -> list[torch.Tensor]:
        i, j = coords
        return [j - i + self.group_sizes(shape)[0] - 1, i]

    def from_levels(self, coords: list[torch.Tensor], shape: Sequence[int]) -> list[torch.Tensor]:
        diagonal, i = coords
        return [i, diagonal + i - self.group_sizes(shape)[0] + 1]


class Reversed(gs.CSR):
    """The columns from right to left: a map that fills the same levels as CSR, and is not CSR."""

    def to_levels(self, coords: list[torch.Tensor], shape: Sequence[int]) -> list[torch.Tensor]:
        return [coords[0], self.group_sizes(shape)[1] - 1 - coords[1]]

    from_levels = to_levels

    __repr__ = gs.Format.__repr__

    def matrix(self, structure: object) -> None:
        return None


def test_diagonals_by_hand() -> None:
    x = torch.tensor([[1.0, 5.0, 0.0], [0.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    t = gs.from_dense(x, Diagonal())
    assert t.structure.arrays["crd0"].tolist() == [2, 3]
    assert t.values().tolist() == [[1.0, 2.0, 3.0], [5.0, 6.0, 0.0]]  # the corner outside is padding
    assert t.nnz == 5 and torch.equal(t.to_dense(), x)
    with pytest.raises(ValueError, match=r"Diagonal\(\).*outside the pattern is not zero"):
        gs.SparseTensor.from_arrays(Diagonal(), (3, 3), torch.ones(2, 3), t.structure.arrays)


@pytest.mark.parametrize("format", [Diagonal(), Reversed()])
def test_own_maps_are_formats_of_their_own(format: gs.Format) -> None:
    assert format == type(format)() and hash(format) == hash(type(format)())
    assert format not in (gs.CSR(), gs.Format("compressed", "dense"))
    assert as_format(repr(format)) == format and format.transposed() is None


@given(_draw.dense((0, 3)))
def test_own_maps_hold_any_tensor(x: torch.Tensor) -> None:
    for format in (Diagonal(), Reversed()):
        t = gs.from_dense(x, format)
        t.structure.check(t.values())
        assert torch.equal(t.to_dense(), x)
        assert torch.equal(t.to_format(gs.CSR()).to_dense(), x)
        assert torch.equal(gs.from_dense(x, gs.COO()).to_format(format).to_dense(), x)
        assert torch.equal(_draw.matrix_to_dense(t).reshape(-1), x.reshape(-1))
