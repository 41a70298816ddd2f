"""Packed 2:4 of a weight and of its transpose; the kernel is run on a CPU by tests/native/emulator.py."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.vnm import two_ways
from gossamer.native.build import compiler
from tests.native import emulator

SIZES = [(64, 64), (128, 192), (4, 8), (72, 100), (1, 4), (65, 3)]


def made(rows, cols, dtype=torch.float32):
    torch.manual_seed(0)
    dense = torch.randn(rows, cols).to(dtype)
    return dense, gs.TransposableNM(2, 4).select(dense.abs().float())


@pytest.mark.parametrize("rows, cols", SIZES)
def test_metadata_and_values_are_those_of_the_format(rows, cols):
    dense, mask = made(rows, cols)
    wanted = gs.sparsify(dense * mask, gs.NM(2, 4), format=gs.formats.PackedVNM("all", 2, 4))
    meta = two_ways.meta_of(mask)
    empty = torch.empty(0, dtype=torch.uint8)
    values = two_ways.fill(dense, meta, False, torch.float32)
    decoded = torch.ops.gossamer.vnm_decode(values, empty, meta, rows, cols, 0, 4)
    where = mask | (decoded == 0)
    assert torch.equal(decoded * mask, dense * mask) and meta.shape == wanted.structure.arrays["meta1"].shape
    assert bool(where.all()) or rows % 4 or cols % 4  # at an edge a row with fewer than two has a free place


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, cols", SIZES)
def test_the_kernel(monkeypatch, rows, cols, source, turned):
    monkeypatch.setattr(two_ways, "function", emulator.function)
    dense, mask = made(rows, cols, source)
    meta = two_ways.meta_of(mask.t() if turned else mask)
    out = torch.full((meta.numel() * 16,), float("nan"), dtype=torch.bfloat16)
    two_ways._launch(dense, meta, turned, out)
    assert torch.equal(out, two_ways.fill(dense, meta, turned, torch.bfloat16))


def gradients(call, *tensors):
    tensors = [t.clone().requires_grad_() for t in tensors]
    out = call(*tensors)
    torch.manual_seed(1)
    out.backward(torch.randn(out.shape).to(out))
    return [out.detach(), *(t.grad for t in tensors)]


@pytest.mark.parametrize("rows, cols", [(64, 64), (24, 100)])
@pytest.mark.parametrize("lead", [(5,), (2, 3), ()])
def test_products_both_ways(rows, cols, lead):
    dense, mask = made(rows, cols, torch.float64)
    dense = dense * mask
    packed = two_ways.TwoWays.of(dense, mask, torch.float64)
    x, bias = torch.randn(*lead, cols, dtype=torch.float64), torch.randn(rows, dtype=torch.float64)
    for ours, wanted in zip(
        gradients(packed.linear, x, dense, bias), gradients(torch.nn.functional.linear, x, dense, bias), strict=True
    ):
        assert torch.allclose(ours, wanted, rtol=0, atol=1e-12 * cols)
    other = torch.randn(rows, cols, dtype=torch.float64)
    choice = gs.TransposableNM(2, 4).select(other.abs())
    addresses = [array.data_ptr() for array in packed[1:]]
    packed.choose(choice)
    packed.fill(other * choice)
    assert addresses == [array.data_ptr() for array in packed[1:]]
    assert torch.allclose(packed.linear(x, dense), x @ (other * choice).t())


def test_the_operator():
    dense, mask = made(64, 64)
    packed = two_ways.TwoWays.of(dense * mask, mask, torch.float32)
    x, bias = torch.randn(2, 3, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    torch.library.opcheck(torch.ops.gossamer.two_ways_linear, (x, dense.requires_grad_(), bias, *packed[1:]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype):
    dense, mask = made(512, 1024)
    dense = (dense * mask).cuda()
    packed = two_ways.TwoWays.of(dense, mask.cuda(), dtype)
    x, weight = torch.randn(700, 1024, device="cuda", dtype=dtype), dense.to(dtype)
    wanted = gradients(torch.nn.functional.linear, x.double(), weight.double())
    for ours, right in zip(gradients(packed.linear, x, weight), wanted, strict=True):
        assert float((ours - right).norm() / right.norm()) < 1e-2
