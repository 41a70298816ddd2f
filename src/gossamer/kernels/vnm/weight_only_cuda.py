"""Packed V:N:M weights of 8 or 4 bits and activations of 16 on a GPU: widened on their way to ``mma.sp``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import FEW, compiled, complain_of_sizes
from gossamer.kernels.vnm.weight_only import linear_widened
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Buffer, Call

_VALUES, _SHARED, _META, _SCALE, _X, _BIAS, _OUT = range(7)  # tensors of a call, then its buffer
#: Up to this many tokens, launches of 16 tokens each are faster than a product with weights that are converted first.
MOST_TOKENS = 128
_WEIGHTS = {torch.float8_e4m3fn: 1, torch.int32: 3}


def takes(values: Tensor, x: Tensor, v: int) -> str | None:
    """Return why the kernel can't multiply these, or None if it can."""
    capability = gpu.capability(values.get_device())
    if capability < (8, 0):
        return f"sparse tensor cores need compute capability 8.0, not {gpu.named(capability)}"
    if values.dtype not in _WEIGHTS:
        return f"weights are float8_e4m3fn, or int4 in words of torch.int32, not {values.dtype}"
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"activations are float16 or bfloat16, not {x.dtype}"
    if v % 16:
        return f'v is a multiple of 16 or "all", not {v}'
    return None


def decide(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    v: int, m: int, activation: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch, or raise what is wrong with them."""
    complain_of_sizes(values, x, bias, rows, cols)
    if bias is not None and bias.dtype is not x.dtype:
        raise RuntimeError(f"expected a bias of {x.dtype}, got {bias.dtype}")
    if reason := takes(values, x, v):
        raise RuntimeError(f"no weight-only kernel: {reason}")
    tokens, device, weight, line = x.shape[0], values.get_device(), _WEIGHTS[values.dtype], x.stride(0)
    most = min(tokens, vnm_plan.FEW_LAUNCH)
    launch = vnm_plan.few(
        most, rows, cols, v, m, gpu.capability(device), ELEMENTS[x.dtype], activation, gpu.processors(device), weight
    )
    run, steps = compiled(launch, device, FEW), -(-cols // (16 * m))
    scales = (Address(_SCALE), 0, 0) if weight == 1 else (0, 0, Address(_SCALE))
    launches = []
    for start in range(0, tokens, vnm_plan.FEW_LAUNCH):
        arguments = (
            Address(_VALUES), Address(_META), Address(_SHARED), Address(_X, start * 2 * line),
            Address(_OUT, start * 2 * rows), Address(_BIAS), *scales, rows, cols, m, vnm_plan.sharing(v),
            min(tokens - start, vnm_plan.FEW_LAUNCH), steps, 2 * line, 2 * rows,
        )  # fmt: skip
        launches.append(calls.Launch(run, launch.grid, launch.threads, arguments))
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    return Call((result,), tuple(launches), (_VALUES, _SHARED, _META, _SCALE, _X))


def prepare(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, *rest: int
) -> tuple[Any, ...] | None:  # fmt: skip
    """Return the arguments in an order that the kernels take; None if there is nothing to multiply, or much."""
    if not (x.numel() and rows) or not usable() or x.shape[0] > MOST_TOKENS:
        return None
    x = gpu.token_lines(x)
    bias = None if bias is None else bias.contiguous()
    return values, shared, meta, scale, x, bias, rows, *rest


KINDS = Kinds(6, prepare, decide, linear_widened, _X)
gpu.register(_library, "vnm_weight_only", KINDS)
