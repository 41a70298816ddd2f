"""Clearing many tensors; the kernel is run on a CPU by tests/native/emulator.py."""

import pytest
import torch

from gossamer.kernels import clearing
from gossamer.native.build import compiler
from tests.native import emulator

SIZES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def pairs(dtype, sizes=(1, 3, 16, 1000, 4099), density=0.3):
    out = []
    for n in sizes:
        x = torch.randn(n, dtype=dtype)
        x[::7] = float("nan")
        x[3::11] = float("inf")
        out.append((x, torch.rand(n) < density))
    return out


def assert_cleared(before, after, mask):
    assert (after[~mask] == 0).all()
    assert torch.equal(after[mask].view(torch.int8), before[mask].view(torch.int8))  # bit by bit: NaN too


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.3, 0.9, 1.0])
def test_the_kernel(monkeypatch, size, density):
    monkeypatch.setattr(clearing, "function", emulator.function)
    monkeypatch.setattr(clearing, "processors", lambda device: 2)
    given = pairs(SIZES[size], density=density)
    big, kept = torch.randn(70, dtype=SIZES[size]), torch.rand(70) < density
    given += [(big[1:40], kept[:39]), (big[48:], kept[47:69])]  # not aligned
    copies = [(x.clone(), mask) for x, mask in given]
    clearing._launch(given, size, 0)
    for (x, mask), (before, _) in zip(given, copies, strict=True):
        assert_cleared(before, x, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.complex64, torch.int64])
def test_all_types_together_and_alone(dtype):
    x = torch.arange(1, 13).to(dtype).view(3, 4)
    given = [(x.clone(), torch.rand(3, 4) < 0.5), (x.t(), torch.rand(4, 3) < 0.5), (torch.ones(5), torch.rand(5) < 0.5)]
    copies = [(v.clone(), mask) for v, mask in given]
    clearing.clear_all([v for v, _ in given], [mask for _, mask in given])
    for (v, mask), (before, _) in zip(given, copies, strict=True):
        assert torch.equal(v, before * mask)
    clearing.clear_all([], [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    for dtype in (*SIZES.values(), torch.float16):
        given = [(x.cuda(), mask.cuda()) for _ in range(30) for x, mask in pairs(dtype)]  # more than a launch takes
        given.append((torch.randn(6, 8, device="cuda").to(dtype).t(), torch.rand(8, 6, device="cuda") < 0.5))
        copies = [(x.clone(), mask) for x, mask in given]
        clearing.clear_all([x for x, _ in given], [mask for _, mask in given])
        for (x, mask), (before, _) in zip(given, copies, strict=True):
            assert_cleared(before.contiguous(), x.contiguous(), mask.contiguous())
