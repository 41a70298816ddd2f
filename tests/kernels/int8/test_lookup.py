"""Any pattern as lookups."""

from __future__ import annotations

import pytest
import torch

from gossamer.kernels.int8.layout import pack_as
from gossamer.kernels.int8.lookup import lane_of, lookup, units_of
from gossamer.kernels.int8.unpack import check, mask_of, unpack
from gossamer.kernels.int8.windows import Windows
from tests.kernels.int8.exact import LAYOUTS, a_weight


def test_units_and_lanes_by_hand() -> None:
    mask = torch.zeros(5, 6, dtype=torch.bool)
    mask[4, 5] = True
    assert units_of(mask, 4, 4).nonzero().tolist() == [[1, 1]] and units_of(mask, 4, 4).shape == (16, 2)
    assert sorted(lane_of(torch.arange(16), 4).tolist()) == list(range(16))


@pytest.mark.parametrize("windows", [Windows(16, 16), Windows(8, 32), Windows(40, 64), Windows(4, 64)])
@pytest.mark.parametrize("shape", [(1, 1), (17, 67), (900, 130), (20, 2000)])
def test_any_windows(windows: Windows, shape: tuple[int, int]) -> None:
    mask = torch.rand(shape) < 0.2
    weight = a_weight(*shape, mask)
    packed = lookup(weight, mask, windows=windows)
    check(packed)
    assert torch.equal(unpack(packed), weight.values) and torch.equal(mask_of(packed), mask)


def test_a_mask_that_is_not_made_of_blocks_is_taken_by_blocks_too() -> None:
    mask = torch.rand(40, 90) < 0.1
    weight = a_weight(40, 90, mask)
    for layout in LAYOUTS:
        assert torch.equal(unpack(pack_as(weight, mask, layout)), weight.values), layout
