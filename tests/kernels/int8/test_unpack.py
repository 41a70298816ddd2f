"""Bytes back to a matrix, and the check of bytes from outside."""

from __future__ import annotations

import pytest
import torch

from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.unpack import check, mask_of
from gossamer.kernels.int8.weight import parts, rounded
from tests.kernels.int8.exact import LAYOUTS, a_mask, a_weight


def test_a_dense_weight_keeps_its_mask() -> None:
    mask = torch.tensor([[True, True, False, True, False, True, True, True, False, True]])
    small = rounded(torch.tensor([[1.0, 1e-9, 0.0, 0.5, 0.0, 0.0, 2.0, 1.0, 0.0, 1.0]]))
    assert torch.equal(mask_of(pack_as(small, mask, Layout("dense"))), mask)  # what was rounded to 0 is kept
    assert bool(mask_of(pack_as(small, torch.ones_like(mask), Layout("dense"))).all())


def test_a_bitmap_from_outside_is_checked() -> None:
    mask = a_mask(20, 6, Layout("bitmap"))
    packed = pack_as(a_weight(20, 6, mask), mask, Layout("bitmap"))
    check(packed)
    first = parts(packed).crd[:8].view(torch.int64)
    for bits, words in ((first | 1 << 62, "a bit for each value"), (first & 0, "a bit for each value")):
        bad = packed.clone()
        parts(bad).crd[:8].view(torch.int64)[:] = bits if not torch.equal(bits, first) else ~first
        with pytest.raises(ValueError, match=words):
            check(bad)
    moved = packed.clone()  # from column 5, the last, to column 6
    quad = parts(moved).crd[8:16].view(torch.int64)
    row = int(mask[:16, 5].nonzero()[0])
    quad ^= 0b110 << 4 * row
    with pytest.raises(ValueError, match="a bit outside the matrix"):
        check(moved)
    for cut in (packed[:100], packed[:-64], torch.cat([packed, packed[:64]])):
        with pytest.raises(ValueError, match="int8 weight"):
            check(cut)
    for place in (1, 2, 3, 9):
        bad = packed.clone()
        bad[:128].view(torch.int64)[place] = -5
        with pytest.raises(ValueError):
            check(bad)


@pytest.mark.parametrize("layout", LAYOUTS[2:], ids=str)
def test_bytes_from_outside_are_checked(layout: Layout) -> None:
    mask = a_mask(40, 100, layout)
    packed = pack_as(a_weight(40, 100, mask), mask, layout)
    for part in ("pos", "crd", "line"):
        bad = packed.clone()
        getattr(parts(bad), part).fill_(254 if part != "crd" or layout.kind == "lines" else 200)
        with pytest.raises(ValueError, match=r"must run|outside"):
            check(bad)
    for cut in (packed[:100], packed[:-64], torch.cat([packed, packed[:64]]), packed.int()):
        with pytest.raises(ValueError, match="int8 weight"):
            check(cut)
    for place in (1, 2, 3, 4, 5, 9) if layout.kind == "lines" else range(1, 10):  # numbers of the head that it reads
        bad = packed.clone()
        bad[:128].view(torch.int64)[place] = -5
        with pytest.raises(ValueError):
            check(bad)
