"""Convolutions as einsums, against torch's, with gradients."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs

torch.manual_seed(0)


def sparse(*shape, format=None):
    x = torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < 0.4)
    return gs.from_dense(x, format or gs.CSF())


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_one_dimension(stride, step):
    w, x = sparse(4, 3), torch.randn(20, dtype=torch.float64)
    got = gs.einsum(f"o k, {stride}*i+{step}*k -> o i", w, x)
    want = F.conv1d(x[None, None], w.to_dense()[:, None], stride=stride, dilation=step)[0]
    assert torch.allclose(got, want)


def test_two_dimensions_with_gradients():
    w, x = sparse(5, 3, 3, 2).requires_grad_(), torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    dense, y = w.detach().to_dense().requires_grad_(), x.detach().clone().requires_grad_()
    got, want = gs.einsum("o c p q, b c y+p x+q -> b o y x", w, x), F.conv2d(y, dense)
    assert torch.allclose(got, want)
    got.square().sum().backward()
    want.square().sum().backward()
    assert torch.allclose(x.grad, y.grad)
    assert torch.allclose(w.grad.to_dense(), dense.grad * w.detach().mask())


def test_a_sparse_signal_is_read_as_a_dense_one():
    x, w = sparse(9, format=gs.Format("compressed")), torch.randn(3, dtype=torch.float64)
    want = F.conv1d(x.to_dense()[None, None], w[None, None])[0, 0]
    with gs.fallback("silent"):
        assert torch.allclose(gs.einsum("k, i+k -> i", w, x), want)


def test_in_a_trace():
    w = sparse(4, 3)
    f = torch.compile(lambda x: gs.einsum("o k, i+k -> o i", w, x), backend="aot_eager", fullgraph=True)
    x = torch.randn(20, dtype=torch.float64)
    assert torch.allclose(f(x), gs.einsum("o k, i+k -> o i", w, x))


def test_refused():
    w, x = sparse(4, 3), torch.randn(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="does not fit"):
        gs.einsum("o k, i+k -> o i", w, x)
    with pytest.raises(ValueError, match="not known"):
        gs.einsum("o k, i+j -> o i", w, x)
    with pytest.raises(ValueError, match="dimensions"):
        gs.einsum("o k l, i+k -> o i", w, x)
