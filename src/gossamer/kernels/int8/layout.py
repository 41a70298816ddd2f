"""Layouts of an int8 weight: which of them suit a pattern, and the bytes of one in a layout."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gossamer import native
from gossamer.kernels.int8 import pack
from gossamer.kernels.int8.lookup import lookup, units_of
from gossamer.kernels.int8.unpack import mask_of, unpack
from gossamer.kernels.int8.weight import KINDS, LINES, LOOKUP, Rounded, parts

_BITMAP_BY = ("amx", "avx512vbmi")  # instruction sets that expand 64 values at once
_BITMAP_BELOW = 0.8  # share of values kept: else it has about as many bytes as a dense weight
_LOOKUP_BELOW = 0.15  # with AMX
_DENSE_ABOVE = 0.7  # share of values kept: a lookup that skips fewer costs more than it saves


class Layout(NamedTuple):
    """How bytes of a weight are arranged: ``dense``, ``bitmap``, ``lookup`` or ``lines``, and the blocks it stores.

    Examples
    --------
    >>> str(Layout("dense")), str(Layout("lookup", 1, 4))
    ('int8 dense', 'int8 lookup 1x4')
    """

    kind: str
    tall: int = 1
    wide: int = 1

    def __str__(self) -> str:
        blocks = "" if self.tall == self.wide == 1 else f" {self.tall}x{self.wide}"
        return f"int8 {self.kind}{blocks}"


def layouts(mask: Tensor) -> list[Layout]:
    """Return the layouts that may be the fastest for a pattern; dense is always one of them.

    Examples
    --------
    >>> import torch
    >>> [str(layout) for layout in layouts(torch.ones(64, 64, dtype=torch.bool))]
    ['int8 dense']
    >>> Layout("lookup", 1, 4) in layouts(torch.eye(64, dtype=torch.bool).repeat_interleave(4, 1))
    True
    """
    found = [Layout("dense")]
    kept = int(mask.sum())
    if mask.numel() == 0:
        return found
    if native.int8_isa() in _BITMAP_BY and kept < _BITMAP_BELOW * mask.numel():
        found.append(Layout("bitmap"))
    if kept > _DENSE_ABOVE * mask.numel():
        return found
    found.append(Layout("lookup"))
    for tall, wide in ((1, 4), (4, 1), (4, 4)):
        if _made_of_blocks(mask, kept, tall, wide):
            found.append(Layout("lookup", tall, wide))
            if tall == 1:
                found.append(Layout("lines", tall, wide))
    return found


def _made_of_blocks(mask: Tensor, kept: int, tall: int, wide: int) -> bool:
    """Would blocks store almost only kept values? A part of a block at the edge counts as the whole."""
    rows, cols = mask.shape
    blocks = units_of(mask, tall, wide).repeat_interleave(tall, 0).repeat_interleave(wide, 1)[:rows, :cols]
    return kept >= 0.95 * int(blocks.sum())


def usual(mask: Tensor) -> Layout:
    """Return the layout that is most often the fastest, without a measurement: lookups of the largest blocks.

    With AMX it is a bitmap unless the pattern keeps few values. Elsewhere a bitmap is faster only for up to four tokens
    and if the weight comes from memory.

    Examples
    --------
    >>> import torch
    >>> str(usual(torch.eye(64, dtype=torch.bool))), str(usual(torch.ones(64, 64, dtype=torch.bool)))
    ('int8 lookup', 'int8 dense')
    """
    suited = [layout for layout in layouts(mask) if layout.kind != "lines"]
    if native.int8_isa() != "amx":
        return next(layout for layout in reversed(suited) if layout.kind != "bitmap")
    bitmap = Layout("bitmap")
    return bitmap if bitmap in suited and int(mask.sum()) > _LOOKUP_BELOW * mask.numel() else suited[-1]


def pack_as(weight: Rounded, mask: Tensor, layout: Layout) -> Tensor:
    """Return the bytes of a weight in a layout; its values must be 0 where the mask is False.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.weight import rounded
    >>> mask = torch.eye(3, dtype=torch.bool)
    >>> packed = pack_as(rounded(torch.eye(3)), mask, Layout("lookup"))
    >>> packed.dtype, str(layout_of(packed))
    (torch.uint8, 'int8 lookup')
    """
    if layout.kind == "dense":
        return pack.dense(weight, mask)
    if layout.kind == "bitmap":
        return pack.bitmap(weight, mask)
    if layout.kind == "lines":
        return pack.lines(weight, mask)
    return lookup(weight, mask, tall=layout.tall, wide=layout.wide)


def layout_of(packed: Tensor) -> Layout:
    """Return the layout of a weight."""
    sizes = parts(packed).sizes
    if sizes.kind == LOOKUP:
        return Layout("lookup", sizes.tall, sizes.wide)
    return Layout("lines", 1, 4) if sizes.kind == LINES else Layout(KINDS[sizes.kind])


def as_rounded(packed: Tensor) -> tuple[Rounded, Tensor]:
    """Return the int8 matrix of a weight with its scales, and which of its positions are kept.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.weight import rounded
    >>> small = rounded(torch.tensor([[1.0, 1e-9, 0.0]]))
    >>> weight, mask = as_rounded(pack.dense(small, torch.tensor([[True, True, False]])))
    >>> weight.values.tolist(), mask.tolist()
    ([[127, 0, 0]], [[True, True, False]])
    """
    return Rounded(unpack(packed), parts(packed).scale.clone()), mask_of(packed)


def dense_of(packed: Tensor) -> Tensor:
    """Return the float32 matrix that a weight stands for.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.weight import rounded
    >>> dense_of(pack.dense(rounded(torch.tensor([[0.5, 0.0]])))).tolist()
    [[0.5, 0.0]]
    """
    return unpack(packed).float() * parts(packed).scale[:, None]
