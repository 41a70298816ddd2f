"""Nests that store entries as the source is walked: what each mode does at the fibre."""

import pytest

from gossamer.compiler.convert.streams import stream
from tests.compiler.convert.test_readers import CSR, ROWS
from tests.compiler.convert.test_writers import parts

COLUMNS = ROWS[::-1]


def lines(nest):
    return [line.strip() for line in str(nest).splitlines()]


def test_in_order_by_hand():
    nests = stream(CSR, parts("csr"), ROWS, "in order", "int", "int")
    assert list(nests) == ["count", "count1", "store"]
    assert all(nest.result == "k" for nest in nests.values())
    assert lines(nests["store"])[-5:] == [
        "B1.p += 1",
        "B.crd1[B1.p] = B1.i",
        "to[B1.p] = from[A1.q]",
        "k += 1",
        "return k",
    ]
    assert lines(nests["count"])[-3:] == ["x1 = A1.i", "k += 1", "return k"]


def test_apart_each_parent_counts_its_own():
    store = lines(stream(CSR, parts("csr"), COLUMNS, "apart", "int", "int")["store"])
    assert "B1.p = ranks[B0.p]" in store and "ranks[B0.p] += 1" in store
    assert "there = ranks[A.crd1[A1.q + 32]]" in store and "prefetch to[there]" in store
    shared = stream(CSR, parts("bsr"), (*COLUMNS, ROWS[0]), "apart", "int", "int")
    assert "new = seen[B0.p] != B1.i + 1" in lines(shared["count1"]) and "out[B0.p] += new" in lines(shared["count1"])


def test_together_coordinates_are_collected_first():
    nests = stream(CSR, parts("bsr"), (*ROWS, ROWS[0]), "together", "int", "int")
    assert nests["count1"].workspace == "bits" and nests["store"].workspace is None
    assert "for B1.one in workspace:" in lines(nests["count1"])
    assert "B1.p = seen[B1.i]" in lines(nests["store"])


@pytest.mark.parametrize("mode", ["in order", "apart"])
def test_without_values_it_says_where_each_entry_was_and_is(mode):
    nests = stream(CSR, parts("csr"), ROWS, mode, "int", "")
    assert {"where", "place"} <= dict(nests["store"].arrays).keys() and "to" not in dict(nests["store"].arrays)
    assert {"where.given", "place.given"} <= set(nests["store"].sizes)


def test_nests_take_only_what_they_use():
    nests = stream(CSR, parts("csr"), ROWS, "in order", "int", "int")
    assert [name for name, _ in nests["count"].arrays] == ["A.pos1", "A.crd1"]
    assert nests["count"].sizes == ("A.size0",)
