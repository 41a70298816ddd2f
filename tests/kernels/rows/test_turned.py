"""Packed by columns: weights with their inputs first, and transposes that move no value."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.pytorch_utils import Conv1D

import gossamer as gs

FORMATS = [
    gs.formats.PackedCSR(order=(1, 0)),
    gs.formats.PackedCSR(64, order=(1, 0)),
    gs.formats.Condensed(order=(1, 0)),
    gs.formats.PackedNM(2, 4, order=(1, 0)),
    gs.formats.PackedGroupedNM(2, 4, 1, order=(1, 0)),
]
every = pytest.mark.parametrize("format", FORMATS, ids=str)
SHAPES = [(1, 1), (3, 5), (130, 17), (64, 400), (300, 33)]


def weight(rows: int, cols: int, format: gs.Format) -> gs.SparseTensor:
    """A matrix whose columns keep two of each four."""
    mask = gs.NM(2, 4).select(torch.rand(cols, rows)).t()
    return gs.from_dense((torch.rand(rows, cols) + 0.5) * mask, format)


@every
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 17, 64])
def test_products(format: gs.Format, shape: tuple[int, int], tokens: int) -> None:
    w = weight(*shape, format)
    dense = w.to_dense()
    x, bias = torch.randn(tokens, shape[0]), torch.randn(shape[1])
    with gs.fallback("error"):
        torch.testing.assert_close(torch.addmm(bias, x, w), torch.addmm(bias, x, dense))
        torch.testing.assert_close(x @ w, x @ dense)
        torch.testing.assert_close(x[None] @ w, x[None] @ dense)
    assert "RowsProduct" in gs.explain(torch.addmm, bias, x, w).why
    # what they are not made for goes another way, and is right
    with gs.fallback("silent"):
        torch.testing.assert_close(F.linear(torch.ones(2, shape[1]), w), F.linear(torch.ones(2, shape[1]), dense))
        torch.testing.assert_close(w @ torch.ones(shape[1], 2), dense @ torch.ones(shape[1], 2))
        torch.testing.assert_close(torch.addmm(bias, x, w, beta=2), torch.addmm(bias, x, dense, beta=2))


@every
def test_format(format: gs.Format) -> None:
    w = weight(20, 12, format)
    assert gs.formats.as_format(repr(format)) == format != format.turned() == format.transposed()
    assert format.turned().turned() == format
    assert w.t().format == format.turned()
    assert w.t()._values.data_ptr() == w._values.data_ptr()  # no value moved
    torch.testing.assert_close(w.t().to_dense(), w.to_dense().t())
    again = gs.SparseTensor.from_arrays(format, w.shape, w._values, w.structure.arrays)
    assert torch.equal(again.to_dense(), w.to_dense())
    assert w.to_format(gs.CSR()).to_format(format).to_dense().equal(w.to_dense())


@every
def test_gradients(format: gs.Format) -> None:
    w = weight(20, 12, format)
    x, bias = torch.randn(5, 20), torch.randn(12)
    dense = w.to_dense().requires_grad_()
    sparse = torch.nn.Parameter(w)
    grads = []
    for one in (sparse, dense):
        a, b = x.clone().requires_grad_(), bias.clone().requires_grad_()
        torch.addmm(b, a, one).square().sum().backward()
        grads.append((a.grad, b.grad))
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert sparse.grad is not None and sparse.grad.format == format
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad * w.mask())


def test_too_many_in_a_column_are_refused() -> None:
    dense = torch.zeros(8, 4)
    dense[:3, 0] = 1
    with pytest.raises(ValueError, match="at most 2 of each 4"):
        gs.from_dense(dense, gs.formats.PackedNM(2, 4, order=(1, 0)))
    gs.from_dense(dense.t().contiguous(), gs.formats.PackedCSR(order=(1, 0)))


def test_pack_finds_the_pattern_of_a_conv1d() -> None:
    model = torch.nn.Sequential(Conv1D(1024, 1024))
    gs.sparsify_(model, "1:8")
    x = torch.randn(1, 1024)
    before = model(x)
    (row,) = gs.pack_(model, x, tune=False).layers
    assert row.format == "PackedNM(1, 8, order=(1, 0))" and row.tokens == (1,)
    torch.testing.assert_close(model(x), before)
