"""The largest magnitudes of many matrices in few launches; the kernels are run on a CPU by tests/native/emulator.py."""

import pytest
import torch

from gossamer.kernels import choosing, largest
from gossamer.kernels.largest import Array, Wanted
from gossamer.native.build import compiler
from gossamer.patterns._rank import keep_top
from tests.native import emulator

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((1, 1), (3, 5), (37, 29), (64, 300), (0, 4))
emulated = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(largest, "function", emulator.function)


def given(dense):
    return Array(dense, torch.full_like(dense, 7.0), torch.zeros(dense.shape, dtype=torch.bool))


def choose(arrays, wanted):
    kind, wrong = arrays[0].dense.dtype, torch.zeros(1, dtype=torch.int32)
    ranks = 1 if wanted[0].wider is None else 2
    work = torch.full((largest.work_bytes(kind, ranks),), 0x5A, dtype=torch.uint8)
    largest.launch(arrays, wanted, choosing._INFINITY[kind], wrong, work)
    return int(wrong)


def largest_of(dense, count):
    scores = dense.abs() if dense.dtype is torch.float64 else dense.abs().float()
    return keep_top(scores, min(count, dense.numel()))


def check(arrays, wanted):
    copies = [one.dense.clone() for one in arrays]
    assert choose(arrays, wanted) == 0
    for one, number, dense in zip(arrays, wanted, copies, strict=True):
        mask = largest_of(dense, number.first)
        assert torch.equal(one.mask, mask) and torch.equal(one.dense, dense)
        assert one.sparse is None or torch.equal(one.sparse, torch.where(mask, dense, 0))
        assert number.wider is None or torch.equal(number.wider, largest_of(dense, number.second))


@emulated
def test_by_hand():
    one = given(torch.tensor([[1.0, -5.0, 3.0], [-3.0, 0.5, 3.0]]))
    choose([one], [Wanted(2)])  # of three equal ones the first
    assert one.mask.int().tolist() == [[0, 1, 1], [0, 0, 0]] and one.sparse.tolist() == [[0, -5, 3], [0, 0, 0]]


@emulated
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("values", ["normal", "few", "equal", "special", "exponents"])
def test_the_kernel_selects_as_torch_does(dtype, values):
    for share, second in ((0.1, 0.3), (0.5, 0.5), (0.0, 0.02), (0.999, 1.0)):
        arrays = []
        for shape in SHAPES:
            dense = torch.randn(shape)
            if values == "few":
                dense = dense.mul(2).round()
            elif values == "equal":
                dense = dense.sign()
            elif values == "exponents":
                dense = dense.sign() * torch.exp2(torch.randint(-14, 15, shape).float())
            dense = dense.to(dtype)
            if values == "special":
                dense.view(-1)[::3] = -0.0
                dense.view(-1)[1::5] = float("-inf")
                dense.view(-1)[2::7] = torch.finfo(dtype).tiny / 4
            arrays.append(given(dense))
        check(arrays, [Wanted(round(share * one.dense.numel())) for one in arrays])
        sizes = [one.dense.numel() for one in arrays]
        wider = [torch.zeros(one.mask.shape, dtype=torch.bool) for one in arrays]
        check(arrays, [Wanted(round(share * n), round(second * n), each) for n, each in zip(sizes, wider, strict=True)])


@emulated
@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 16384, 16385, 17999, 18000, 99999])
def test_equal_values_in_several_spans(count):
    check([given(torch.ones(100, 180))], [Wanted(count)])
    dense = torch.ones(100, 180)
    dense.view(-1)[::2] = 0.5
    check([given(dense)], [Wanted(count, min(count + 300, 18000), torch.zeros(100, 180, dtype=torch.bool))])


@emulated
def test_larger_spans(monkeypatch):
    monkeypatch.setattr(largest, "_SPAN", 256)
    arrays = [given(torch.randn(3, 333).mul(4).round()), given(torch.randn(70, 700).mul(40).round())]
    check(arrays, [Wanted(500), Wanted(24_500)])


@emulated
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_leaves_its_matrix_and_sets_the_flag(dtype):
    arrays = [given(torch.randn(4, 6).to(dtype)) for _ in range(2)]
    arrays[0].dense[3, 5] = float("nan")
    assert choose(arrays, [Wanted(5), Wanted(5)]) == 1
    assert (arrays[0].sparse == 7).all() and not arrays[0].mask.any()
    assert torch.equal(arrays[1].mask, largest_of(arrays[1].dense, 5))


@emulated
def test_masks_alone():
    check([given(torch.randn(9, 9))._replace(sparse=None)], [Wanted(10)])


def test_shared_memory_and_parameters_are_within_what_every_gpu_has():
    table, most = largest._table([given(torch.empty(5000, 2000))], [Wanted(7)])
    assert len(table) < 4000 and most <= largest._SPANS
