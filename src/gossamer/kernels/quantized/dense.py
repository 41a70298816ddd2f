"""Dense linear layers in 8 bits: activations quantized token by token, then torch's own product.

``quantize_8bit(x, integer)`` gives x in e4m3 or int8, lines padded with zeros to a multiple of 128, and a float32 scale
for each token: its largest magnitude over 448 or 127.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.product import plain
from gossamer.kernels.vnm.eight import quantize
from gossamer.kernels.vnm.eight_cuda import WEIGHTS, quantize_launch
from gossamer.kernels.vnm.operators import _library
from gossamer.native.cuda import usable
from gossamer.native.cuda.calls import Address, Buffer, Call

_library.define("quantize_8bit(Tensor x, bool integer) -> (Tensor, Tensor)")
_LEAST_INT = 17  # tokens of a product of torch's in int8
_X, _NONE, _SMALL, _SCALE = range(4)  # tensors of a call, then its buffers
_calls: dict[tuple[Any, ...], Call] = {}


def _dtype(integer: bool) -> torch.dtype:
    return torch.int8 if integer else torch.float8_e4m3fn


def quantize_tokens(x: Tensor, integer: bool) -> tuple[Tensor, Tensor]:
    """Return x in 8 bits and the scales of its tokens, by torch's own operators on any device.

    Examples
    --------
    >>> import torch
    >>> small, scale = quantize_tokens(torch.tensor([[1.0, -2.0]]), False)
    >>> small[:, :2].float(), scale * 448, small.shape
    (tensor([[ 224., -448.]]), tensor([2.]), torch.Size([1, 128]))
    """
    small, scale = quantize(x, None, x.shape[1], 4, _dtype(integer))
    padded = x.new_zeros((x.shape[0], -(-x.shape[1] // 128) * 128), dtype=small.dtype)
    padded[:, : x.shape[1]] = small
    return padded, scale


def quantize_tokens_cuda(x: Tensor, integer: bool) -> tuple[Tensor, Tensor]:
    """As :func:`quantize_tokens`, by one kernel where there is one."""
    if takes(x) is not None:
        return quantize_tokens(x, integer)
    x = x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    if x.data_ptr() % 16 and x.stride(0) % 8 == 0:
        x = x.clone()
    key = (x.shape, x.stride(), x.dtype, x.get_device(), integer)
    call = _calls.get(key)
    if call is None:
        if len(_calls) >= gpu.MOST_KINDS:
            _calls.clear()
        call = _calls[key] = _decide(x, integer)
    small, scale = call.run(x, None)
    return small.view(_dtype(integer)), scale


def takes(x: Tensor) -> str | None:
    """Return why there is no kernel that quantizes x, or None if there is one."""
    if not usable() or gpu.capability(x.get_device()) < (9, 0):
        return "the kernel is for compute capability 9.0 and later"
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"the kernel is for float16 and bfloat16, not {x.dtype}"
    return None if x.numel() else "there is nothing to quantize"


def _decide(x: Tensor, integer: bool) -> Call:
    (tokens, cols), device = x.shape, x.get_device()
    steps = -(-cols // 128)
    small = Buffer((tokens, steps * 128), (steps * 128, 1), torch.uint8)
    places = Address(_X), Address(_NONE), Address(_SMALL), Address(_SCALE)
    launch = quantize_launch(x, cols, 4, steps, WEIGHTS[_dtype(integer)], device, places)
    return Call((small, Buffer((tokens,), (1,), torch.float32)), (launch,))


def linear_dense8(values: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Return x' @ (scale * values).T + bias for x [tokens, cols] and its rounded x'; the result has the type of x.

    On a GPU by ``torch._scaled_mm`` (e4m3) or ``torch._int_mm`` (int8), where rows and columns are multiples of 16;
    elsewhere by a product of float32.
    """
    integer, (rows, cols) = values.dtype is torch.int8, values.shape
    if x.is_cuda and plain(x):  # without torch's dispatcher, which takes longer than the kernel
        small, tokens = quantize_tokens_cuda(x, integer)
    else:
        small, tokens = torch.ops.gossamer.quantize_8bit(x, integer)
    small = small[:, :cols]
    if not x.is_cuda or rows % 16 or cols % 16 or not x.shape[0]:
        out = small.float() @ values.float().t() * (tokens[:, None] * scale)
        return (out if bias is None else out + bias.float()).to(x.dtype)
    if integer:
        padded = F.pad(small, (0, 0, 0, _LEAST_INT - x.shape[0])) if x.shape[0] < _LEAST_INT else small
        out = torch._int_mm(padded, values.t())[: x.shape[0]].float() * (tokens[:, None] * scale)
        return (out if bias is None else out + bias.float()).to(x.dtype)
    given = None if bias is None else bias.bfloat16()
    product = torch._scaled_mm(
        small, values.t(), tokens[:, None], scale[None], given, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return product.to(x.dtype)


_library.impl("quantize_8bit", quantize_tokens, "CPU")
_library.impl("quantize_8bit", quantize_tokens_cuda, "CUDA")
_library.impl("quantize_8bit", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::quantize_8bit", lib=_library)
def _(x: Tensor, integer: bool) -> tuple[Tensor, Tensor]:
    width = -(-x.shape[1] // 128) * 128
    return x.new_empty((x.shape[0], width), dtype=_dtype(integer)), x.new_empty((x.shape[0],), dtype=torch.float32)
