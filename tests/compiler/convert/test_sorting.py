"""Keys are sorted by some of their bits, stably; those that are there twice become one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import Layout, Target
from gossamer.compiler.convert.sorting import Keys, in_order, merged, sorters
from gossamer.formats.levels import Compressed
from tests.compiler.convert.interpreted import interpreted


def layout(*sizes):
    return Layout.of(Target((Compressed(),) * len(sizes), sizes, tuple(Cut(d) for d in range(len(sizes))), sizes))


def keys(values, levels, where=None, dtype=torch.int32):
    where = None if where is None else torch.tensor(where, dtype=torch.int32)
    return Keys(torch.tensor([*values, 0], dtype=dtype), where, len(values), levels, torch.int32, repeats=True)


def test_by_hand():
    with interpreted():
        got = in_order(keys([9, 2, 5], 1), layout(16))
        assert got.key[:3].tolist() == [2, 5, 9] and got.where.tolist() == [1, 2, 0]
        by_rows = in_order(keys([0b10_1, 0b00_1, 0b10_0], 1, where=[7, 8, 9]), layout(4, 2))
    assert by_rows.key[:3].tolist() == [0b00_1, 0b10_1, 0b10_0]  # the second level keeps its order
    assert by_rows.where.tolist() == [8, 7, 9]


def test_keys_that_all_have_one_digit_stay_where_they_are():
    entries = keys([3, 1, 2], 1)
    with interpreted():
        got = in_order(entries, layout(4, 4))
    assert got.key is entries.key and got.where is None


@pytest.mark.parametrize("values", [[], [5]])
def test_too_few_to_sort(values):
    entries = keys(values, 1)
    assert in_order(entries, layout(16)) is entries


@pytest.mark.parametrize("sizes", [(2**5, 2**5), (2**9, 2**9), (2**20, 2**20)])
@given(data=st.data())
def test_as_pythons_sort(sizes, data):
    many, levels = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 2))
    own, given_before = layout(*sizes), data.draw(st.booleans())
    made = [[data.draw(st.integers(0, size - 1)) for size in sizes] for _ in range(many)]
    values = [a << own.shifts[0] | b for a, b in made]
    where = data.draw(st.permutations(range(many))) if given_before else None
    with interpreted():
        got = in_order(keys(values, levels, where, own.dtype), own)
    order = sorted(range(many), key=lambda k: made[k][:levels])
    assert got.key[:many].tolist() == [values[k] for k in order]
    found = list(range(many)) if got.where is None else got.where.tolist()
    assert found == [where[k] if where else k for k in order]


def test_twice_by_hand():
    with interpreted():
        got = merged(keys([2, 2, 5, 7, 7, 7], 1), layout(16))
        alone = keys([2, 5, 7], 1)
        assert merged(alone, layout(16)) is alone
    assert got.n == 3 and got.key[:3].tolist() == [2, 5, 7] and got.group.tolist() == [0, 0, 1, 2, 2, 2]


def test_nests_take_what_they_use():
    nests = sorters("unsigned int", "long")
    assert dict(nests["repeats"].arrays) == {"key": "unsigned int"} and nests["repeats"].sizes == ("n",)
    assert dict(nests["move"].arrays)["where2"] == "long"
