"""torch.func transforms of models with sparse weights: as of the dense model with the same zeros."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

import gossamer as gs

FORMATS = [gs.Masked(), gs.CSR(), gs.COO(), gs.formats.PackedCSR()]


def pair(format):
    torch.manual_seed(0)
    model = gs.sparsify_(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), "50%", format=format)
    return model, gs.densify_(copy.deepcopy(model))


@pytest.mark.parametrize("format", FORMATS)
def test_of_the_input(format):
    model, dense = pair(format)
    x, v = torch.randn(8), torch.randn(8)
    for transform in (
        lambda f: vmap(f)(torch.stack([x, v])),
        lambda f: jacrev(f)(x),
        lambda f: jvp(f, (x,), (v,))[1],
        lambda f: grad(lambda y: f(y).sum())(x),
        lambda f: hessian(lambda y: f(y).square().sum())(x),
        lambda f: vmap(jacrev(f))(torch.stack([x, v])),
    ):
        torch.testing.assert_close(transform(model), transform(dense), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", FORMATS)
def test_of_the_parameters(format):
    model, dense = pair(format)
    x = torch.randn(5, 8)
    name = "0.weight" if format == gs.Masked() else "0.weight_values"

    def loss(network, parameters, x):
        return functional_call(network, parameters, (x,)).square().sum()

    theirs = vmap(grad(lambda p, x: loss(dense, p, x)), in_dims=(None, 0))(dict(dense.named_parameters()), x)
    ours = vmap(grad(lambda p, x: loss(model, p, x)), in_dims=(None, 0))(dict(model.named_parameters()), x)
    torch.testing.assert_close(ours["2.bias"], theirs["2.bias"], rtol=1e-4, atol=1e-5)
    mask = model[0].weight.mask()
    if format == gs.Masked():
        torch.testing.assert_close(ours[name] * mask, theirs["0.weight"] * mask, rtol=1e-4, atol=1e-5)
    elif format == gs.CSR():
        torch.testing.assert_close(ours[name], theirs["0.weight"][:, mask], rtol=1e-4, atol=1e-5)


def test_a_sparse_tensor_itself_is_refused_in_words():
    w = gs.from_dense(torch.eye(3), gs.CSR()).requires_grad_()
    with pytest.raises(NotImplementedError, match="don't follow a SparseTensor"):
        vmap(lambda x: F.linear(x, w))(torch.randn(2, 3))
