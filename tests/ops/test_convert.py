"""Conversions of matrices that the compiler's C does: the same as torch's way, and with gradients."""

import itertools

import pytest
import torch

import gossamer as gs
from gossamer.ops import bridge, convert
from gossamer.tensor import entries_of, from_entries

MATRICES = (gs.CSR(), gs.CSC(), gs.COO())
PAIRS = [(a, b) for a, b in itertools.product(MATRICES, MATRICES) if a != b]


def _matrix(rows, columns, density=0.3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator, dtype=dtype)
    x = x * (torch.rand(rows, columns, generator=generator) < density)
    x[rows // 3 : rows // 2] = 0
    x[:, columns // 2] *= columns == 1
    return x


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
@pytest.mark.parametrize("shape", [(150, 170), (1, 20000), (20000, 1), (90, 400)])
def test_as_torch_does_it(source, target, shape):
    x = _matrix(*shape, density=0.8)
    a = gs.from_dense(x, source)
    assert convert.convert(a, target) is not None
    got = a.to_format(target)
    got.structure.check(got.values())
    want = from_entries(*entries_of(a), a.shape, target)
    assert got.format == target and got.structure.same(want.structure)
    assert all(got.structure.arrays[n].dtype == w.dtype for n, w in want.structure.arrays.items())
    assert torch.equal(got.values(), want.values()) and torch.equal(got.to_dense(), x)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_gradients_and_memory_of_its_own(source, target):
    a = gs.from_dense(_matrix(150, 170), source)
    leaf = torch.nn.Parameter(a)
    out = leaf.to_format(target)
    (out.to_dense() * torch.arange(170.0)).sum().backward()
    assert torch.allclose(leaf.grad.to_dense(), (a.to_dense() != 0) * torch.arange(170.0))
    copy = a.to_format(target)
    copy.values().zero_()
    assert a.values().abs().sum() > 0


def test_the_rest_is_left_to_torch(monkeypatch):
    small, large = gs.from_dense(_matrix(20, 30), gs.CSR()), gs.from_dense(_matrix(150, 170), gs.CSR())
    assert convert.convert(small, gs.CSC()) is None
    assert convert.convert(large, gs.BSR((2, 2))) is None
    monkeypatch.setattr(convert, "available", lambda: False)
    assert convert.convert(large, gs.CSC()) is None
    assert torch.equal(large.to_format(gs.CSC()).to_dense(), large.to_dense())
    assert bridge.available()
