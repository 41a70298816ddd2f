"""Packed V:N:M with operands of 8 bits, e4m3 or int8, as a torch operator: packing, schema, fake function, the CPU.

``vnm_8bit(values, shared, meta, scale, x, bias, ...)`` is act(x' @ (scale * A).T + bias). ``A`` has e4m3 or int8 values
in the order of ``PackedVNM("all", 2, m, 8)``, and ``scale`` is float32, one for each row. x' is x rounded to the type
of ``A``, with a scale for each token: the largest magnitude among the columns that the weight reads, over 448 or 127.
The result has the type of x, float16 or bfloat16. :mod:`gossamer.kernels.vnm.eight_cuda` has the GPU's part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.formats import PackedVNM, Structure
from gossamer.formats.keys import ravel
from gossamer.kernels.product import activated, by_tokens
from gossamer.kernels.vnm.operators import _library, vnm_of

#: The largest magnitude of a type.
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
#: The smallest scale: that of a row, or token, of zeros.
SMALLEST = torch.finfo(torch.float32).tiny
for _name in ("vnm_8bit", "vnm_8bit_slow"):
    _library.define(
        f"{_name}(Tensor values, Tensor shared, Tensor meta, Tensor scale, Tensor x, Tensor? bias, int rows, int cols, "
        "int v, int m, int activation) -> Tensor"
    )


class Packed8(NamedTuple):
    """A weight in the order of the operator's arguments."""

    values: Tensor
    shared: Tensor
    meta: Tensor
    scale: Tensor
    sizes: tuple[int, int, int, int]  # rows, cols, v (0: all), m


def pack8(dense: Tensor, m: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Packed8:
    """Return a weight that keeps 2 of each m columns, four of them shared by all rows, in 8 bits with a scale a row.

    Raises ValueError for a weight that keeps more, or that is not finite.

    Examples
    --------
    >>> import torch
    >>> packed = pack8(torch.tensor([[3.0, 0, -1.5, 0], [0, 0, 0, 0]]), 4)
    >>> packed.scale[:1] * 448, packed.values[:2].float()
    (tensor([3.]), tensor([ 448., -224.]))
    """
    small, scale = round8(dense, dtype)
    values, structure = packed_values(small, PackedVNM("all", 2, m, 8))
    shared, meta, sizes = vnm_of(structure)
    return Packed8(values, shared, meta, scale, sizes)


def round8(dense: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a matrix in 8 bits and the scale of each row, its largest magnitude over the largest of the type.

    Raises ValueError for what is not finite.

    Examples
    --------
    >>> import torch
    >>> small, scale = round8(torch.tensor([[3.0, -1.5]]), torch.float8_e4m3fn)
    >>> small.float(), scale * 448
    (tensor([[ 448., -224.]]), tensor([3.]))
    """
    scale = dense.abs().amax(1).float() / LARGEST[dtype] if dense.numel() else dense.new_zeros(len(dense)).float()
    if not bool(torch.isfinite(scale).all()):
        raise ValueError("the weight has values that are not finite, which have no scale")
    scale = scale.clamp_min(SMALLEST)
    return rounded(dense.float() / scale[:, None], dtype), scale


def packed_values(small: Tensor, format: PackedVNM) -> tuple[Tensor, Structure]:
    """Return the values of a dense matrix of 8 bits in the order of a format, and where they are."""
    bytes = small.view(torch.int8)  # torch has more operators for it
    structure, keys, place = packed_keys(bytes & 127, format)  # a zero may have a sign; int8 has no -128
    values = torch.zeros(structure.value_shape, dtype=torch.int8, device=small.device)
    values[place] = bytes.reshape(-1)[keys]
    return values.view(small.dtype), structure


def packed_keys(dense: Tensor, format: PackedVNM) -> tuple[Structure, Tensor, Tensor]:
    """Return the structure of what is not zero, its row-major numbers, and the place of each."""
    keys = dense.reshape(-1).nonzero().view(-1)
    structure, place = Structure.from_keys(format, keys, dense.shape)
    return structure, keys, place


def rounded(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 numbers in 8 bits, to the nearest; beyond the largest they become the largest.

    Examples
    --------
    >>> import torch
    >>> rounded(torch.tensor([1000.0, 1.06]), torch.float8_e4m3fn).float(), rounded(torch.tensor([-2.6]), torch.int8)
    (tensor([448.,   1.]), tensor([-3], dtype=torch.int8))
    """
    exact = exact.clamp(-LARGEST[dtype], LARGEST[dtype])
    return (exact.round() if dtype is torch.int8 else exact).to(dtype)


def decode8(
    values: Tensor, shared: Tensor, meta: Tensor, sizes: tuple[int, int, int, int], format: PackedVNM | None = None
) -> Tensor:
    """Return the values as a dense float32 matrix, without their scales; ``format`` is their order."""
    rows, cols, _, m = sizes
    format = PackedVNM("all", 2, m, 8) if format is None else format
    coords, valid = Structure(format, (rows, cols), {"cols1": shared, "meta1": meta}, meta.device).positions()
    keys, held = ravel(format.from_levels(coords, (rows, cols)), (rows, cols)), values.float()
    if valid is not None:
        keys, held = keys[valid], held[valid]
    return held.new_zeros(rows * cols).index_put_((keys,), held).view(rows, cols)


def quantize(x: Tensor, shared: Tensor | None, cols: int, m: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x in 8 bits and the scale of each token, of the columns that the weight reads."""
    exact = x.float()
    if m != 4 and shared is not None:
        at = (shared[0].long() + torch.arange(shared.shape[1], device=x.device)[:, None] * m).view(-1)
        read = torch.zeros(cols, dtype=torch.bool, device=x.device)
        read[at[at < cols]] = True
        exact = torch.where(read, exact, 0)
    most = exact.abs().amax(1) if cols else exact.new_zeros(len(x))
    scale = most / torch.full_like(most, LARGEST[dtype])  # by a number, a GPU would multiply with 1 / it
    scale = torch.where(torch.isfinite(scale), scale.clamp_min(SMALLEST), torch.nan)
    return rounded(exact * (1 / scale)[:, None], dtype), scale


def linear8(
    values: Tensor, shared: Tensor, meta: Tensor, scale: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int,
    v: int, m: int, activation: int,
) -> Tensor:  # fmt: skip
    """Return act(x' @ (scale * A).T + bias), by torch's own operators on any device."""
    small, tokens = quantize(x, shared, cols, m, values.dtype)
    out = small.float() @ decode8(values, shared, meta, (rows, cols, v, m)).t() * (tokens[:, None] * scale)
    out = out if bias is None else out + bias.float()
    return activated(out, activation).to(x.dtype)


_library.impl("vnm_8bit", by_tokens(linear8, 4), "CPU")
_library.impl("vnm_8bit", torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_8bit_slow", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::vnm_8bit", lib=_library)
def _(values: Any, shared: Any, meta: Any, scale: Any, x: Tensor, bias: Any, rows: int, *rest: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))
