"""Packed V:N:M with operands of 8 bits on a GPU: one kernel quantizes x, the next one multiplies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import plan_many
from gossamer.kernels.vnm.eight import LARGEST, linear8
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import MANY, compiled, complain_of_sizes
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Argument, Box, Buffer, Call

_VALUES, _SHARED, _META, _SCALE, _X, _BIAS, _SMALL, _OUT = range(8)  # tensors of a call, then its buffers
#: What kernels know a type by.
WEIGHTS = {torch.float8_e4m3fn: 1, torch.int8: 2}
_QUANTIZE = "PPPPqqqqq"
#: Columns of a token that the kernel rounds: they are in shared memory while they are gathered.
MOST_COLUMNS = 100_000


def takes(values: Tensor, x: Tensor, cols: int, v: int) -> str | None:
    """Return why the kernels can't multiply these, or None if they can."""
    capability = gpu.capability(values.get_device())
    if capability != (9, 0):
        return f"8-bit sparse tensor cores are used on compute capability 9.0, not {gpu.named(capability)}"
    if values.dtype not in LARGEST:
        return f"weights are float8_e4m3fn or int8, not {values.dtype}"
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"activations are float16 or bfloat16, not {x.dtype}"
    if v != 0:
        return f'v is "all" for operands of 8 bits, not {v}'
    if not 0 < cols <= MOST_COLUMNS:
        return f"a weight of 1 .. {MOST_COLUMNS} columns, not {cols}"
    return None


def decide(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    v: int, m: int, activation: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch."""
    tokens, device, weight = x.shape[0], values.get_device(), WEIGHTS[values.dtype]
    steps = -(-cols // (32 * m))
    small, scales = quantized_buffer(tokens, steps), Address(_SMALL, tokens * steps * 128)
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    some = tokens <= vnm_plan.most_of_some(rows, gpu.processors(device))
    launch = _some(tokens, rows, steps, x, activation, weight) if some else _many(
        tokens, rows, steps, x, activation, weight
    )  # fmt: skip
    maps: list[Argument] = [Box(_SMALL, steps * 64, tokens, steps * 128, launch.lines)]
    if not some:
        maps.insert(0, Box(_OUT, rows, tokens, 2 * rows, launch.macros["BOX"]) if launch.macros["OUT"] else bytes(128))
    arguments = (
        Address(_VALUES), Address(_META), 0, Address(_SMALL), Address(_OUT), Address(_BIAS), Address(_SCALE),
        scales, rows, steps * 64, 4, vnm_plan.sharing(0), tokens, steps, steps * 128, 2 * rows, *launch.tiles,
        launch.lines, *maps,
    )  # fmt: skip
    run = compiled(launch, device, f"{MANY}{' 128s' * len(maps)}")
    product = calls.Launch(run, launch.grid, launch.threads, arguments)
    aligned = (_VALUES, _META, _X) if x.stride(0) % 8 == 0 else (_VALUES, _META)
    places = Address(_X), Address(_SHARED), Address(_SMALL), scales
    return Call((small, result), (quantize_launch(x, cols, m, steps, weight, device, places), product), aligned)


def quantized_buffer(tokens: int, steps: int) -> Buffer:
    """Return the memory of quantized x: 128 bytes for each token and step, then scales, for whole tiles of tokens."""
    return Buffer((tokens * steps * 128 + -(-tokens // 256) * 1024,), (1,), torch.uint8)


def _some(tokens: int, rows: int, steps: int, x: Tensor, activation: int, weight: int) -> vnm_plan.Launch:
    processors = gpu.processors(x.get_device())
    return vnm_plan.some(tokens, rows, steps, ELEMENTS[x.dtype], activation, processors, weight, True)


def _many(tokens: int, rows: int, steps: int, x: Tensor, activation: int, weight: int) -> vnm_plan.Launch:
    processors = gpu.processors(x.get_device())
    order = (True, True)
    launch = plan_many.many(tokens, rows, steps, 0, 4, order, ELEMENTS[x.dtype], activation, processors, weight)
    assert launch is not None  # there are no lists of columns that could be too long
    return launch


def quantize_launch(
    x: Tensor,
    cols: int,
    m: int,
    steps: int,
    weight: int,
    device: int,
    places: tuple[Address, Address, Address, Address],
    wide: bool = False,
) -> calls.Launch:
    """Return the launch that brings x into 8 bits; ``weight``: 1 e4m3, 2 int8; ``wide``: written in float16.

    ``places``: x, the shared columns, the result and its scales.
    """
    launch = vnm_plan.quantize(x.shape[0], cols, m, steps, ELEMENTS[x.dtype], weight, gpu.processors(device), wide)
    arguments = (
        *places, x.stride(0), cols, m, steps, int(x.stride(0) % 8 == 0),
    )  # fmt: skip
    return calls.Launch(compiled(launch, device, _QUANTIZE), launch.grid, launch.threads, arguments)


def complain_of_scales(scale: Tensor, x: Tensor, bias: Tensor | None, rows: int) -> None:
    """Raise RuntimeError unless there is a scale for each row, and a bias, if any, has the type of x."""
    if (bias is not None and bias.dtype is not x.dtype) or scale.dtype is not torch.float32 or scale.shape != (rows,):
        raise RuntimeError(
            f"expected a bias of {x.dtype} and {rows} scales of torch.float32, got "
            f"{None if bias is None else bias.dtype}, {tuple(scale.shape)} of {scale.dtype}"
        )


def checked(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    v: int, m: int, activation: int,
) -> Call:  # fmt: skip
    """As :func:`decide`, with the operands checked."""
    complain_of_sizes(values, x, bias, rows, cols)
    complain_of_scales(scale, x, bias, rows)
    if reason := takes(values, x, cols, v):
        raise RuntimeError(f"no 8-bit kernel: {reason}")
    return decide(values, shared, meta, scale, x, bias, rows, cols, v, m, activation)


def prepare(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, *rest: int
) -> tuple[Any, ...] | None:  # fmt: skip
    """Return the arguments in an order that the kernels take; None if there is nothing to multiply."""
    if not (x.shape[0] and rows) or not usable():
        return None
    x = x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    bias = None if bias is None else bias.contiguous()
    return values, shared, meta, scale, x, bias, rows, *rest


KINDS = Kinds(6, prepare, checked, linear8, _X)
gpu.register(_library, "vnm_8bit", KINDS)
