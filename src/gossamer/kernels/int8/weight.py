"""An int8 weight as the kernels read it: its arrays and sizes, and the rounding of a float weight.

``src/gossamer/native/cpu/int8.h`` says what the arrays of each kind hold. A weight is ``scale[row] * v`` with an int8
``v`` in -127 .. 127: symmetric, so that 0 stays 0 and the pattern stays the pattern.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

DENSE, LOOKUP, LINES = 0, 1, 2
KINDS = ("dense", "lookup", "lines")
#: int32 sums of 127 * 254 can't overflow up to here.
MOST_COLS = 65536
LEVELS = 254
_LEAST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """The arrays and sizes of an int8 weight, in the order of the operators' arguments.

    Made by :func:`gossamer.kernels.int8.pack.dense`, ``lookup`` and ``lines``; ``unpack`` is the way back.
    """

    values: Tensor
    pos: Tensor | None
    crd: Tensor | None
    line: Tensor | None
    """Lookup: the window of each step. Lines: the row of each slot."""
    scale: Tensor
    sum: Tensor
    kind: int
    rows: int
    cols: int
    lines: int = 1
    stride: int = 64
    """Lookup: columns from one window to the next. Lines: rows of a block."""
    tall: int = 1
    window: int = 64

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """What the operator takes first."""
        return self.values, self.pos, self.crd, self.line, self.scale, self.sum

    @property
    def sizes(self) -> tuple[int, ...]:
        """What the operator takes behind the tensors."""
        return self.kind, self.rows, self.cols, self.lines, self.stride, self.tall, self.window

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays if array is not None)

    def with_scale(self, scale: Tensor) -> Int8Weight:
        """Return the same numbers with other scales."""
        return replace(self, scale=scale)


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
        raise ValueError("the weight holds values that are not finite: they have no int8")
    most = values.abs().amax(1) if values.shape[1] else values.new_zeros(values.shape[0])
    scale = torch.where(most > 0, (most / 127).clamp(min=_LEAST), 1.0)
    return Rounded((values / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale)


def check_cols(cols: int) -> None:
    """Raise ValueError where int32 sums might overflow."""
    if cols > MOST_COLS:
        raise ValueError(f"{cols} columns: sums of int8 products are exact in 32 bits up to {MOST_COLS}, cut the weight")
