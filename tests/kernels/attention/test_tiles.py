"""A mask as tiles of bits."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.attention.tiles import WIDE, tiles_of


def test_tiles():
    mask = torch.zeros(65, 200)
    mask[0, 63] = mask[64, 128] = mask[64, 199] = 1
    found = tiles_of(gs.from_dense(mask, gs.COO()).structure, 64)
    assert (found.first.tolist(), found.column.tolist()) == ([0, 1, 3], [0, 2, 3])
    assert found.bits[0, 0].item() == -(2**63) and found.bits[1, 0].item() == 1 and found.bits[2, 0].item() == 2**7
    assert tiles_of(gs.from_dense(torch.zeros(5, 5), gs.CSR()).structure, 64).number == 0


@pytest.mark.parametrize("high", [64, 128])
@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.BSR((5, 4)), gs.Masked()], ids=str)
def test_bits_are_the_entries(format, high):
    mask = torch.rand(150, 200) < 0.1
    made = gs.from_dense(mask.float(), format)
    found, back = tiles_of(made.structure, high), torch.zeros(256, 256, dtype=torch.bool)
    for row in range(found.first.numel() - 1):
        for n in range(int(found.first[row]), int(found.first[row + 1])):
            bits = (found.bits[n, :, None] >> torch.arange(WIDE)) & 1
            at = int(found.column[n]) * WIDE
            back[row * high : (row + 1) * high, at : at + WIDE] = bits.bool()
    assert torch.equal(back[:150, :200], made.mask()) and not back[150:].any() and not back[:, 200:].any()
