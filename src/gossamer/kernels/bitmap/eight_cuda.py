"""Bitmaps with values of e4m3 on a GPU: one kernel rounds x, the next one multiplies; a dense copy for many tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.bitmap import plan
from gossamer.kernels.bitmap.eight import linear_bitmap8
from gossamer.kernels.bitmap.planes import WIDTH, unpack_planes
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.product import activated
from gossamer.kernels.quantized.dense import linear_dense8
from gossamer.kernels.vnm.eight_cuda import MOST_COLUMNS, complain_of_scales, quantize_launch
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import compiled, complain_of_sizes, kernel
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Argument, Box, Buffer, Call

_VALUES, _BITS, _POS, _SCALE, _X, _BIAS, _SMALL, _OUT = range(8)  # tensors of a call, then its buffers
_NONE = _BIAS  # of the columns that x is gathered by: it is not
_PROBLEM = "PPPPPPPPiiiiiii"


def takes(values: Tensor, x: Tensor, cols: int) -> str | None:
    """Return why the kernels can't multiply these, or None if they can."""
    capability = gpu.capability(values.get_device())
    if capability != (9, 0):
        return f"8-bit sparse tensor cores are used on compute capability 9.0, not {gpu.named(capability)}"
    if values.dtype is not torch.float8_e4m3fn:
        return f"weights are float8_e4m3fn, not {values.dtype}"
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"activations are float16 or bfloat16, not {x.dtype}"
    if x.shape[0] > plan.TOKENS:
        return f"up to {plan.TOKENS} tokens, not {x.shape[0]}"
    if not 0 < cols <= MOST_COLUMNS:
        return f"a weight of 1 .. {MOST_COLUMNS} columns, not {cols}"
    return None


def decide(
    values: Tensor, bits: Tensor, pos: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    activation: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch, or raise what is wrong with them."""
    complain_of_sizes(values, x, bias, rows, cols)
    complain_of_scales(scale, x, bias, rows)
    if reason := takes(values, x, cols):
        raise RuntimeError(f"no 8-bit bitmap kernel: {reason}")
    tokens, device, longest = x.shape[0], values.get_device(), values.shape[1]
    steps = -(-cols // WIDTH)
    line = 2 * steps * WIDTH  # bytes of a token, as float16
    small, scales = Buffer((tokens * (line + 4),), (1,), torch.uint8), Address(_SMALL, tokens * line)
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    places = Address(_X), Address(_NONE), Address(_SMALL), scales
    rounding = quantize_launch(x, cols, 4, steps, 1, device, places, wide=True)
    launch = plan.product(
        tokens, rows, cols, longest, (9, 0), ELEMENTS[x.dtype], activation, gpu.processors(device), weight=1
    )
    arguments: tuple[Argument, ...] = (
        Address(_VALUES), Address(_BITS), Address(_POS), Address(_SMALL), Address(_OUT), Address(_BIAS),
        Address(_SCALE), scales, rows, steps * WIDTH, tokens, steps, line, 2 * rows,
        plan.slot_bytes(longest, weight=1), Box(_SMALL, steps * WIDTH, tokens, line, tokens),
    )  # fmt: skip
    product = calls.Launch(compiled(launch, device, f"{_PROBLEM} 128s"), launch.grid, launch.threads, arguments)
    aligned = (_VALUES, _BITS, _POS, _X) if x.stride(0) % 8 == 0 else (_VALUES, _BITS, _POS)
    return Call((small, result), (rounding, product), aligned)


def prepare(
    values: Tensor, bits: Tensor, pos: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    activation: int,
) -> tuple[Any, ...] | None:  # fmt: skip
    """Return the arguments in an order that the kernels take; None if they don't, or there is nothing to multiply."""
    if not (x.numel() and rows) or not usable() or takes(values, x, cols):
        return None
    x = x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    values, bits, pos, scale = (array.contiguous() for array in (values, bits, pos, scale))
    bias = None if bias is None else bias.contiguous()
    return values, bits, pos, scale, x, bias, rows, cols, activation


def dense_linear(
    values: Tensor, bits: Tensor, pos: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x' @ (scale * A).T + bias) over a dense copy: what is faster for many tokens."""
    if not x.is_cuda:
        return linear_bitmap8(values, bits, pos, scale, x, bias, rows, cols, activation)
    return activated(linear_dense8(dense_of(values, bits, pos, rows, cols), scale, x, bias), activation).contiguous()


def dense_of(values: Tensor, bits: Tensor, pos: Tensor, rows: int, cols: int) -> Tensor:
    """Return the dense matrix of e4m3, without its scales."""
    if not usable() or not rows * cols:
        return unpack_planes(values, bits, pos, rows, cols)
    dense = values.new_empty((rows, cols))
    steps = -(-cols // WIDTH)
    run = kernel("bitmap_planes_dense", values.get_device(), 0)
    held = (values.contiguous(), bits.contiguous(), pos.contiguous(), dense)
    run((-(-steps // 4), -(-rows // 16), 1), 128, *(tensor.data_ptr() for tensor in held), rows, cols, steps)
    return dense


KINDS = Kinds(6, prepare, decide, dense_linear, _X)
gpu.register(_library, "bitmap_8bit", KINDS)
