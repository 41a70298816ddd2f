"""The product of a packed bitmap, as a torch operator: packing, schema, fake function, the CPU.

``bitmap_linear(values, bits, pos, x, bias, rows, cols, most, activation)`` is act(x @ A.T + bias). ``A`` are the values
and arrays of :class:`gossamer.formats.PackedBitmap`; ``most`` is the largest number of values of a piece, with
padding. :mod:`gossamer.kernels.bitmap.cuda` has the GPU's part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import PackedBitmap, Structure
from gossamer.formats.keys import ravel
from gossamer.formats.levels.pieces import ALIGN
from gossamer.kernels.product import activated, by_tokens
from gossamer.kernels.vnm.operators import _library

for _name in ("bitmap_linear", "bitmap_linear_slow"):
    _library.define(
        f"{_name}(Tensor values, Tensor bits, Tensor pos, Tensor x, Tensor? bias, int rows, int cols, int most, "
        "int activation) -> Tensor"
    )


class Bitmap(NamedTuple):
    """The arrays and sizes of a packed weight, in the order of the operator's arguments."""

    bits: Tensor
    pos: Tensor
    sizes: tuple[int, int, int]  # rows, cols, most values of a piece


def bitmap_of(structure: Structure) -> Bitmap:
    """Return what the operator takes, of a structure in packed bitmaps."""
    bits, pos = structure.arrays["codes1"], structure.arrays["pos1"]
    rows, cols = structure.format.group_sizes(structure.shape)
    most = structure.cached("most", lambda: int(pos.diff().max()) * ALIGN if pos.numel() > 1 else 0)
    return Bitmap(bits, pos, (rows, cols, most))


def pack_bitmap(dense: Tensor) -> tuple[Tensor, Bitmap]:
    """Return the values and arrays of what is not zero.

    Examples
    --------
    >>> import torch
    >>> values, (bits, pos, sizes) = pack_bitmap(torch.eye(3))
    >>> values[[0, 8, 16]], sizes  # of lanes 0, 4 and 8
    (tensor([1., 1., 1.]), (3, 3, 64))
    """
    keys = dense.reshape(-1).nonzero().view(-1)
    structure, place = Structure.from_keys(PackedBitmap(), keys, dense.shape)
    values = dense.new_zeros(structure.value_shape)
    values[place] = dense.reshape(-1)[keys]
    return values, bitmap_of(structure)


def decode(values: Tensor, bits: Tensor, pos: Tensor, rows: int, cols: int) -> Tensor:
    """Return the dense matrix, by torch's own operators on any device."""
    format = PackedBitmap()
    coords, valid = Structure(format, (rows, cols), {"codes1": bits, "pos1": pos}, bits.device).positions()
    keys = ravel(format.from_levels(coords, (rows, cols)), (rows, cols))
    if valid is not None:
        keys, values = keys[valid], values[valid]
    return values.new_zeros(rows * cols).index_put_((keys,), values).view(rows, cols)


def linear(
    values: Tensor, bits: Tensor, pos: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, most: int,
    activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x @ A.T + bias), over a dense copy."""
    return activated(F.linear(x, decode(values, bits, pos, rows, cols), bias), activation).contiguous()


_library.impl("bitmap_linear", by_tokens(linear, 3), "CPU")
_library.impl("bitmap_linear", torch.library.fallthrough_kernel, "Autograd")
_library.impl("bitmap_linear_slow", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::bitmap_linear", lib=_library)
def _(values: Any, bits: Any, pos: Any, x: Tensor, bias: Any, rows: int, *rest: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))
