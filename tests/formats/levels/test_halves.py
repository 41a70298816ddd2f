"""Two numbers below 16 in a byte, sixteen bytes at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels.halves import halves, paired


def test_by_hand():
    codes = torch.tensor([*range(16), *range(15, -1, -1)], dtype=torch.uint8)
    both = [0xF0, 0xE1, 0xD2, 0xC3, 0xB4, 0xA5, 0x96, 0x87, 0x78, 0x69, 0x5A, 0x4B, 0x3C, 0x2D, 0x1E, 0x0F]
    assert paired(codes).tolist() == both and paired(codes).dtype is torch.uint8
    assert halves(paired(codes)).tolist() == codes.tolist()


def test_the_second_half_of_a_step_alone_is_zero():
    assert paired(torch.full((16,), 7, dtype=torch.uint8)).tolist() == [7] * 16
    assert halves(torch.full((16,), 7, dtype=torch.uint8)).tolist() == [7] * 16 + [0] * 16


@settings(max_examples=15)
@given(st.integers(0, 5), st.integers(0, 99))
def test_halves_undoes_paired(steps, seed):
    codes = torch.randint(16, (steps * 16,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    bytes_ = paired(codes)
    assert bytes_.numel() == (steps + 1) // 2 * 16
    assert halves(bytes_)[: codes.numel()].tolist() == codes.tolist()
