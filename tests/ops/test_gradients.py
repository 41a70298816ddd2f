"""Backward formulas of pointwise functions for a sparse gradient."""

import pytest
import torch

import gossamer as gs
from gossamer.core.dispatch import choose
from gossamer.ops.gradients import NAMES
from tests.formats_under_test import ALL

aten = torch.ops.aten
G = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -4.0]], dtype=torch.float64)
X = torch.tensor([[1.0, -1.0, 0.5], [2.0, -3.0, 0.25]], dtype=torch.float64)
CALLS = {
    "threshold_backward": (X, 0.0),
    "gelu_backward": (X,),
    "silu_backward": (X,),
    "sigmoid_backward": (X.sigmoid(),),
    "tanh_backward": (X.tanh(),),
    "elu_backward": (1.0, 1.0, 1.0, False, X),
    "leaky_relu_backward": (X, 0.1, False),
    "hardtanh_backward": (X, -1.0, 1.0),
    "hardswish_backward": (X,),
    "hardsigmoid_backward": (X,),
    "mish_backward": (X,),
    "softplus_backward": (X, 1.0, 20.0),
    "native_dropout_backward": (X > 0, 2.0),
    "hardshrink_backward": (X, 0.5),
    "softshrink_backward": (X, 0.5),
    "log_sigmoid_backward": (X, torch.zeros_like(X)),
}


def test_relu_by_hand():
    out = aten.threshold_backward(gs.from_dense(G, gs.CSR()), X, 0.0)
    assert out.format == gs.CSR() and out.to_dense().tolist() == [[0.0, 0.0, 0.0], [3.0, 0.0, -4.0]]
    assert out.nnz == 3  # the pattern of the gradient that arrived


def test_every_name_has_a_case():
    assert set(CALLS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", [gs.CSR(), gs.ELL(), gs.BSR((2, 3))], ids=repr)
def test_each_is_the_dense_one_at_the_stored_positions(name, format):
    grad, function = gs.from_dense(G, format), getattr(aten, name)
    with gs.fallback("error"):
        out = function(grad, *CALLS[name])
    assert out.format == format
    torch.testing.assert_close(
        out.to_dense(), torch.where(grad.mask(), function(G, *CALLS[name]), 0), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("format", ALL, ids=repr)
def test_padding_stays_zero(format):
    grad = gs.from_dense(G, format)
    out = aten.sigmoid_backward(grad, torch.full_like(X, float("nan")))
    out.structure.check(out._values.nan_to_num(1.0))


def test_what_is_left_to_others():
    grad = gs.from_dense(G, gs.CSR())
    wide = torch.ones(2, 2, 3, dtype=torch.float64)
    assert "another shape" in choose(aten.tanh_backward.default, (grad, wide)).reason
    assert "gradient is dense" in choose(aten.tanh_backward.default, (X, grad)).reason
