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
    """Decode one pair after the other, as a thread of mma.m16n8k16 has them."""
    tiles, steps = -(-rows // 64), -(-cols // 64)
    dense = torch.zeros(tiles * 64, steps * 64)
    for piece in range(tiles * steps):
        for lane in range(32):
            words = iter(values.view(-1, 32, 2)[int(pos[piece]) :, lane].tolist())
            room = []  # the second value of a word of which only the first is read
            for octet in range(16):
                byte = int(bits[128 * piece + 32 * (octet // 4) + lane]) >> 8 * (octet % 4) & 255
                pairs = [byte >> 2 * n & 3 for n in range(4)]
                found = {n: next(words) for n, pair in enumerate(pairs) if pair == 3}
                singles = [n for n, pair in enumerate(pairs) if pair in (1, 2)]
                if found and not singles:
                    room = []
                for n in singles:
                    if not room:
                        room = next(words)
                    found[n] = [room[0], 0.0] if pairs[n] == 1 else [0.0, room[0]]
                    room = room[1:]
                for n, pair in found.items():  # upper, high
                    row = piece // steps * 64 + 16 * (octet % 4) + 8 * (n % 2) + lane // 4
                    col = piece % steps * 64 + 16 * (octet // 4) + 8 * (n // 2) + 2 * (lane % 4)
                    dense[row, col : col + 2] = torch.tensor(pair)
    return dense[:rows, :cols]


def test_the_order_of_registers():
    dense = thinned(70, 130, 0.6)
    packed = gs.from_dense(dense, PackedBitmap())
    arrays = packed.structure.arrays
    assert torch.equal(by_the_book(packed.values(), arrays["bits1"], arrays["pos1"], 70, 130), dense)


def test_bytes():
    dense = thinned(256, 512, 0.7, torch.float16)
    packed = gs.from_dense(dense, PackedBitmap())
    density = float((dense != 0).float().mean())
    assert packed.nbytes <= (1.35 * density + 1 / 16 + 0.005) * dense.numel() * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays["bits1"].view(4, 2, 32)[..., 5].fill_(-1), "pos does not agree"),
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
