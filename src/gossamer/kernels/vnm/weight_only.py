"""Packed V:N:M weights of 8 or 4 bits and activations of 16, as a torch operator: packing, schema, fake, the CPU.

``vnm_weight_only(values, shared, meta, scale, x, bias, ...)`` is act(x @ (scale * A).T + bias). The order is that of
``PackedVNM(v, 2, m)``. ``A`` is

- e4m3, with a float32 scale for each row, or
- int4 in -8 .. 7, with a scale of the type of x for each row and each 16 groups of m columns, [steps, rows, rounded up
  to 64]. Eight values are an int32 word: value 2 i is bits 4 i and up, value 2 i + 1 bits 16 + 4 i and up, both plus 8.

:mod:`gossamer.kernels.vnm.weight_only_cuda` has the GPU's part.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import PackedVNM
from gossamer.formats.levels.pairs import TILE
from gossamer.kernels.product import activated, by_tokens
from gossamer.kernels.vnm.eight import Packed8, packed_keys, packed_values, round8
from gossamer.kernels.vnm.operators import _library, _places, vnm_of

for _name in ("vnm_weight_only", "vnm_weight_only_slow"):
    _library.define(
        f"{_name}(Tensor values, Tensor shared, Tensor meta, Tensor scale, Tensor x, Tensor? bias, int rows, int cols, "
        "int v, int m, int activation) -> Tensor"
    )
_FOURS = (0, 16, 4, 20, 8, 24, 12, 28)  # the lowest bit of each of eight values


def pack_weight_only(dense: Tensor, v: int | Literal["all"], m: int, bits: int) -> Packed8:
    """Return a weight that keeps 2 of each m columns, four of them shared by v rows, in 8 (e4m3) or 4 bits.

    Examples
    --------
    >>> import torch
    >>> packed = pack_weight_only(torch.tensor([[3.5, 0, -1.5, 0]]), "all", 4, 4)
    >>> packed.scale[0, 0], hex(packed.values[0] & 0xF), hex(packed.values[0] >> 16 & 0xF)  # 7 + 8 and -3 + 8
    (tensor(0.5000), '0xf', '0x5')
    """
    if bits == 8:
        small, scale = round8(dense, torch.float8_e4m3fn)
        values, structure = packed_values(small, PackedVNM(v, 2, m))
        shared, meta, sizes = vnm_of(structure)
        return Packed8(values, shared, meta, scale, sizes)
    structure, keys, place = packed_keys(dense, PackedVNM(v, 2, m))
    shared, meta, sizes = vnm_of(structure)
    row, col = keys // dense.shape[1], keys % dense.shape[1]
    step, steps = col // (16 * m), -(-dense.shape[1] // (16 * m))
    exact = dense.reshape(-1)[keys].float()
    most = torch.zeros(steps, -(-dense.shape[0] // TILE) * TILE, device=dense.device)
    most.view(-1).scatter_reduce_(0, step * most.shape[1] + row, exact.abs(), "amax")
    tiny = torch.finfo(dense.dtype).tiny
    scale = (most / 7).to(dense.dtype).clamp_min(tiny)
    four = torch.full(structure.value_shape, 8, dtype=torch.int64, device=dense.device)
    four[place] = (exact / scale[step, row].float()).round().clamp(-8, 7).long() + 8
    shift = torch.tensor(_FOURS, device=dense.device)
    words = (four.view(-1, 8) << shift).sum(1)
    return Packed8((words - (words >> 31 << 32)).int(), shared, meta, scale, sizes)


def int4_values(words: Tensor) -> Tensor:
    """Return the values of words of int4, -8 .. 7."""
    shift = torch.tensor(_FOURS, device=words.device, dtype=torch.int32)
    return ((words[:, None] >> shift & 15) - 8).view(-1)


def widened(values: Tensor, scale: Tensor, rows: int, cols: int, m: int, dtype: torch.dtype) -> Tensor:
    """Return the values of 16 bits that weights of 8 or 4 bits stand for, in the same order, rounded to their type."""
    steps, tiles = -(-cols // (16 * m)), -(-rows // TILE)
    held = int4_values(values) if values.dtype is torch.int32 else values
    if scale.dim() == 1:
        scale = F.pad(scale, (0, tiles * TILE - rows))[None]
    # rows are (tile, strip, high, low), places (step, tile, strip, half, low, lane, upper, high, slot)
    each = scale.float().view(-1, tiles, 4, 2, 8).permute(0, 1, 2, 4, 3)[:, :, :, None, :, None, None, :, None]
    return (held.view(steps, tiles, 4, 2, 8, 4, 2, 2, 2).float() * each).to(dtype).view(-1)


def linear_widened(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    v: int, m: int, activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x @ W.T + bias) by the product of 16 bits: W is the weight, each value rounded to the type of x."""
    wide = widened(values, scale, rows, cols, m, x.dtype)
    out: Tensor = torch.ops.gossamer.vnm_forward(wide, shared, meta, x, bias, rows, cols, v, m, activation)
    return out.contiguous()


def decode_weight_only(values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the weight as a dense float32 matrix; int4 times its scale is rounded to the type of the scale."""
    rows, cols, v, m = sizes
    keys, valid = _places(shared, meta, rows, cols, v, m)
    if values.dtype is torch.int32:
        held = int4_values(values).float()
    else:
        held = values.float()
    if valid is not None:
        keys, held = keys[valid], held[valid]
    if values.dtype is torch.int32:
        held = (held * scale[keys % cols // (16 * m), keys // cols].float()).to(scale.dtype).float()
    else:
        held = held * scale[keys // cols]
    return held.new_zeros(rows * cols).index_put_((keys,), held).view(rows, cols)


def linear_weight_only(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    v: int, m: int, activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x @ (scale * A).T + bias), by torch's own operators on any device."""
    out = x.float() @ decode_weight_only(values, shared, meta, scale, (rows, cols, v, m)).t()
    out = out if bias is None else out + bias.float()
    return activated(out, activation).to(x.dtype)


_library.impl("vnm_weight_only", by_tokens(linear_weight_only, 4), "CPU")
_library.impl("vnm_weight_only", torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_weight_only_slow", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::vnm_weight_only", lib=_library)
def _(values: Any, shared: Any, meta: Any, scale: Any, x: Tensor, bias: Any, rows: int, *rest: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))
