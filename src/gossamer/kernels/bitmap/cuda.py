"""Packed bitmaps on a GPU: words go straight into the registers of sparse tensor cores."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats.levels.pieces import WIDTH
from gossamer.kernels import gpu
from gossamer.kernels.bitmap import plan
from gossamer.kernels.bitmap.operators import decode
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.product import activated
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import compiled, complain_of_sizes, kernel
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Argument, Box, Buffer, Call

_VALUES, _BITS, _POS, _X, _BIAS, _OUT = range(6)  # tensors of a call, then its buffer
_PROBLEM = "PPPPPPPPiiiiiii"


def takes(values: Tensor, x: Tensor) -> str | None:
    """Return why the kernel can't multiply these, or None if it can."""
    capability = gpu.capability(values.get_device())
    if capability < (8, 0):
        return f"bitmaps need compute capability 8.0, not {gpu.named(capability)}"
    if values.dtype not in (torch.float16, torch.bfloat16) or values.dtype is not x.dtype:
        return f"weight and activations are both float16 or both bfloat16, not {values.dtype} and {x.dtype}"
    if x.shape[0] > plan.TOKENS:
        return f"up to {plan.TOKENS} tokens, not {x.shape[0]}"
    return None


def decide(
    values: Tensor, bits: Tensor, pos: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, most: int,
    activation: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch, or raise what is wrong with them."""
    complain_of_sizes(values, x, bias, rows, cols)
    if bias is not None and bias.dtype is not x.dtype:
        raise RuntimeError(f"expected a bias of {x.dtype}, got {bias.dtype}")
    if reason := takes(values, x):
        raise RuntimeError(f"no bitmap kernel: {reason}")
    tokens, device, line = x.shape[0], values.get_device(), x.stride(0)
    launch = plan.product(
        tokens, rows, cols, most, gpu.capability(device), ELEMENTS[x.dtype], activation, gpu.processors(device)
    )
    steps = -(-cols // WIDTH)
    arguments: tuple[Argument, ...] = (
        Address(_VALUES), Address(_BITS), Address(_POS), Address(_X), Address(_OUT), Address(_BIAS), 0, 0, rows, cols,
        tokens, steps, 2 * line, 2 * rows, plan.slot_bytes(most), Box(_X, cols, tokens, 2 * line, tokens),
    )  # fmt: skip
    if gpu.capability(device) < (9, 0):
        arguments = (*arguments[:-1], bytes(128))
    run = compiled(launch, device, f"{_PROBLEM} 128s")
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    return Call((result,), (calls.Launch(run, launch.grid, launch.threads, arguments),), (_VALUES, _BITS, _POS, _X))


def prepare(
    values: Tensor, bits: Tensor, pos: Tensor, x: Tensor, bias: Tensor | None, rows: int, *rest: int
) -> tuple[Any, ...] | None:
    """Return the arguments in an order that the kernel takes; None if it doesn't, or there is nothing to multiply."""
    if not (x.numel() and rows) or not usable() or takes(values, x):
        return None
    bias = None if bias is None else bias.contiguous()
    return values, bits, pos, gpu.token_lines(x), bias, rows, *rest


def dense_linear(
    values: Tensor, bits: Tensor, pos: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, most: int,
    activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x @ A.T + bias) over a dense copy: what is faster for many tokens."""
    return activated(F.linear(x, dense_of(values, bits, pos, rows, cols), bias), activation).contiguous()


def dense_of(values: Tensor, bits: Tensor, pos: Tensor, rows: int, cols: int) -> Tensor:
    """Return the dense matrix."""
    if values.dtype not in ELEMENTS or not usable() or not rows * cols:
        return decode(values, bits, pos, rows, cols)
    dense = values.new_empty((rows, cols))
    steps = -(-cols // WIDTH)
    run = kernel("bitmap_dense", values.get_device(), ELEMENTS[values.dtype])
    held = (tensor.data_ptr() for tensor in (values.contiguous(), bits, pos, dense))
    run((-(-steps // 4), -(-rows // 16), 1), 128, *held, rows, cols, steps)
    return dense


KINDS = Kinds(5, prepare, decide, dense_linear, _X)
gpu.register(_library, "bitmap_linear", KINDS)
