"""What every level is: the defaults, ranks and starts of sorted entries, and a new kind written from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings

import gossamer as gs
from gossamer.formats.levels import KINDS, Arrays, Compressed, Dense, Lanes, Level, Packed, Slots, Unpacked, check
from gossamer.formats.levels.base import rank, require, starts
from tests.formats import _draw
from tests.formats._by_hand import ints


def test_where_a_coordinate_starts_by_hand():
    #               new    same   other coordinate, other parent with the same coordinate
    assert starts(ints(0, 0, 0, 1), ints(1, 1, 5, 5)).tolist() == [True, False, True, True]
    assert starts(ints(), ints()).tolist() == [] and starts(ints(3), ints(0)).tolist() == [True]


def test_ranks_by_hand():
    assert rank(ints(0, 0, 0, 2, 2, 5), ints(1, 1, 5, 0, 9, 9)).tolist() == [0, 0, 1, 0, 1, 0]
    assert rank(ints(), ints()).tolist() == []


def test_order_follows_from_the_walk():
    assert Level().ordered and Compressed().ordered  # no walk: in the order of pack
    assert not Slots().ordered  # coordinates in another order
    assert not Lanes().ordered  # positions in another order


def test_defaults_promise_nothing():
    level = Level()
    assert level.merges and level.numbers({}) == {} and level.prepare(ints(1), 1, 1, torch.int32) == {}
    assert level.check_sizes(1, 1) is level.check({}, 1, 1) is level.stored({}, 1, 1) is None
    for missing in (
        lambda: level.pack(ints(), ints(), 0, 0),
        lambda: level.unpack({}, 0, 0, torch.device("cpu")),
        lambda: level.positions({}, 0, 0),
    ):
        with pytest.raises(NotImplementedError):
            missing()


def test_require():
    require(True, "never said")
    with pytest.raises(ValueError, match=r"^said$"):
        require(False, "said")


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


def test_a_new_level_by_hand():
    x = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0, 6.0]])
    t = gs.from_dense(x, gs.Format("dense", Run()))
    assert t.values().tolist() == [1.0, 0.0, 2.0, 5.0, 6.0]  # the gap inside a run is stored
    assert t.nnz == 5 and torch.equal(t.to_dense(), x)
    assert torch.equal((t @ torch.ones(5)).detach(), x.sum(1))
    assert gs.formats.as_format(repr(t.format)) == t.format


@settings(max_examples=25)
@given(_draw.dense())
def test_a_new_level_holds_any_tensor(x: torch.Tensor):
    t = gs.from_dense(x, gs.Format("dense", Run()))
    assert torch.equal(t.to_dense(), x)
    assert torch.equal(t.to_format(gs.COO()).to_dense(), x)
    assert torch.equal(_draw.matrix_to_dense(t).reshape(-1), x.reshape(-1))


def test_kinds_are_known_by_their_names():
    assert KINDS["Dense"] is Dense and KINDS["Run"] is Run
    check(Run(), {"pos": ints(0), "start": ints()}, 0, 4)
