"""Between token-major and feature-major activations on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.native.cuda import function, usable

_ELEMENTS = {2: 0, 4: 2}  # by bytes: bits are moved, whatever they mean
LINE = 8  # elements that the start of every line is a multiple of: 16 bytes at half precision


def transpose(x: Tensor) -> Tensor:
    """Return the transpose of a matrix with contiguous rows, in memory of its own, lines padded to a multiple of 8.

    The result is a view [cols, rows] of that memory.
    """
    rows, cols = x.shape
    lead = -(-rows // LINE) * LINE
    out = x.new_empty((cols, lead))
    if not (rows and cols):
        return out[:, :rows]
    plain = torch.compiler.is_compiling() or (torch.is_grad_enabled() and x.requires_grad)
    if plain or x.element_size() not in _ELEMENTS or not x.is_cuda or not usable():
        return out[:, :rows].copy_(x.t())
    return _launch(x, out)[:, :rows]


def _launch(x: Tensor, out: Tensor) -> Tensor:
    (rows, cols), lead = x.shape, out.shape[1]
    if x.stride(1) != 1:
        x = x.contiguous()
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0
    run = function("transpose.cu", "transpose", x.get_device(), "P q P q q q q", ELEMENT=_ELEMENTS[x.element_size()])
    side = 256 // x.element_size()  # of what a block takes: 16 squares of 16 bytes
    grid = (-(-cols // side), -(-lead // side), 1)
    run(grid, 256, x.data_ptr(), x.stride(0), out.data_ptr(), lead, rows, cols, aligned)
    return out


def feature_major(x: Tensor) -> Tensor:
    """Return the same matrix of tokens, feature-major in memory: what a chain of packed V:N:M layers likes best.

    Each such layer's result is then feature-major too, and no layer of the chain transposes anything.

    Examples
    --------
    >>> import torch
    >>> x = torch.randn(2, 3, 16)
    >>> y = feature_major(x)
    >>> torch.equal(x, y), y.stride(-1)
    (True, 8)
    """
    flat = x.reshape(-1, x.shape[-1])
    if flat.stride(0) == 1 and flat.stride(1) != 1:
        return x
    return transpose(flat).t().unflatten(0, x.shape[:-1]) if x.dim() != 2 else transpose(flat).t()


def token_major(x: Tensor) -> Tensor:
    """Return the same matrix of tokens, token-major in memory: torch's own order.

    Examples
    --------
    >>> import torch
    >>> token_major(torch.randn(16, 5).t()).is_contiguous()
    True
    """
    if x.is_contiguous():
        return x
    flat = x.reshape(-1, x.shape[-1])
    if not (flat.is_cuda and flat.stride(0) == 1 and flat.shape[1] % LINE == 0):
        return x.contiguous()  # the kernel pads its lines
    return transpose(flat.t()).view(x.shape)
