"""Arrays for entries: what is counted, how wide integers are, and what is left out."""

import torch

import gossamer as gs
from gossamer.compiler.convert.layout import Layout
from gossamer.compiler.convert.restack import target_of
from gossamer.compiler.convert.writing import compact, fits, one_each, parts_of_target, passes, prepared


def parts(format, shape=(4, 6)):
    return parts_of_target(target_of(format, shape), torch.int32)


def test_what_a_level_says_of_itself():
    dense, compressed = parts(gs.CSR())
    assert dense.whole and dense.arrays == () and not dense.counts
    assert compressed.arrays == (("pos", "int"), ("crd", "int")) and compressed.counts == "coordinates"
    assert parts_of_target(target_of(gs.CSR(), (4, 6)), torch.int64)[1].arrays[1] == ("crd", "long")
    assert parts(gs.ELL())[1].numbers == ("width",)


def test_passes_that_count():
    assert [passes(parts(f)) for f in (gs.CSR(), gs.COO(), gs.DCSR(), gs.Masked(), gs.Dense())] == [1, 0, 2, 0, 0]
    assert one_each(parts(gs.COO()), 0) and one_each(parts(gs.COO()), 1) and not one_each(parts(gs.CSR()), 1)


def test_32_bits_are_enough_for_places_and_entries():
    small, large = target_of(gs.CSR(), (4, 6)), target_of(gs.CSR(), (2**32, 6))
    assert fits(2**31 - 1, small) and not fits(2**31, small) and not fits(1, large)
    assert fits(1, target_of(gs.CSR(), (2**16, 2**16)))
    assert not fits(1, target_of(gs.Dense(), (2**16, 2**16)))  # all places count, if there is one for each


def test_compact_entries_need_no_places():
    csr, ell = target_of(gs.CSR(), (4, 6)), target_of(gs.ELL(), (4, 6))
    assert compact(csr, 5, 5) and not compact(ell, 8, 5) and compact(ell, 8, 8)
    assert not compact(target_of(gs.BSR((2, 2)), (4, 6)), 8, 8)
    assert not compact(target_of(gs.Dense(), (4, 6)), 24, 24)


def test_arrays_are_made_level_by_level():
    layout, asked = Layout.of(target_of(gs.DCSR(), (4, 6))), []

    def count(m, counts, made):
        asked.append((m, counts.numel(), sorted(made.arrays)))
        counts.copy_(torch.tensor([2], dtype=counts.dtype) if m == 0 else torch.tensor([3, 1], dtype=counts.dtype))

    made = prepared(layout, parts(gs.DCSR()), torch.int32, count, lambda: 4)
    assert asked == [(0, 1, []), (1, 2, ["B.crd0", "B.pos0"])]
    assert made.arrays["B.pos0"].tolist() == [0, 2] and made.arrays["B.pos1"].tolist() == [0, 3, 4]
    assert made.above == [1, 2] and made.places == 4
    made.arrays["B.crd0"].copy_(torch.tensor([0, 3]))
    made.arrays["B.crd1"].copy_(torch.tensor([0, 1, 5, 2]))
    assert sorted(made.kept(layout.target)) == ["crd0", "crd1", "pos0", "pos1"]


def test_where_nothing_is_counted_all_entries_are_asked_for():
    layout = Layout.of(target_of(gs.COO(), (4, 6)))
    made = prepared(layout, parts(gs.COO()), torch.int32, None, lambda: 7)
    assert made.places == 7 and made.arrays["B.crd1"].numel() == 7


def test_scratch_arrays_are_not_kept():
    target = target_of(gs.formats.Condensed(), (16, 8))
    made = prepared(Layout.of(target), parts_of_target(target, torch.int32), torch.int32, lambda *_: None, lambda: 0)
    names = set(made.arrays)
    assert "B.slot2" in names and "slot2" not in made.kept(target)
