"""Entries sorted and cut into pieces."""

import torch

import gossamer as gs
from gossamer.compiler.gpu.pieces import Groups, cut, in_order
from tests.compiler.gpu.emulated import sparse


def test_pieces_hold_every_entry_once():
    for counts in ([0], [7], [0, 3, 1, 0, 12, 4, 0], [1] * 9, [100, 0, 5]):
        for length in (1, 2, 5, 1000):
            made = cut(Groups((torch.arange(len(counts)),), torch.tensor(counts), True), length)
            sizes = made.starts.diff() if made.ends is None else made.ends - made.starts
            assert made.number == sizes.numel()
            assert made.ends is None or sizes.tolist() == sorted(sizes.tolist(), reverse=True)
            assert int(sizes.sum()) == sum(counts) and int(sizes.max()) <= length and int(sizes.min()) >= 0
            total = torch.zeros(len(counts), dtype=torch.int64).index_add_(0, made.coords[0], sizes.long())
            assert total.tolist() == counts
            several = [n for n in counts if n > length]
            assert (made.rest is None) == (not several)
            if made.rest is not None:
                assert made.rest.counts.tolist() == [-(-n // length) for n in several]
                assert sorted(s for s in made.slot.tolist() if s >= 0) == list(range(made.slots))


def test_no_groups():
    made = cut(Groups((torch.arange(0),), torch.zeros(0, dtype=torch.int64), True), 4)
    assert made.number == 0 and made.slot is None


def test_order_of_entries():
    a = sparse(6, 7, format=gs.COO())
    for outer in ((0,), (1,), (), (0, 1)):
        found = in_order(a.structure, outer)
        values = a.values() if found.where is None else a.values()[found.where.long()]
        groups = torch.repeat_interleave(torch.arange(found.groups.counts.numel()), found.groups.counts)
        coords = dict(zip(outer, (c[groups] for c in found.groups.coords), strict=True))
        rest = [d for d in (0, 1) if d not in outer]
        coords |= dict(zip(rest, found.inner, strict=True))
        assert torch.equal(a.to_dense()[coords[0].long(), coords[1].long()], values)
        assert in_order(a.structure, outer) is found
