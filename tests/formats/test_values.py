"""Values of a structure as plain tensors: sums, places, padding."""

import math

import pytest
import torch

import gossamer as gs
from gossamer.formats.values import cleared, mask_padding, placed, read, scatter, summed
from tests.formats._by_hand import ints
from tests.formats_under_test import ALL

X = [[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]]


def structure(format=None):
    return gs.from_dense(torch.tensor(X), format or gs.ELL()).structure


def test_sums_of_groups_by_hand():
    out = summed(torch.tensor([1.0, 2.0, 4.0]), ints(2, 0, 2), 4)
    assert out.tolist() == [2.0, 0.0, 5.0, 0.0]
    assert summed(torch.tensor([[1, 2], [3, 4]]), ints(0, 0), 1).tolist() == [[4, 6]]


def test_sums_of_half_precision_are_rounded_once():
    many = torch.full((4097,), 1.0).bfloat16()  # 256 + 1 is 256 in bfloat16
    out = summed(many, torch.zeros(4097, dtype=torch.long), 1)
    assert out.dtype is torch.bfloat16 and out.item() == 4096.0


def test_sums_of_truth_values_are_or():
    out = summed(torch.tensor([True, True, False]), ints(0, 0, 1), 3)
    assert out.dtype is torch.bool and out.tolist() == [True, False, False]
    assert summed(torch.ones(256, dtype=torch.bool), torch.arange(256) // 255, 2).tolist() == [True, True]


def test_entries_go_to_their_places():
    assert placed(torch.tensor([7.0, 8.0, 9.0]), ints(0, 2, 3), structure()).tolist() == [7.0, 0.0, 8.0, 9.0]
    assert placed(torch.tensor([7.0, 8.0, 9.0]), None, structure(gs.CSR())).tolist() == [7.0, 8.0, 9.0]


@pytest.mark.parametrize("format", ALL, ids=repr)
def test_to_dense_and_back(format):
    t = gs.from_dense(torch.tensor(X), format)
    dense = scatter(t._values, t.structure)
    assert dense.tolist() == X
    dense += 1  # a tensor of its own, for Masked too
    assert scatter(t._values, t.structure).tolist() == X
    assert torch.equal(read(torch.tensor(X), t.structure), t._values)


def test_padding_reads_as_zero_whatever_is_there():
    assert read(torch.full((2, 3), math.nan), structure()).isnan().tolist() == [True, False, True, True]
    masked = read(torch.full((2, 3), math.inf), structure(gs.Masked()))
    assert masked.tolist() == [[0.0, math.inf, 0.0], [math.inf, 0.0, math.inf]]


def test_zeros_back_into_the_padding():
    values = torch.tensor([1.0, math.inf, 2.0, 3.0])
    out = mask_padding(values, structure())
    assert out.tolist() == [1.0, 0.0, 2.0, 3.0] and values[1] == math.inf
    assert mask_padding(values, structure(), inplace=True) is values and values[1] == 0
    plain = torch.ones(3)
    assert mask_padding(plain, structure(gs.CSR())) is plain


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("inplace", [False, True])
def test_cleared_keeps_type_and_bits(dtype, inplace):
    values, valid = torch.tensor([1, 1, 0, 1]).to(dtype), torch.tensor([True, False, True, True])
    out = cleared(values, valid, inplace)
    assert out.dtype is dtype and (out is values) == inplace
    assert out.to(torch.complex64).tolist() == [1, 0, 0, 1]


def test_cleared_takes_nan_away_and_keeps_the_sign_of_zero():
    out = cleared(torch.tensor([-0.0, math.nan, math.nan]), torch.tensor([True, False, True]))
    assert math.copysign(1, out[0]) == -1 and out[1] == 0 and out[2].isnan()


def test_autograd_follows():
    x = torch.ones(3, requires_grad=True)
    cleared(x * 2, torch.tensor([True, False, True])).sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 2.0]
