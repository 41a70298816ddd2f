"""Weights of 8 or 4 bits: rounded, packed in a layout, decoded, and checked when they come from a file."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.formats import Structure, checks
from gossamer.kernels.bitmap.eight_cuda import dense_of
from gossamer.kernels.bitmap.planes import check_planes, pack_planes, unpack_planes
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.vnm.eight import decode8, packed_values, round8
from gossamer.kernels.vnm.operators import vnm_of
from gossamer.kernels.vnm.weight_only import decode_weight_only, int4_values, pack_weight_only


class Arrays(NamedTuple):
    """A weight in a layout.

    ``shared`` and ``meta`` are None in a dense one; in a bitmap they are where its pieces begin, and its bits.
    """

    values: Tensor
    scale: Tensor
    shared: Tensor | None = None
    meta: Tensor | None = None


def quantized(dense: Tensor, layout: Layout) -> Arrays:
    """Return a weight in a layout; ValueError if it is not finite, or keeps more than the layout can hold.

    A row of zeros has the smallest normal scale.

    Examples
    --------
    >>> import torch
    >>> quantized(torch.tensor([[7.0, -3.5]]), Layout("fp8")).values.float()
    tensor([[ 448., -224.]])
    """
    if not bool(torch.isfinite(dense).all()):
        raise ValueError(f"the weight has values that are not finite, which have no {layout.numbers}")
    if layout.numbers == "int4":
        half = dense if dense.dtype in (torch.float16, torch.bfloat16) else dense.bfloat16()
        packed = pack_weight_only(half, layout.v, layout.m, 4)
        return Arrays(packed.values, packed.scale, packed.shared, packed.meta)
    return packed_as(*round8(dense, layout.dtype), layout)


def packed_as(small: Tensor, scale: Tensor, layout: Layout) -> Arrays:
    """Return dense values of 8 bits in another layout: the same numbers."""
    if layout.dense:
        return Arrays(small, scale)
    if layout.bitmap:
        planes = pack_planes(small)
        return Arrays(planes.values, scale, planes.pos, planes.bits)
    values, structure = packed_values(small, layout.format)
    shared, meta, _ = vnm_of(structure)
    return Arrays(values, scale, shared, meta)


def dense_values(arrays: Arrays, layout: Layout, shape: tuple[int, int]) -> Tensor:
    """Return the values of 8 bits as a dense matrix, without their scales."""
    if layout.dense:
        return arrays.values
    _, _, shared, meta = arrays
    assert shared is not None and meta is not None
    if layout.bitmap:
        return (dense_of if meta.is_cuda else unpack_planes)(arrays.values, meta, shared, *shape)
    return decode8(arrays.values, shared, meta, (*shape, 0, layout.m), layout.format).to(layout.dtype)


def decoded(arrays: Arrays, layout: Layout, shape: tuple[int, int]) -> Tensor:
    """Return the weight as a dense float32 matrix.

    Examples
    --------
    >>> import torch
    >>> layout = Layout("int4", "all", 4, weights_only=True)
    >>> decoded(quantized(torch.tensor([[3.5, 0, -1.5, 0]]), layout), layout, (1, 4))
    tensor([[ 3.5000,  0.0000, -1.5000,  0.0000]])
    """
    if layout.numbers != "int4":
        return dense_values(arrays, layout, shape).float() * arrays.scale[:, None]
    values, scale, shared, meta = arrays
    assert shared is not None and meta is not None
    return decode_weight_only(values, shared, meta, scale, (*shape, 0 if layout.v == "all" else layout.v, layout.m))


def check(arrays: Arrays, layout: Layout, shape: tuple[int, int]) -> None:
    """Raise ValueError unless arrays are a weight in this layout: kernels read what they say without looking again."""
    values, scale, shared, meta = arrays
    if values.dtype is not layout.dtype:
        raise ValueError(f"{layout}: values are {layout.dtype}, not {values.dtype}")
    if not scale.is_floating_point() or not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise ValueError(f"{layout}: scales must be finite and more than 0")
    expected = _scale_shape(layout, shape)
    if tuple(scale.shape) != expected:
        raise ValueError(f"{layout}: scales of a weight of {shape} are {expected}, not {tuple(scale.shape)}")
    if layout.dense:
        if tuple(values.shape) != shape or shared is not None or meta is not None:
            raise ValueError(f"{layout}: the weight is {tuple(values.shape)}, and the layer {shape}")
        return
    if shared is None or meta is None:
        raise ValueError(f"{layout}: the columns are missing")
    if layout.bitmap:
        check_planes(values, meta, shared, *shape)
        return
    plain = int4_values(values).to(torch.int8) if layout.numbers == "int4" else values.view(torch.int8)
    given = checks.outside(layout.format, shape, plain, {"cols1": shared, "meta1": meta})
    Structure(layout.format, given[0], given[2], plain.device).check(given[1])


def _scale_shape(layout: Layout, shape: tuple[int, int]) -> tuple[int, ...]:
    rows, cols = shape
    return (rows,) if layout.numbers != "int4" else (-(-cols // (16 * layout.m)), -(-rows // 64) * 64)
