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


def by_the_book(values, bits, pos, rows, cols):
    """Decode one group after the other, as a thread of mma.sp.m16n8k32 has them."""
    strips, steps = -(-rows // 16), -(-cols // 128)
    dense = torch.zeros(strips * 16, steps * 128)
    rows_of_words = values.view(-1, 32, 2)
    for piece in range(strips * steps):
        words = bits[72 * piece : 72 * (piece + 1)]
        change, ends = words[64:].view(torch.uint8).tolist(), [int(pos[piece])] * 32
        for pair in range(2):
            starts, columns = (ends, range(32)) if pair == 0 else ([ends[c] for c in change], change)
            ends = [0] * 32
            for lane in range(32):
                at = starts[lane]
                for n in range(8):  # high, step, upper
                    code = int(words[2 * lane + pair]) >> 4 * n & 15
                    first = code & 1 or (code >> 3 & 1) + (code >> 2 & 1) + (not code >> 1 & 1) > 1
                    planes = [((code & 1, code >> 2) if code & 10 == 8 else (0, 1), first), ((2, 3), code >> 1 & 1)]
                    row = piece // steps * 16 + n // 4 * 8 + lane // 4
                    col = piece % steps * 128 + 64 * pair + n % 4 * 16 + 4 * (lane % 4)
                    for places, there in planes:
                        if there:
                            dense[row, [col + place for place in places]] += rows_of_words[at, columns[lane]]
                            at += 1
                ends[lane] = at
    return dense[:rows, :cols]


def test_the_order_of_registers():
    dense = thinned(21, 300, 0.6)
    packed = gs.from_dense(dense, PackedBitmap())
    arrays = packed.structure.arrays
    assert torch.equal(by_the_book(packed.values(), arrays["bits1"], arrays["pos1"], 21, 300), dense)


def test_bytes():
    dense = thinned(256, 512, 0.7, torch.float16)
    packed = gs.from_dense(dense, PackedBitmap())
    density = float((dense != 0).float().mean())
    words = (1 - (1 - density) ** 4 + 4 * density**3 * (1 - density) + density**4) / 2  # of half the size of a group
    assert packed.nbytes <= (1.11 * words + 1 / 16 + 0.009) * dense.numel() * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays["bits1"].view(4, 72)[:, 5].fill_(0x77777777), "pos does not agree"),
        (lambda arrays: arrays["bits1"].view(4, 72)[:, 71].fill_(0), "no permutation"),
        (lambda arrays: arrays["pos1"][1:2].add_(1), "pos does not agree"),
        (lambda arrays: arrays.update(pos1=arrays["pos1"].long()), "must all be int32"),
        (lambda arrays: arrays.update(bits1=arrays["bits1"][:-1]), "must have"),
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
