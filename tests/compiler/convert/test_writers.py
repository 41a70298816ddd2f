"""Nests that write sorted keys into levels: by hand, level kind by level kind."""

import torch

from gossamer.compiler.convert import writers
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import Layout, Target
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.convert.writing import parts_of_target
from gossamer.compiler.loops.nest import show
from gossamer.formats.levels import Bitmap, Compressed, Dense, Fixed, HalfLanes, Singleton

STACKS = {
    "csr": (Dense(), Compressed()),
    "coo": (Compressed(unique=False), Singleton()),
    "dcsr": (Compressed(), Compressed()),
    "bsr": (Dense(), Compressed(), Dense()),
    "ell": (Dense(), Fixed()),
    "mask": (Dense(), Bitmap()),
}


def parts(name):
    stack = STACKS[name]
    sizes = (4,) * len(stack)
    return parts_of_target(Target(stack, sizes, tuple(Cut(d) for d in range(len(stack))), sizes), torch.int32)


def lines(nest):
    return [line.strip() for line in str(nest).splitlines()]


def test_the_fibre_is_the_last_level_that_is_not_dense():
    assert [writers.fibre(parts(name)) for name in ("csr", "bsr", "mask")] == [1, 1, 1]
    assert writers.fibre(parts("csr")[:1]) == -1
    assert writers.lone(parts("csr")) and not writers.lone(parts("bsr"))


def test_rows_by_hand():
    nests = writers.writer(parts("csr"), "int", "int")
    assert list(nests) == ["count1", "store"]
    assert lines(nests["count1"])[1:] == [
        "for k in 0 .. n:", "now = key[k]", "B0.i = now >> B.shift0 & B.field0", "B0.p = B0.i",
        "B1.i = now >> B.shift1 & B.field1", "out[B0.p] += 1",
    ]  # fmt: skip
    assert "B1.p += 1" in lines(nests["store"]) and "B.crd1[B1.p] = B1.i" in lines(nests["store"])


def test_a_position_that_entries_share_changes_with_the_key():
    blocks, rows = writers.writer(parts("bsr"), "int", "int"), writers.writer(parts("dcsr"), "int", "int")
    assert "out[B0.p] += now >> B.shift1 != last >> B.shift1" in lines(blocks["count1"])
    assert "B0.p += now >> B.shift0 != last >> B.shift0" in lines(rows["store"])
    assert "last = now" in lines(rows["store"])
    assert "last = now" not in lines(writers.writer(parts("csr"), "int", "int")["store"])


def test_ranks_start_again_with_each_parent():
    store = lines(writers.writer(parts("ell"), "int", "int")["store"])
    assert "B1.rank = B1.rank + 1 & 0 - (now >> B.shift0 == last >> B.shift0)" in store
    assert "B1.p = B0.p * B.width1 + B1.rank" in store


def stored(name, coords, sizes, arrays, **numbers):
    """Run ``store`` on entries of these coordinates."""
    stack = STACKS[name]
    layout = Layout.of(Target(stack, sizes, tuple(Cut(d) for d in range(len(stack))), sizes))
    key = [sum(c << s for c, s in zip(entry, layout.shifts, strict=True)) for entry in coords]
    place = torch.full((len(coords),), -1, dtype=torch.int32)
    held = arrays | {"key": torch.tensor(key, dtype=torch.int32), "place": place}
    given = layout.integers | {"n": len(coords), "place.given": 1, **numbers}
    passes = Passes(writers.writer(parts_of_target(layout.target, torch.int32), "int", "int"))
    passes.interpret("store", held, given)
    return place.tolist()


def zeros(n, value=0):
    return torch.full((n,), value, dtype=torch.int32)


def test_entries_are_stored_by_hand():
    arrays = {"B.pos1": torch.tensor([0, 2, 2, 3], dtype=torch.int32), "B.crd1": zeros(3)}
    assert stored("csr", [(0, 1), (0, 3), (2, 0)], (3, 4), arrays) == [0, 1, 2]
    assert arrays["B.crd1"].tolist() == [1, 3, 0]
    padded = {"B.crd1": zeros(6, -1)}
    assert stored("ell", [(0, 1), (0, 3), (2, 0)], (3, 4), padded, **{"B.width1": 2}) == [0, 1, 4]
    assert padded["B.crd1"].tolist() == [1, 3, -1, -1, 0, -1]
    mask = {"B.mask1": torch.zeros(12, dtype=torch.bool)}
    assert stored("mask", [(0, 1), (2, 0)], (3, 4), mask) == [1, 8]
    assert mask["B.mask1"].nonzero().squeeze(1).tolist() == [1, 8]
    blocks = {"B.pos1": torch.tensor([0, 1, 2], dtype=torch.int32), "B.crd1": zeros(2)}
    assert stored("bsr", [(0, 2, 0), (0, 2, 3), (1, 1, 1)], (2, 3, 4), blocks) == [0, 3, 5]
    assert blocks["B.crd1"].tolist() == [2, 1]


def test_a_code_of_half_a_byte_is_written_once():
    stack = (Dense(), HalfLanes(2))
    part = parts_of_target(Target(stack, (16, 4), (Cut(0), Cut(1)), (16, 4)), torch.int32)[1]
    (store,) = writers.written(part, 1, writers.coordinate(1))
    assert store.sign == "^=" and show(store.value).startswith("(B1.i ^ B.size1) << ")
