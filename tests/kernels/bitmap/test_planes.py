"""Two planes of e4m3: packing is exact, and arrays that are not what packing makes are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.bitmap.planes import WORDS, check_planes, pack_planes, unpack_planes


def matrix(rows, cols, sparsity):
    return (torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)).to(torch.float8_e4m3fn)


def test_by_hand():
    dense = torch.zeros(16, 128)
    dense[0, 0:4] = torch.tensor([1.0, 2, 3, 4])  # lane 0, word 0 of pair 0: three or four are in both planes
    dense[9, 71] = 5.0  # row 8 + 1, column 64 + 4 + 3: lane 4 + 1, word 1 of pair 1
    dense[0, 6:8] = torch.tensor([6.0, 7])  # lane 1: places 2 and 3 alone are in the first plane
    values, bits, pos = pack_planes(dense.to(torch.float8_e4m3fn))
    flat = values.view(-1).float()
    assert flat[:2].tolist() == [1, 2] and flat[1024:1026].tolist() == [3, 4] and pos.tolist() == [0, 65]
    assert flat[512 + 5 * 16 + 2 : 512 + 5 * 16 + 4].tolist() == [0, 5] and flat[16:18].tolist() == [6, 7]
    assert int((flat != 0).sum()) == 7 and values.shape == (1, 1040)
    words = bits.view(WORDS)
    assert [hex(int(words[0]) & 0xFF)] == ["0xe4"]  # of row 0: places 0, 1 of lane 0, and 2, 3 of lane 1
    assert int(words[4 * 2 + 1]) >> 16 & 0xFF == 0xC4  # of row 9, in the second pair: places 0 and 3 of lane 1
    assert words[64].tolist() == 1 and words[65:].tolist() == [0b0100] * 31  # the others begin after one word


@pytest.mark.parametrize(
    ("rows", "cols"), [(1, 1), (1, 300), (300, 1), (64, 64), (65, 127), (200, 300), (3, 0), (0, 3)]
)
@pytest.mark.parametrize("sparsity", [0.0, 0.2, 0.5, 0.9, 0.97, 1.0])
def test_packing_is_exact(rows, cols, sparsity):
    dense = matrix(rows, cols, sparsity)
    planes = pack_planes(dense)
    check_planes(*planes, rows, cols)
    assert torch.equal(unpack_planes(*planes, rows, cols).float(), dense.float())


def test_empty_rows_and_signed_zeros():
    dense = torch.randn(33, 70)
    dense[::3] = -0.0
    small = dense.to(torch.float8_e4m3fn)
    back = unpack_planes(*pack_planes(small), 33, 70)
    assert torch.equal(back.float(), small.float()) and not bool((back[::3].view(torch.int8) != 0).any())


@given(start=st.integers(0, 31), last=st.integers(0, 16))
def test_a_lane_begins_anywhere(start, last):
    """All words of the lanes before one are in the second plane: it begins at up to 496."""
    groups = torch.zeros(1, 32, 2, 8, 4)
    groups[0, :start] = 1
    groups[0, start].view(16, 4)[:last] = torch.arange(1.0, 5)
    dense = groups.view(1, 1, 8, 4, 2, 2, 2, 2, 4).permute(0, 7, 2, 1, 4, 5, 6, 3, 8).reshape(16, 128)
    planes = pack_planes(dense.to(torch.float8_e4m3fn))
    check_planes(*planes, 16, 128)
    word = int(planes.bits[64 + start]) >> 2
    begin = sum((word >> 4 * n & 3) * count for n, count in enumerate((1, 16, 4, 64, 255)))
    assert begin == 16 * start and torch.equal(unpack_planes(*planes, 16, 128).float(), dense)


def hostile(values, bits, pos):
    """Arrays that would let a kernel read elsewhere, or multiply what is not there."""
    yield "torch.int32", (values, bits.long(), pos)
    yield "words of bits", (values, bits[:-1], pos)
    yield "words of bits", (values, bits, pos[:-1])
    yield "words of bits", (values, bits, torch.cat([pos, pos[-1:]]))
    for place, by in ((1, 1), (1, 1 << 20), (-1, -(1 << 24)), (0, -1)):
        moved = pos.clone()
        moved[place] += by
        yield "places", (values, bits, moved)
    for word, flip in ((70, 4), (95, 1 << 10), (64, 1 << 30), (64, -(1 << 31))):
        wrong = bits.clone()
        wrong[word] ^= flip
        yield "begin elsewhere", (values, wrong, pos)
    more = bits.clone()
    more[64] ^= 1
    yield "begin elsewhere|names a column", (values, more, pos)
    twice = bits.clone()
    twice[3] = 0
    yield "names a column twice", (values, twice, pos)
    yield "values of this bitmap", (values[:-1], bits, pos)
    yield "values of this bitmap", (values.view(-1), bits, pos)
    yield "values of this bitmap", (values.view(2 * len(values), -1), bits, pos)


def test_other_arrays_are_refused():
    torch.manual_seed(0)
    planes = pack_planes(matrix(40, 300, 0.5))
    for said, arrays in hostile(*planes):
        with pytest.raises(ValueError, match=said):
            check_planes(*arrays, 40, 300)
    for rows, cols in ((40, 400), (60, 300), (300, 40)):
        with pytest.raises(ValueError, match="words of bits"):
            check_planes(*planes, rows, cols)
