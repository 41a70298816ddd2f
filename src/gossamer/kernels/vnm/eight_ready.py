"""Products with activations that are in 8 bits already, on a GPU: what a graph of ``torch.compile`` calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm.eight import linear8_ready
from gossamer.kernels.vnm.eight_cuda import WEIGHTS
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import MANY, compiled
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Box, Buffer, Call

_VALUES, _META, _SCALE, _SMALL, _TOKENS, _BIAS, _OUT = range(7)


def most_tokens(rows: int, device: int) -> int:
    """Return up to how many tokens the kernel takes; 0 on a GPU without it. A constant in traces."""
    new = gpu.capability(device) == (9, 0)
    return vnm_plan.most_of_some(rows, gpu.processors(device)) if new else 0


most_tokens._dynamo_marked_constant = True  # type: ignore[attr-defined]


def decide(
    values: Tensor, meta: Tensor, scale: Tensor, small: Tensor, token_scale: Tensor, bias: Tensor | None, rows: int,
    bfloat: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch."""
    tokens, width, device = *small.shape, small.get_device()
    dtype = torch.bfloat16 if bfloat else torch.float16
    if scale.shape != (rows,) or token_scale.shape != (tokens,) or values.dtype is not small.dtype:
        raise RuntimeError(
            f"expected {rows} scales of rows, {tokens} of tokens and activations of {values.dtype}, got "
            f"{tuple(scale.shape)}, {tuple(token_scale.shape)} and {small.dtype}"
        )
    steps = width // 128
    launch = vnm_plan.some(tokens, rows, steps, ELEMENTS[dtype], 0, gpu.processors(device), WEIGHTS[values.dtype])
    arguments = (
        Address(_VALUES), Address(_META), 0, Address(_SMALL), Address(_OUT), Address(_BIAS), Address(_SCALE),
        Address(_TOKENS), rows, steps * 64, 4, vnm_plan.sharing(0), tokens, steps, width, 2 * rows, *launch.tiles,
        launch.lines, Box(_SMALL, steps * 64, tokens, width, launch.lines),
    )  # fmt: skip
    product = calls.Launch(compiled(launch, device, f"{MANY} 128s"), launch.grid, launch.threads, arguments)
    return Call((Buffer((tokens, rows), (rows, 1), dtype),), (product,), (_VALUES, _META, _SMALL))


def prepare(
    values: Tensor, meta: Tensor, scale: Tensor, small: Tensor, token_scale: Tensor, bias: Tensor | None, rows: int,
    bfloat: int,
) -> tuple[Any, ...] | None:  # fmt: skip
    """Return the arguments in an order that the kernel takes; None if it doesn't take them."""
    tokens, width = small.shape
    if not usable() or width % 128 or not 0 < tokens <= most_tokens(rows, small.get_device()):
        return None
    if bias is not None:
        bias = bias.to(torch.bfloat16 if bfloat else torch.float16).contiguous()
    return values, meta, scale.contiguous(), small.contiguous(), token_scale.contiguous(), bias, rows, bfloat


KINDS = Kinds(6, prepare, decide, linear8_ready)
gpu.register(_library, "vnm_8bit_ready", KINDS)
