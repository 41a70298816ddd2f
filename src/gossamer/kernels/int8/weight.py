"""An int8 weight as the kernels read it: one array of bytes, its parts, and the rounding of a float weight.

``src/gossamer/native/cpu/int8.h`` says what the parts of each kind hold. A weight is ``scale[row] * v`` with an int8
``v`` in -127 .. 127: symmetric, so that 0 stays 0 and the pattern stays the pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

DENSE, LOOKUP, LINES, BITMAP = 0, 1, 2, 3
KINDS = ("dense", "lookup", "lines", "bitmap")
#: What a weight begins with: eight bits, version 1.
HEAD = 0x3130386574687367
_HEAD_BYTES = 128
GROUP, WINDOW = 16, 64
#: Rows whose sums a lookup keeps between tiles.
BLOCK = 768
#: Bytes behind the values of a bitmap that a kernel may read.
SPARE = 64
#: What crd is where a place of a lookup is not used.
UNUSED = 255
#: int32 sums of 127 * 254 can't overflow up to here.
MOST_COLS = 65536
#: The largest number that an activation becomes.
LEVELS = 254
_LEAST = torch.finfo(torch.float32).tiny
_NORMAL, _INFINITE = 0x00800000, 0x7F800000  # bits of float32


class Sizes(NamedTuple):
    """The numbers that a weight begins with, behind HEAD."""

    kind: int
    rows: int
    cols: int
    lines: int = 1
    stride: int = WINDOW
    """Lookup: columns from one window to the next. Lines: rows of a block."""
    tall: int = 1
    wide: int = 1
    window: int = WINDOW
    steps: int = 0
    masked: int = 0
    """Dense: 1 if crd holds the mask, a bit for each position."""
    x_scale: int = 0
    """The bits of the float32 scale of activations in a fixed range; 0: each token has its own."""
    x_zero: int = 0
    kernel_h: int = 0
    """Of a convolution of two dimensions, else 0. Kernels don't read this and what follows: files need it."""
    kernel_w: int = 0
    """Of a convolution, else 0."""
    channel_groups: int = 0
    """Of a convolution, else 0."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight: that of the matrix, or of a convolution."""
        if not self.kernel_w:
            return self.rows, self.cols
        kernel = (self.kernel_h, self.kernel_w) if self.kernel_h else (self.kernel_w,)
        return self.rows, self.cols // math.prod(kernel) // self.channel_groups, *kernel

    @property
    def groups(self) -> int:
        """Groups of sixteen units of rows, or blocks of rows of lines."""
        each = self.stride if self.kind == LINES else GROUP * self.tall
        return -(-self.rows // each)

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask of a dense weight: each row begins a new one."""
        return self.rows * -(-self.cols // 8) if self.masked else 0

    @property
    def places(self) -> int:
        """Columns that a step names."""
        return 4 if self.kind == LINES else WINDOW // self.wide

    @property
    def tiles(self) -> int:
        """Tiles of columns."""
        if self.kind == BITMAP:
            return 1
        every = -(-self.cols // 4) if self.kind == LINES else window_count(self.cols, self.stride, self.window)
        return max(-(-every // self.lines), 1)


class Parts(NamedTuple):
    """The arrays of a weight: views of its bytes."""

    sizes: Sizes
    scale: Tensor
    sum: Tensor
    pos: Tensor
    crd: Tensor
    line: Tensor
    """Lookup: the window of each step. Lines: the row of each slot."""
    values: Tensor


def window_count(cols: int, stride: int, window: int) -> int:
    """Return how many windows a lookup has.

    Examples
    --------
    >>> window_count(64, 32, 64), window_count(65, 32, 64), window_count(768, 40, 64)
    (1, 2, 19)
    """
    return 1 if cols <= window else -(-(cols - window) // stride) + 1


def together(sizes: Sizes, scale: Tensor, values: Tensor, sums: Tensor, *index: Tensor) -> Tensor:
    """Return the bytes of a weight of these parts; ``index`` is pos, crd and line unless it is dense."""
    head = torch.tensor([HEAD, *sizes, *[0] * (_HEAD_BYTES // 8 - 1 - len(sizes))], dtype=torch.int64)
    arrays = [head, scale.float(), sums.int(), *index, values]
    return torch.cat([_padded(array.contiguous().view(-1).view(torch.uint8)) for array in arrays])


def _padded(data: Tensor) -> Tensor:
    return F.pad(data, (0, -data.numel() % 64))


def aligned(weight: Tensor) -> Tensor:
    """Return the bytes of a weight, copied if they don't begin at a cache line: a mapped file has them anywhere.

    Examples
    --------
    >>> import torch
    >>> data = torch.zeros(129, dtype=torch.uint8)
    >>> aligned(data) is data, aligned(data[1:]).storage_offset()
    (True, 0)
    """
    moved = weight.is_cpu and (weight.data_ptr() % 64 or weight.storage_offset() % 8)
    return weight.clone() if moved else weight


def parts(weight: Tensor) -> Parts:
    """Return the arrays of a weight.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import pack
    >>> w = torch.eye(3)
    >>> parts(pack.dense(rounded(w))).sizes[:3]
    (0, 3, 3)
    """
    if weight.dtype is not torch.uint8 or weight.dim() != 1 or weight.numel() < _HEAD_BYTES:
        raise ValueError(f"an int8 weight is a vector of 128 uint8 or more, not {weight.dtype} {tuple(weight.shape)}")
    head, *numbers = weight[:_HEAD_BYTES].view(torch.int64).tolist()
    if head != HEAD:
        raise ValueError("these bytes are no int8 weight, or one of another version")
    sizes = Sizes(*numbers[: len(Sizes._fields)])
    check_sizes(sizes)
    found, at = [], _HEAD_BYTES
    for count, dtype in zip(_counts(sizes), _TYPES, strict=True):
        size = count * dtype.itemsize
        if at + size > weight.numel():
            raise ValueError(f"an int8 weight of {weight.numel()} bytes ends too early for {sizes}")
        found.append(weight[at : at + size].view(dtype))
        at += size + -size % 64
    if at != weight.numel():
        raise ValueError(f"an int8 weight of {weight.numel()} bytes is too long for {sizes}")
    return Parts(sizes, *found)


_TYPES = (torch.float32, torch.int32, torch.int32, torch.uint8, torch.uint8, torch.int8)


def _counts(sizes: Sizes) -> tuple[int, ...]:
    """Numbers in the arrays of a weight: scale, sum, pos, crd, line, values."""
    quads, rows = -(-sizes.cols // 4), (sizes.rows, sizes.rows)
    if sizes.kind == DENSE:
        return (*rows, 0, sizes.mask_bytes, 0, sizes.groups * GROUP * quads * 4)
    if sizes.kind == BITMAP:
        return (*rows, sizes.groups + 1, sizes.groups * quads * 8, 0, sizes.steps + SPARE)
    units, crd = sizes.groups * sizes.tiles, sizes.steps * sizes.places
    if sizes.kind == LINES:
        units *= sizes.stride // 4
        return (*rows, units + 1, crd, units * 4, sizes.steps * 16)
    return (*rows, units + 1, crd, sizes.steps, sizes.steps * WINDOW * sizes.tall)


def check_sizes(sizes: Sizes) -> None:
    """Raise ValueError where the sizes of a weight make no sense; as native/cpu/int8_weight.cpp.

    Examples
    --------
    >>> check_sizes(Sizes(7, 1, 1))
    Traceback (most recent call last):
    ValueError: kind=7 must be 0 dense, 1 lookup, 2 lines or 3 bitmap
    """
    if sizes.kind not in range(len(KINDS)):
        raise ValueError(f"kind={sizes.kind} must be 0 dense, 1 lookup, 2 lines or 3 bitmap")
    check_cols(sizes.cols)
    if not (0 <= sizes.rows <= 1 << 31 and sizes.cols >= 0 and 0 <= sizes.steps <= 1 << 31):
        raise ValueError(f"{sizes} has negative or too large numbers")
    if sizes.masked not in (0, 1) or (sizes.masked and sizes.kind != DENSE):
        raise ValueError(f"masked={sizes.masked} must be 0, or 1 for a dense weight")
    if not 0 <= sizes.x_scale < _INFINITE or 0 < sizes.x_scale < _NORMAL or not 0 <= sizes.x_zero <= LEVELS:
        raise ValueError("the range of activations must have a positive normal scale, and a zero in 0 .. 254")
    _check_kernel(sizes)
    if sizes.kind in (DENSE, BITMAP):
        return
    if not 1 <= sizes.lines <= 254:
        raise ValueError(f"lines={sizes.lines} must lie in 1 .. 254")
    if sizes.kind == LINES and sizes.stride not in range(GROUP, 257, GROUP):
        raise ValueError(f"stride={sizes.stride}, the rows of a block, must be 16, 32 .. 256")
    if sizes.kind == LOOKUP:
        blocks = {sizes.tall, sizes.wide} <= {1, 4} and sizes.stride % sizes.wide == sizes.window % sizes.wide == 0
        if not (blocks and 0 < sizes.stride <= sizes.window <= WINDOW):
            raise ValueError(f"{sizes}: tall and wide are 1 or 4, 0 < stride <= window <= {WINDOW}, multiples of wide")


def _check_kernel(sizes: Sizes) -> None:
    height, width, groups = sizes.kernel_h, sizes.kernel_w, sizes.channel_groups
    if not (height or width or groups):
        return  # no convolution
    if min(height, width - 1, groups - 1) < 0 or sizes.rows % groups or sizes.cols % (max(height, 1) * width * groups):
        raise ValueError(f"a kernel of {height} x {width} in {groups} groups is none of {sizes.rows} x {sizes.cols}")


class Range(NamedTuple):
    """Of activations: x = scale * (q - zero), with q in 0 .. 254."""

    scale: float
    zero: int


def range_between(low: float, high: float) -> Range:
    """Return the range of activations from low to high, and 0; others saturate.

    Examples
    --------
    >>> range_between(-1.0, 253.0)
    Range(scale=1.0, zero=1)
    """
    ends = torch.tensor([min(low, 0.0), max(high, 0.0)])  # in float32, as the kernels do it
    scale = float((ends / LEVELS).diff().clamp(min=_LEAST))
    return Range(scale, min(round(-float(ends[0]) / scale), LEVELS))


def range_of(weight: Tensor) -> Range | None:
    """Return the fixed range of activations that a weight carries; None where each token has its own.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import pack
    >>> plain = pack.dense(rounded(torch.eye(3)))
    >>> range_of(plain), range_of(with_range(plain, Range(0.5, 7)))
    (None, Range(scale=0.5, zero=7))
    """
    sizes = parts(weight).sizes
    if not sizes.x_scale:
        return None
    return Range(float(torch.tensor(sizes.x_scale, dtype=torch.int32).view(torch.float32)), sizes.x_zero)


def with_range(weight: Tensor, x_range: Range | None) -> Tensor:
    """Return the bytes of a weight with another range of activations."""
    bits = 0 if x_range is None else int(torch.tensor(x_range.scale, dtype=torch.float32).view(torch.int32))
    return _with(weight, x_scale=bits, x_zero=x_range.zero if x_range else 0)


def with_kernel(weight: Tensor, kernel: tuple[int, ...], groups: int) -> Tensor:
    """Return the bytes of a weight as those of a convolution with a kernel of one or two dimensions.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import pack
    >>> parts(with_kernel(pack.dense(rounded(torch.ones(4, 18))), (3, 3), 1)).sizes.shape
    (4, 2, 3, 3)
    """
    height, width = (0, *kernel)[-2:]
    return _with(weight, kernel_h=height, kernel_w=width, channel_groups=groups)


def with_head_of(weight: Tensor, other: Tensor) -> Tensor:
    """Return the bytes of a weight with the range and the kernel of another one."""
    sizes = parts(other).sizes
    return _with(weight, **{name: getattr(sizes, name) for name in _BESIDE})


#: Fields that don't depend on how values are arranged.
_BESIDE = ("x_scale", "x_zero", "kernel_h", "kernel_w", "channel_groups")


def _with(weight: Tensor, **fields: int) -> Tensor:
    made = weight.clone()
    head = made[:_HEAD_BYTES].view(torch.int64)
    for name, value in fields.items():
        head[1 + Sizes._fields.index(name)] = value
    return made


@dataclass(frozen=True)
class Rounded:
    """A matrix of int8 and the scale of each row."""

    values: Tensor
    scale: Tensor


def rounded(weight: Tensor) -> Rounded:
    """Return a float matrix as int8 with a scale for each row, its largest absolute value over 127.

    A value moves by at most half a scale. A row of zeros has the scale 1.

    Examples
    --------
    >>> import torch
    >>> small = rounded(torch.tensor([[0.0, -2.0, 1.0], [0.0, 0.0, 0.0]]))
    >>> small.values.tolist(), small.scale.tolist()
    ([[0, -127, 64], [0, 0, 0]], [0.015748031437397003, 1.0])
    """
    if weight.dim() != 2:
        raise ValueError(f"a matrix is needed, not {weight.dim()} dimensions")
    values = weight.detach().float()
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the weight has values that are not finite, which int8 can't represent")
    most = values.abs().amax(1) if values.shape[1] else values.new_zeros(values.shape[0])
    scale = torch.where(most > 0, (most / 127).clamp(min=_LEAST), 1.0)
    return Rounded((values / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale)


def check_cols(cols: int) -> None:
    """Raise ValueError where int32 sums might overflow."""
    if cols > MOST_COLS:
        raise ValueError(
            f"{cols} columns: sums of int8 products are exact in 32 bits up to {MOST_COLS}, cut the weight"
        )
