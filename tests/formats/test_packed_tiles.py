"""Packed tiles: exact there and back, in the order of AMX, small, and no broken promise gets in."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import PackedTiles


def thinned(rows, cols, sparsity, dtype=torch.float32):
    return (torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)).to(dtype)


@settings(max_examples=60)
@given(
    rows=st.integers(0, 70),
    cols=st.integers(0, 90),
    sparsity=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
def test_there_and_back(rows, cols, sparsity, seed):
    torch.manual_seed(seed)
    dense = thinned(rows, cols, sparsity)
    packed = gs.from_dense(dense, PackedTiles())
    assert torch.equal(packed.to_dense(), dense)
    assert torch.equal(packed.mask(), dense != 0)
    packed.structure.check(packed._values)
    again = gs.SparseTensor.from_arrays(packed.format, dense.shape, packed.values(), packed.structure.arrays)
    assert torch.equal(again.to_dense(), dense)


def test_the_order_of_a_tile():
    # two columns of sixteen rows after the other: the order in which AMX takes its second operand
    dense = torch.arange(1.0, 1 + 32 * 5).view(32, 5)
    packed = gs.from_dense(dense, PackedTiles())
    expected = []
    for group in (0, 16):
        for pair in (0, 2, 4):
            for row in range(group, group + 16):
                expected += dense[row, pair : pair + 2].tolist()
    assert packed.values().tolist() == expected
    assert packed.structure.arrays["pos1"].tolist() == [0, 80, 160]
    assert packed.structure.arrays["bits1"].tolist() == [-1, -1, 0x55555555] * 2


def test_bytes():
    dense = thinned(256, 512, 0.7, torch.bfloat16)
    packed = gs.from_dense(dense, PackedTiles())
    density = float((dense != 0).float().mean())
    assert packed.nbytes <= (density + 1 / 16 + 0.001) * dense.numel() * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays["bits1"][3:4].bitwise_xor_(1), "pos does not agree"),
        (lambda arrays: arrays["pos1"][1:2].add_(1), "pos does not agree"),
        (lambda arrays: arrays.update(pos1=arrays["pos1"].long()), "must all be int32"),
        (lambda arrays: arrays.update(bits1=arrays["bits1"][:-1]), "must have"),
    ],
)
def test_broken_promises_are_found(change, message):
    packed = gs.from_dense(thinned(40, 70, 0.5), PackedTiles())
    arrays = {name: array.clone() for name, array in packed.structure.arrays.items()}
    change(arrays)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(packed.format, (40, 70), packed.values(), arrays)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_einsum_and_other_operators(dtype):
    dense = thinned(20, 33, 0.5).to(dtype)
    packed = gs.from_dense(dense, PackedTiles())
    x = torch.randn(33, 3).to(dtype)
    near = (
        {"rtol": 0.05, "atol": 0.2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    )  # 33 roundings at most
    torch.testing.assert_close(gs.einsum("ij,jk->ik", packed, x), dense @ x, **near)
    torch.testing.assert_close(packed.sum(1).to_dense(), dense.sum(1), **near)
    assert torch.equal((packed * 2).to_dense(), dense * 2)
    assert torch.equal(packed.to_format(gs.CSC()).to_dense(), dense)


def test_is_saved():
    packed = gs.from_dense(thinned(70, 31, 0.5, torch.bfloat16), PackedTiles())
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True).to_dense(), packed.to_dense())
