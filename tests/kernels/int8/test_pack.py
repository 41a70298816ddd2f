"""Dense weights and lines of 1x4 blocks."""

from __future__ import annotations

import pytest
import torch

from gossamer.kernels.int8.pack import dense, lines
from gossamer.kernels.int8.unpack import check, mask_of, unpack
from gossamer.kernels.int8.weight import Rounded, parts
from tests.kernels.int8.exact import a_weight


def test_the_mask_of_a_dense_weight_by_hand() -> None:
    mask = torch.zeros(2, 9, dtype=torch.bool)
    mask[0, 0] = mask[0, 3] = mask[1, 8] = True
    made = parts(dense(Rounded(torch.zeros(2, 9, dtype=torch.int8), torch.ones(2)), mask))
    assert made.sizes.masked == 1 and made.crd.tolist() == [0b1001, 0, 0, 1]


@pytest.mark.parametrize("rows", [0, 1, 17, 128, 129, 300])
@pytest.mark.parametrize("cols", [0, 1, 4, 767, 768, 769, 1537])
def test_sizes_around_blocks_and_tiles(rows: int, cols: int) -> None:
    mask = (torch.rand(rows, -(-cols // 4)) < 0.1).repeat_interleave(4, 1)[:, :cols]
    weight = a_weight(rows, cols, mask)
    for packed in (lines(weight, mask), dense(weight, mask)):
        check(packed)
        assert torch.equal(unpack(packed), weight.values) and torch.equal(mask_of(packed), mask)
