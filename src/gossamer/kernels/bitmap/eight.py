"""Bitmaps with values of e4m3, as a torch operator: packing, schema, fake function, the CPU.

``bitmap_8bit(values, bits, pos, scale, x, bias, rows, cols, activation)`` is act(x' @ (scale * A).T + bias). ``A`` has
the arrays of :mod:`gossamer.kernels.bitmap.planes`, and ``scale`` is float32, one for each row. x' is x rounded to
e4m3, with a scale for each token: its largest magnitude over 448. The result has the type of x, float16 or bfloat16.
:mod:`gossamer.kernels.bitmap.eight_cuda` has the GPU's part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.bitmap.planes import pack_planes, unpack_planes
from gossamer.kernels.product import activated, by_tokens
from gossamer.kernels.vnm.eight import quantize, round8
from gossamer.kernels.vnm.operators import _library

for _name in ("bitmap_8bit", "bitmap_8bit_slow"):
    _library.define(
        f"{_name}(Tensor values, Tensor bits, Tensor pos, Tensor scale, Tensor x, Tensor? bias, int rows, int cols, "
        "int activation) -> Tensor"
    )


class Bitmap8(NamedTuple):
    """A weight in the order of the operator's arguments."""

    values: Tensor
    bits: Tensor
    pos: Tensor
    scale: Tensor
    sizes: tuple[int, int]  # rows, cols


def pack_bitmap8(dense: Tensor) -> Bitmap8:
    """Return a weight of any pattern in e4m3 with a scale for each row; ValueError if it is not finite.

    Examples
    --------
    >>> import torch
    >>> packed = pack_bitmap8(torch.tensor([[3.0, 0, -1.5, 0], [0, 0, 0, 0]]))
    >>> packed.values[0, :2].float(), packed.scale[:1] * 448, packed.sizes
    (tensor([ 448., -224.]), tensor([3.]), (2, 4))
    """
    small, scale = round8(dense, torch.float8_e4m3fn)
    return Bitmap8(*pack_planes(small), scale, (dense.shape[0], dense.shape[1]))


def linear_bitmap8(
    values: Tensor, bits: Tensor, pos: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x' @ (scale * A).T + bias), by torch's own operators on any device."""
    small, tokens = quantize(x, None, cols, 4, values.dtype)
    out = small.float() @ unpack_planes(values, bits, pos, rows, cols).float().t() * (tokens[:, None] * scale)
    out = out if bias is None else out + bias.float()
    return activated(out, activation).to(x.dtype)


_library.impl("bitmap_8bit", by_tokens(linear_bitmap8, 4), "CPU")
_library.impl("bitmap_8bit", torch.library.fallthrough_kernel, "Autograd")
_library.impl("bitmap_8bit_slow", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::bitmap_8bit", lib=_library)
def _(values: Any, bits: Any, pos: Any, scale: Any, x: Tensor, bias: Any, rows: int, *rest: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))
