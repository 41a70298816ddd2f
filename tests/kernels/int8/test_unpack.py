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


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
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
