"""The singleton level: one coordinate below each parent."""

import pytest
import torch

import gossamer as gs
from gossamer.formats.levels import Singleton, check
from tests.formats._by_hand import ints, lists, there_and_back


def test_entries_by_hand():
    arrays, place, places = there_and_back(Singleton(), [(0, 3), (1, 0), (2, 3)], 3, 4)
    assert lists(arrays) == {"crd": [3, 0, 3]} and place == [0, 1, 2] and places == 3
    assert not Singleton().merges


def test_one_entry_a_row_of_a_tensor():
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    t = gs.from_dense(x, gs.Format("dense", "singleton"))
    assert t.structure.arrays["crd1"].tolist() == [1, 0] and torch.equal(t.to_dense(), x)


def test_no_parents():
    assert there_and_back(Singleton(), [], 0, 4)[1:] == ([], 0)


@pytest.mark.parametrize(("parent", "coord"), [((0, 1), (0, 1)), ((0, 0, 1), (0, 1, 2)), ((), ())])
def test_another_number_of_entries_is_refused(parent, coord):
    with pytest.raises(ValueError, match="one entry below each parent: put it below 'compressed-nonunique'"):
        Singleton().pack(ints(*parent), ints(*coord), 3, 4)
    with pytest.raises(ValueError, match="one entry below each parent"):
        gs.from_dense(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), gs.Format("dense", "singleton"))


def test_counts_are_checked_before_arrays_are_prepared():
    assert Singleton().prepare(ints(1, 1), 2, 4, torch.int32)["crd"].dtype is torch.int32
    assert Singleton().prepare(ints(1).expand(5), 5, 4, torch.int64)["crd"].shape == (5,)
    for counts in (ints(1, 2), ints(0, 1), ints(2).expand(2)):
        with pytest.raises(ValueError, match="one entry below each parent"):
            Singleton().prepare(counts, 2, 4, torch.int64)


@pytest.mark.parametrize(
    ("crd", "message"), [(ints(0, 1), "crd has 2 entries, must have 3"), (ints(0, 1, 7), "coordinates 0 .. 7")]
)
def test_broken_promises(crd, message):
    with pytest.raises(ValueError, match=message):
        check(Singleton(), {"crd": crd}, 3, 4)
