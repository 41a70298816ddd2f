"""Packed bitmaps: exact there and back, in the order of the registers, small, and no broken promise gets in."""

import io

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import PackedBitmap


def thinned(rows, cols, sparsity, dtype=torch.float32):
    return (torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)).to(dtype)


@settings(max_examples=60)
@given(
    rows=st.integers(0, 140),
    cols=st.integers(0, 200),
    sparsity=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
def test_there_and_back(rows, cols, sparsity, seed):
    torch.manual_seed(seed)
    dense = thinned(rows, cols, sparsity)
    packed = gs.from_dense(dense, PackedBitmap())
    assert torch.equal(packed.to_dense(), dense)
    assert torch.equal(packed.mask(), dense != 0)
    packed.structure.check(packed._values)
    again = gs.SparseTensor.from_arrays(packed.format, dense.shape, packed.values(), packed.structure.arrays)
    assert torch.equal(again.to_dense(), dense)


#: By code: the places of the word of the first plane, of its single value, and of the word of the second plane.
BOOK = {
    0: ((), (), ()), 1: ((), (1,), (2, 3)), 2: ((), (), (2, 3)), 3: ((), (0,), (2, 3)), 4: ((0, 1), (), ()),
    5: ((), (1,), ()), 6: ((), (2,), ()), 7: ((), (0,), ()), 8: ((0, 2), (), ()), 9: ((1, 2), (), ()),
    10: ((0, 1), (), (2, 3)), 11: ((0, 1), (), (2, 3)), 12: ((0, 3), (), ()), 13: ((1, 3), (), ()),
    14: ((2, 3), (), ()), 15: ((0, 1), (), (2, 3)),
}  # fmt: skip


def by_the_book(values, codes, pos, rows, cols):
    """Decode one group after the other, as a thread of mma.sp.m16n8k32 has them."""
    strips, steps = -(-rows // 16), -(-cols // 128)
    dense = torch.zeros(strips * 16, steps * 128)
    cells = values.view(-1, 32, 2)
    for piece in range(strips * steps):
        words, top = codes[72 * piece : 72 * (piece + 1)], int(pos[piece])
        change = words[64:].view(torch.uint8).tolist()
        ends = [top + 1 + each // 32 for each in change]
        for pair in range(2):
            columns = range(32) if pair == 0 else [each % 32 for each in change]
            starts, ends = [ends[column] for column in columns], [0] * 32
            for lane, column in enumerate(columns):
                at, single = starts[lane], top
                for n in range(8):  # high, step, upper
                    first, low, second = BOOK[int(words[2 * lane + pair]) >> 4 * n & 15]
                    row = piece // steps * 16 + n // 4 * 8 + lane // 4
                    col = piece % steps * 128 + 64 * pair + n % 4 * 16 + 4 * (lane % 4)
                    for places in (first, second):
                        if places:
                            dense[row, [col + place for place in places]] += cells[at, column]
                            at += 1
                    for place in low:
                        dense[row, col + place] += cells[single, column, pair]
                        single += 1
                ends[lane] = at
    return dense[:rows, :cols]


def test_the_order_of_registers():
    dense = thinned(21, 300, 0.6)
    packed = gs.from_dense(dense, PackedBitmap())
    arrays = packed.structure.arrays
    assert torch.equal(by_the_book(packed.values(), arrays["codes1"], arrays["pos1"], 21, 300), dense)


def test_bytes():
    dense = thinned(256, 512, 0.7, torch.float16)
    packed = gs.from_dense(dense, PackedBitmap())
    density = float((dense != 0).float().mean())
    one, two, three = (density**n * (1 - density) ** (4 - n) for n in (1, 2, 3))
    halves = 5 * one + 12 * two + 14 * three + 4 * density**4  # of a group, 16 bits each
    assert packed.nbytes <= (1.19 * halves / 4 + 1 / 16 + 0.009) * dense.numel() * 2


def test_files_of_the_former_order_are_refused():
    packed = gs.from_dense(thinned(64, 128, 0.5), PackedBitmap())
    arrays = packed.structure.arrays
    with pytest.raises(ValueError, match="codes1"):
        gs.SparseTensor.from_arrays(
            packed.format, (64, 128), packed.values(), {"pos1": arrays["pos1"], "bits1": arrays["codes1"]}
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays["codes1"].view(4, 72)[:, 5].fill_(0x44444444), "do(es)? not agree"),
        (lambda arrays: arrays["codes1"].view(4, 72)[:, 71].fill_(0), "no permutation"),
        (lambda arrays: arrays["codes1"].view(4, 72)[:, 66].bitwise_xor_(0x20), "rows of single values do not agree"),
        (lambda arrays: arrays["pos1"][1:2].add_(1), "pos does not agree"),
        (lambda arrays: arrays.update(pos1=arrays["pos1"].long()), "must all be int32"),
        (lambda arrays: arrays.update(codes1=arrays["codes1"][:-1]), "must have"),
    ],
)
def test_broken_promises_are_found(change, message):
    packed = gs.from_dense(thinned(64, 128, 0.5), PackedBitmap())
    arrays = {name: array.clone() for name, array in packed.structure.arrays.items()}
    change(arrays)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(packed.format, (64, 128), packed.values(), arrays)


def test_a_layer_with_gradients():
    dense = thinned(20, 30, 0.5)
    weight = gs.from_dense(dense, PackedBitmap()).requires_grad_()
    x = torch.randn(4, 30)
    out = F.linear(x, weight)
    torch.testing.assert_close(out, F.linear(x, dense))
    out.sum().backward()
    expected = x.sum(0).expand(20, 30) * (dense != 0)
    torch.testing.assert_close(weight.grad.to_dense(), expected)


def test_is_saved():
    packed = gs.from_dense(thinned(70, 30, 0.5), PackedBitmap())
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True).to_dense(), packed.to_dense())
