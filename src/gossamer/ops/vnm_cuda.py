"""Packed V:N:M on a GPU: which kernel runs for a call, and its launch.

A **plan** is chosen by the number of tokens, the type, v and m, and the GPU:

- ``few``: up to 64 tokens, by ``mma.sp`` from compute capability 8.0 on; bound by memory,
- ``many``: by ``wgmma.sp`` on compute capability 9.0,
- ``any``: plain threads; any v, strides and GPU,
- ``dense``: decoded into a dense scratch, then cuBLAS: what is right, and never far from dense, for everything else.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.native.cuda import Function, function, usable
from gossamer.ops import vnm_kernels
from gossamer.ops.vnm_kernels import ACTIVATIONS, _library, empty_result, feature_major

ELEMENTS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_VNM = "PPPqqqqq"
_KERNELS = {  # source and parameters of each
    "vnm_any": ("vnm_any.cu", f"{_VNM}PqqPPqqqq"),
    "vnm_decode": ("vnm_decode.cu", f"{_VNM}Pq"),
    "vnm_sample": ("vnm_decode.cu", f"{_VNM}PqP"),
    "vnm_compact": ("vnm_compact.cu", "PqPPqqqq"),
}
_ready: dict[tuple[str, int, int], Function] = {}
_capability: dict[int, tuple[int, int]] = {}
#: Above so many tokens plain threads are slower than a decoded copy and cuBLAS.
_ANY_TOKENS = 16


def kernel(name: str, device: int, element: int) -> Function:
    """Return a kernel for elements of a type, on a device."""
    found = _ready.get((name, device, element))
    if found is None:
        source, parameters = _KERNELS[name]
        found = _ready[name, device, element] = function(source, name, device, parameters, ELEMENT=element)
    return found


def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a device, as torch says it."""
    found = _capability.get(device)
    if found is None:
        found = _capability[device] = torch.cuda.get_device_capability(device)
    return found


def plan(tokens: int, dtype: torch.dtype, v: int, m: int, device: int) -> str:
    """Return the plan for a call: any or dense."""
    return "any" if dtype in ELEMENTS and tokens <= _ANY_TOKENS and usable() else "dense"


def linear(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x @ A.T + bias), in the order of x: token-major, or feature-major."""
    _check(values, x, bias, rows, cols)
    tokens, device = x.shape[0], values.get_device()
    if not (tokens and rows):
        return empty_result(x, rows)
    chosen = plan(tokens, values.dtype, v, m, device)
    if chosen == "dense":
        return _dense(values, shared, meta, x, bias, rows, cols, v, m, activation)
    return _any(values, shared, meta, x, bias, rows, cols, v, m, activation)


def _check(values: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int) -> None:
    if x.dtype is not values.dtype or (bias is not None and bias.dtype is not x.dtype):
        raise RuntimeError(
            f"expected input, weight and bias of one dtype, got {x.dtype}, {values.dtype}"
            + ("" if bias is None else f" and {bias.dtype}")
        )
    device = values.device
    if x.device != device or (bias is not None and bias.device != device):
        raise RuntimeError(
            f"expected all tensors on one device: input on {x.device}, weight on {device}"
            + ("" if bias is None else f", bias on {bias.device}")
        )
    if x.dim() != 2 or x.shape[1] != cols or (bias is not None and bias.shape != (rows,)):
        raise RuntimeError(
            f"a weight of {rows} x {cols} takes an input of tokens x {cols} and a bias of {rows}, not an input of "
            f"{tuple(x.shape)}" + ("" if bias is None else f" and a bias of {tuple(bias.shape)}")
        )


def _any(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int,
) -> Tensor:  # fmt: skip
    tokens, device = x.shape[0], values.get_device()
    out = empty_result(x, rows)
    bias = bias if bias is None else bias.contiguous()
    kernel("vnm_any", device, ELEMENTS[values.dtype])(
        (-(-rows // 128), min(-(-tokens // 4), 65535), 1),
        128,
        *_arguments(values, shared, meta, rows, cols, v, m),
        x.data_ptr(),
        *x.stride(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        *out.stride(),
        tokens,
        activation,
    )
    return out


def _dense(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int,
) -> Tensor:  # fmt: skip
    dense = decode(values, shared, meta, rows, cols, v, m)
    if not feature_major(x):
        return ACTIVATIONS[activation](F.linear(x, dense, bias))
    out = dense @ x.t() if bias is None else torch.addmm(bias[:, None], dense, x.t())
    return empty_result(x, rows).copy_(ACTIVATIONS[activation](out).t())


def decode(values: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> Tensor:
    """Return the dense matrix."""
    if values.dtype not in ELEMENTS or not usable():
        return vnm_kernels.decode(values, shared, meta, rows, cols, v, m)
    dense = values.new_zeros((rows, cols))
    groups = -(-cols // m)
    if dense.numel():
        arguments = _arguments(values.contiguous(), shared, meta, rows, cols, v, m)
        run = kernel("vnm_decode", values.get_device(), ELEMENTS[values.dtype])
        run((-(-rows * groups // 256), 1, 1), 256, *arguments, dense.data_ptr(), groups)
    return dense


def sample(dense: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> Tensor:
    """Return the values at the places of a packed matrix."""
    if dense.dtype not in ELEMENTS or not usable():
        return vnm_kernels.sample(dense, shared, meta, rows, cols, v, m)
    dense = dense.contiguous()
    values = dense.new_zeros(meta.numel() * 16)
    groups = -(-cols // m)
    if dense.numel():
        arguments = _arguments(values, shared, meta, rows, cols, v, m)
        run = kernel("vnm_sample", dense.get_device(), ELEMENTS[dense.dtype])
        run((-(-rows * groups // 256), 1, 1), 256, *arguments, dense.data_ptr(), groups, values.data_ptr())
    return values


def compact(x: Tensor, shared: Tensor, cols: int, m: int) -> Tensor:
    """Return the shared columns of token-major activations side by side, for v = "all"."""
    tokens, steps = x.shape[0], shared.numel() // 64
    out = x.new_empty((tokens, steps * 64))
    run = kernel("vnm_compact", x.get_device(), ELEMENTS[x.dtype])
    grid = (-(-tokens * steps * 8 // 256), 1, 1)
    run(grid, 256, x.data_ptr(), x.stride(0), shared.data_ptr(), out.data_ptr(), tokens, cols, m, steps)
    return out


def _arguments(values: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> tuple[Any, ...]:
    steps = -(-cols // (16 * m))
    return values.data_ptr(), meta.data_ptr(), shared.data_ptr(), rows, cols, steps, v, m


_library.impl("vnm_linear", linear, "CUDA")
_library.impl("vnm_decode", decode, "CUDA")
_library.impl("vnm_sample", sample, "CUDA")
