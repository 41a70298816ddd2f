"""Tensors on a CPU for tensors on a GPU: the kernels that the compiler writes, run by tests/native/emulator.py."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.gpu import kernel
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.cache import DESIGNS, PLANS
from gossamer.native.build import compiler
from tests.native import emulator

needs_a_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def _forget():
    PLANS.clear()
    DESIGNS.clear()
    kernel._KERNELS.clear()


@pytest.fixture
def gpu(monkeypatch):
    """Let ``gs.einsum`` take every tensor for one on a GPU, and launch kernels in the emulator."""
    _forget()
    monkeypatch.setattr(kernel, "on_gpu", lambda device: True)
    monkeypatch.setattr(kernel, "generated", emulator.generated)
    with gs.fallback("error"), gs.dense_from(None):
        yield
    _forget()


def sparse(*shape, density=0.3, format=None, dtype=torch.float32):
    """A random tensor; its first row is empty, its last is full."""
    mask = torch.rand(shape) < density
    if len(shape) > 1 and shape[0] > 2:
        mask[0], mask[-1] = False, True
    values = torch.randint(1, 9, shape) if not dtype.is_floating_point else torch.randn(shape)
    return gs.from_dense((values * mask).to(dtype), format or gs.CSR())


def arg(names, tensor):
    """A tensor as a plan knows it."""
    if isinstance(tensor, gs.SparseTensor):
        return Arg(tuple(names), tensor.structure, tuple(tensor.shape))
    return Arg(tuple(names), None, tuple(tensor.shape), tensor.stride())


def dense(tensor):
    return tensor.to_dense() if isinstance(tensor, gs.SparseTensor) else tensor


def right(expression, *tensors, gradients=True, **options):
    """Compare the result of an einsum, and the gradients of all its operands, with those of the interpreter."""
    leaves = [torch.nn.Parameter(t) if isinstance(t, gs.SparseTensor) else t.clone().requires_grad_() for t in tensors]
    exact = [dense(t).clone().requires_grad_() for t in tensors]
    out = gs.einsum(expression, *(leaves if gradients else tensors), **options)
    expected = interpret(parse(expression, [t.dim() for t in tensors]), exact)
    expected = expected * out.mask() if isinstance(out, gs.SparseTensor) else expected
    torch.testing.assert_close(dense(out), expected, rtol=1e-4, atol=1e-4)
    if not gradients:
        return out
    arriving = torch.randn_like(expected)
    found = torch.autograd.grad(dense(out), leaves, arriving)
    wanted = torch.autograd.grad(expected, exact, arriving)
    for t, mine, other in zip(tensors, found, wanted, strict=True):
        other = other * t.mask() if isinstance(t, gs.SparseTensor) else other
        torch.testing.assert_close(dense(mine), other, rtol=1e-4, atol=1e-4)
    return out
