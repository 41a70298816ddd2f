"""gs.from_dense: the nonzeros of a dense tensor, in any format."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs
from tests.formats import _draw

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0], [0.0, 5.0, 6.0, 0.0]])


def test_from_dense_keeps_exactly_the_nonzeros() -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45])
    t = gs.from_dense(x, gs.COO())
    assert t.structure.arrays["crd0"].tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool]
)
def test_dense_types(dtype: torch.dtype) -> None:
    t = gs.from_dense(X.to(dtype), gs.CSR())
    assert t.dtype == dtype and torch.equal(t.to_dense(), X.to(dtype))


@pytest.mark.parametrize("format", [*_draw.NAMED, gs.BSR((2, 3)), gs.Format("compressed", "dense")], ids=repr)
def test_gradients_flow_to_the_dense_tensor(format: gs.Format) -> None:
    x = X.double().requires_grad_()
    t = gs.from_dense(x, format)
    (t.to_dense() * torch.arange(16.0).view(4, 4)).sum().backward()
    assert torch.equal(x.grad, torch.arange(16.0).double().view(4, 4) * t.detach().mask())


def test_from_dense_converts_sparse_ones_and_refuses_the_rest() -> None:
    t = gs.from_dense(X, gs.CSR())
    assert gs.from_dense(t, gs.COO()).format == gs.COO() and gs.from_dense(t, gs.CSR()) is t
    with pytest.raises(TypeError, match=r"not a torch.sparse_coo tensor; gs.from_torch"):
        gs.from_dense(X.to_sparse(), gs.CSR())
    with pytest.raises(TypeError, match="not a list"):
        gs.from_dense([1.0], gs.CSR())
    with pytest.raises(TypeError, match="a format such as"):
        gs.from_dense(X, 5)


def test_a_dense_tensor_that_is_not_contiguous() -> None:
    for view in (X.t(), X[::2], X[:, 1:3], X[:1].expand(3, 4)):
        assert torch.equal(gs.from_dense(view, gs.CSR()).to_dense(), view)
