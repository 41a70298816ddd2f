"""Sources of entries: how a structure is walked towards a target, and the keys that are read."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.convert import reading
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import Layout
from gossamer.compiler.convert.reading import parts_of, read, source_of
from gossamer.compiler.convert.restack import target_of
from gossamer.formats import PackedCSR, Structure
from tests.compiler.convert.interpreted import interpreted

X = torch.tensor([[0.0, 3.0, 0.0, 0.0], [4.0, 5.0, 0.0, 8.0], [0.0, 0.0, 0.0, 0.0], [0.0, 6.0, 7.0, 0.0]])
KEYS = torch.nonzero(X.view(-1)).squeeze(1)


def structure(format):
    return Structure.from_keys(format, KEYS, X.shape)[0]


def layout(format, shape=(4, 4)):
    return Layout.of(target_of(format, shape))


def test_the_parts_that_levels_count_by_hand():
    assert parts_of(gs.CSR(), (4, 6), 2) == ((0, 1), (1, 1))
    assert parts_of(gs.BSR((2, 3)), (4, 6), 4) == ((0, 2), (1, 3), (0, 1), (1, 1))


def test_a_source_by_hand():
    source = source_of(structure(gs.CSR()))
    assert source.cuts == (Cut(0), Cut(1)) and source.whole and source.in_place and source.places == 6
    assert source.arrays["A.pos1"].tolist() == [0, 1, 4, 4, 6]
    assert source.known == {"A.places": 6, "A.dim0": 4, "A.dim1": 4, "A.size0": 4, "A.size1": 4}
    padded = source_of(structure(gs.ELL()))
    assert not padded.whole and padded.known["A.width1"] == 3 and padded.places == 12
    assert source_of(structure(PackedCSR())).cuts is None  # its rows come in no order


def test_the_nearest_order_walks_the_rows_of_a_block_first():
    source, unsorted = source_of(structure(gs.BSR((2, 2)))).towards(target_of(gs.CSR(), (4, 4)))
    assert source.walked.order == (0, 2, 1, 3) and unsorted == 0 and not source.in_place
    assert source_of(structure(gs.CSR())).towards(target_of(gs.CSC(), (4, 4)))[1] == 1


def test_entries_that_come_together():
    source, target = source_of(structure(gs.CSR())), target_of(gs.BSR((2, 2)), (4, 4))
    assert source.grouped(target, 1) and not source.grouped(target, 2)
    assert not source_of(structure(PackedCSR())).grouped(target, 1)


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.COO(), gs.ELL(), gs.Masked(), PackedCSR()], ids=str)
@pytest.mark.parametrize("target", [gs.CSR(), gs.CSC()], ids=str)
def test_keys_are_those_of_the_entries(format, target):
    own = layout(target)
    with interpreted():
        entries = read(structure(format), own, False)
    want = {int(k): (int(k) // 4, int(k) % 4) for k in KEYS}
    want = {(r << 2 | c) if target == gs.CSR() else (c << 2 | r) for r, c in want.values()}
    found = entries.key[: entries.n].tolist()
    assert set(found) == want and len(found) == 6
    assert (found == sorted(found)) or entries.levels > 0


def test_a_dense_tensor_and_numbers():
    with interpreted():
        dense = read(X, layout(gs.CSR()), False)
        rising, falling = (read(keys, layout(gs.CSR()), True) for keys in (KEYS, KEYS.flip(0)))
        assert read(X.to(torch.float8_e4m3fn), layout(gs.CSR()), False) is None  # no test for zero
    assert dense.where.tolist() == KEYS.tolist() and dense.levels == 0
    assert rising.levels == 0 and not rising.repeats
    assert falling.levels == 2 and falling.repeats and falling.key[:6].tolist() == KEYS.flip(0).tolist()


def test_other_dimensions_are_regrouped():
    with interpreted():
        entries = read(structure(gs.CSR()), layout(gs.CSR(), (2, 8)), False)
    assert entries.key[:6].tolist() == KEYS.tolist() and entries.levels == 0  # row-major numbers, 8 to a row


def test_wide_numbers_only_where_they_are_needed():
    assert reading._index(2**31 - 1) == torch.int32 and reading._index(2**31) == torch.int64
