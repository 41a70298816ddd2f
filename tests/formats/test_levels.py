"""Each kind of level by hand: what it stores, where the entries go, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given

import gossamer as gs
from gossamer.formats.levels import Arrays, Bitmap, Compressed, Dense, Fixed, Level, Packed, Singleton, Unpacked, check
from gossamer.formats.levels import as_level as to_level
from tests.formats import _draw

CPU = torch.device("cpu")


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.long)


def lists(arrays: dict[str, torch.Tensor]) -> dict[str, list]:
    return {name: array.tolist() for name, array in arrays.items()}


# entries (parent, coordinate): (0, 1), (0, 3), (2, 0) below 3 parents, in a dimension of 4
PARENT, COORD = ints(0, 0, 2), ints(1, 3, 0)


@pytest.mark.parametrize(
    ("level", "arrays", "position", "n"),
    [
        (Dense(), {}, [1, 3, 8], 12),
        (Bitmap(), {"mask": [0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]}, [1, 3, 8], 12),
        (Compressed(), {"pos": [0, 2, 2, 3], "crd": [1, 3, 0]}, [0, 1, 2], 3),
        (Compressed(unique=False), {"pos": [0, 2, 2, 3], "crd": [1, 3, 0]}, [0, 1, 2], 3),
        (Fixed(), {"crd": [[1, 3], [-1, -1], [0, -1]]}, [0, 1, 4], 6),
        (Fixed(3), {"crd": [[1, 3, -1], [-1, -1, -1], [0, -1, -1]]}, [0, 1, 6], 9),
    ],
)
def test_pack_and_unpack(level: Level, arrays: dict, position: list, n: int) -> None:
    stored, place, positions = level.pack(PARENT, COORD, 3, 4)
    assert lists({k: a.int() if a.dtype == torch.bool else a for k, a in stored.items()}) == arrays
    assert place.tolist() == position and positions == n == level.positions(stored, 3, 4)
    check(level, stored, 3, 4)
    parent, coord, real = level.unpack(stored, 3, 4, CPU)
    assert parent.numel() == coord.numel() == n
    assert parent[place].tolist() == PARENT.tolist() and coord[place].tolist() == COORD.tolist()
    assert real is None or real.nonzero().squeeze(1).tolist() == position


def test_a_coordinate_of_many_entries_is_stored_once() -> None:
    arrays, place, n = Compressed().pack(ints(0, 0, 0), ints(1, 1, 2), 1, 4)
    assert lists(arrays) == {"pos": [0, 2], "crd": [1, 2]} and place.tolist() == [0, 0, 1] and n == 2
    arrays, place, n = Compressed(unique=False).pack(ints(0, 0, 0), ints(1, 1, 2), 1, 4)
    assert lists(arrays) == {"pos": [0, 3], "crd": [1, 1, 2]} and place.tolist() == [0, 1, 2] and n == 3
    arrays, place, n = Fixed().pack(ints(0, 0, 0), ints(1, 1, 2), 1, 4)
    assert lists(arrays) == {"crd": [[1, 2]]} and place.tolist() == [0, 0, 1] and n == 2


def test_singleton_needs_one_entry_below_each_parent() -> None:
    arrays, place, n = Singleton().pack(ints(0, 1, 2), ints(3, 0, 3), 3, 4)
    assert lists(arrays) == {"crd": [3, 0, 3]} and place.tolist() == [0, 1, 2] and n == 3
    for parent, coord in ((ints(0, 1), ints(0, 1)), (ints(0, 0, 1), ints(0, 1, 2)), (ints(), ints())):
        with pytest.raises(ValueError, match="one entry below each parent"):
            Singleton().pack(parent, coord, 3, 4)


def test_one_entry_a_row_by_singletons() -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    t = gs.from_dense(x, gs.Format("dense", "singleton"))
    assert t.structure.arrays["crd1"].tolist() == [1, 0] and torch.equal(t.to_dense(), x)
    with pytest.raises(ValueError, match="one entry below each parent"):
        gs.from_dense(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), gs.Format("dense", "singleton"))


def test_fixed_width_is_a_promise() -> None:
    with pytest.raises(ValueError, match="needs 2 places, but the level has a width of 1"):
        Fixed(1).pack(PARENT, COORD, 3, 4)
    for width in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="must be an integer from 0"):
            Fixed(width)


@pytest.mark.parametrize(
    ("level", "arrays", "message"),
    [
        (Compressed(), {"pos": ints(0, 1), "crd": ints(0)}, "pos has 2 entries, must have 4"),
        (Compressed(), {"pos": ints(1, 1, 1, 1), "crd": ints(0)}, "pos starts at 1"),
        (Compressed(), {"pos": ints(0, 1, 1, 2), "crd": ints(0)}, r"crd has 1 entries, must have 2 \(pos\[parents\]\)"),
        (Compressed(), {"pos": ints(0, 2, 1, 3), "crd": ints(0, 1, 2)}, "pos runs backwards"),
        (Compressed(), {"pos": ints(0, 2, 2, 2), "crd": ints(0, 4)}, "coordinates 0 .. 4, must lie in 0 .. 3"),
        (Compressed(), {"pos": ints(0, 2, 2, 2), "crd": ints(-1, 0)}, "coordinates -1 .. 0"),
        (Compressed(), {"pos": ints(0, 2, 2, 2), "crd": ints(1, 1)}, "not strictly ascending"),
        (Compressed(unique=False), {"pos": ints(0, 2, 2, 2), "crd": ints(2, 1)}, "not ascending"),
        (Compressed(), {"pos": ints(0, 0, 0, 0)[None], "crd": ints()}, "pos has 2 dimensions"),
        (Compressed(), {"pos": ints(0, 0, 0, 0).float(), "crd": ints()}, "pos is torch.float32"),
        (Singleton(), {"crd": ints(0, 1)}, "crd has 2 entries, must have 3"),
        (Singleton(), {"crd": ints(0, 1, 7)}, "coordinates 0 .. 7"),
        (Fixed(), {"crd": ints(0, 1, 2)}, "must be .3, width."),
        (Fixed(2), {"crd": ints(0, 1, 2)[:, None]}, "1 wide, must be 2"),
        (Fixed(), {"crd": ints(0, 1, 9)[:, None]}, "coordinates 0 .. 9, must lie in 0 .. 3"),
        (Fixed(), {"crd": torch.tensor([[0, 1], [-1, 1], [-1, -1]])}, "with its padding at the end"),
        (Fixed(), {"crd": torch.tensor([[0, 1], [1, 1], [-1, -1]])}, "not strictly ascending"),
        (Bitmap(), {"mask": torch.ones(11, dtype=torch.bool)}, "mask has 11 entries, must have 12"),
        (Bitmap(), {"mask": torch.ones(12)}, "mask is torch.float32"),
        (Bitmap(), {"mask": torch.ones(4, 3, dtype=torch.bool)}, "mask has 2 dimensions, must have 1"),
    ],
)
def test_broken_promises(level: Level, arrays: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(level, arrays, 3, 4)


def test_a_step_down_between_parents_is_fine() -> None:
    check(Compressed(), {"pos": ints(0, 1, 1, 2), "crd": ints(3, 0)}, 3, 4)
    check(Compressed(), {"pos": ints(0, 0, 0, 0), "crd": ints()}, 3, 4)
    check(Compressed(), {"pos": ints(0), "crd": ints()}, 0, 4)


def test_names() -> None:
    assert to_level("compressed-nonunique") == Compressed(unique=False)
    assert to_level(Fixed(2)) == Fixed(2)
    for wrong in ("squeezed", 5, None, ["dense"]):
        with pytest.raises(ValueError, match="unknown level"):
            to_level(wrong)


# -- a new kind of level: runs of neighbours, each stored as its first coordinate and its length


@dataclass(frozen=True)
class Run(Level):
    """One run of neighbouring coordinates below each parent: ``start[p] .. start[p] + pos[p + 1] - pos[p]``."""

    arrays: ClassVar[tuple[str, ...]] = ("pos", "start")

    def pack(self, parent: torch.Tensor, coord: torch.Tensor, parents: int, size: int) -> Packed:
        big = torch.full((parents,), size)
        low = big.scatter_reduce(0, parent, coord, "amin")
        high = torch.full((parents,), -1).scatter_reduce(0, parent, coord, "amax")
        pos = torch.cat([torch.zeros(1, dtype=torch.long), (high - low + 1).clamp(min=0).cumsum(0)])
        return {"pos": pos, "start": low}, pos[parent] + coord - low[parent], int(pos[-1])

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, start = arrays["pos"].long(), arrays["start"].long()
        parent = torch.repeat_interleave(torch.arange(parents), pos.diff())
        return parent, torch.arange(int(pos[-1])) - pos[parent] + start[parent], None

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return int(arrays["pos"][-1])


def test_a_new_level_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0, 6.0]])
    t = gs.from_dense(x, gs.Format("dense", Run()))
    assert t.values().tolist() == [1.0, 0.0, 2.0, 5.0, 6.0]  # the gap inside a run is stored
    assert t.nnz == 5 and torch.equal(t.to_dense(), x)
    assert torch.equal((t @ torch.ones(5)).detach(), x.sum(1))
    assert gs.formats.as_format(repr(t.format)) == t.format


@given(_draw.dense())
def test_a_new_level_holds_any_tensor(x: torch.Tensor) -> None:
    t = gs.from_dense(x, gs.Format("dense", Run()))
    assert torch.equal(t.to_dense(), x)
    assert torch.equal(t.to_format(gs.COO()).to_dense(), x)
    assert torch.equal(_draw.matrix_to_dense(t).reshape(-1), x.reshape(-1))
