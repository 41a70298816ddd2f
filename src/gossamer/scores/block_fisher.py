"""The empirical Fisher matrix of a weight, in blocks of consecutive weights of a row, and its inverse.

F = damp I + mean of g g^T over the gradients g. Only the inverse is kept, in blocks of B: O(weights x B). Each gradient
is a rank-one update (Sherman-Morrison): F^-1 -= (F^-1 g)(F^-1 g)^T / (m + g^T F^-1 g), m gradients in all.

Lower bound per gradient: 4 operations and 16 bytes for each of weights x B entries. Gradients are buffered, and then
applied together to a slice of blocks that fits in the cache, so that the bytes are moved once for all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

_WAITING = 16
_SLICE = {"cpu": 1 << 18}  # entries of an inverse that are worked on at a time: near the cache on a CPU ...
_SLICE_ELSEWHERE = 1 << 25  # ... and enough work for one launch on a GPU


class BlockFisher:
    """Inverse of the block empirical Fisher matrix of a weight [rows, columns], built gradient by gradient.

    Parameters
    ----------
    rows, columns
        Of the weight as a matrix.
    count
        How many gradients will be added; the mean is over them.
    block
        How many weights of a row form a block. If the last block is incomplete, it is padded with zero gradients.
    damp
        Added to the diagonal, > 0.
    relative
        If True, `damp` is relative to the mean square of the first few gradients.

    Examples
    --------
    >>> import torch
    >>> fisher = BlockFisher(1, 2, count=1, block=2, damp=1.0)
    >>> fisher.add(torch.ones(1, 2))
    >>> fisher.inverse()  # of [[2, 1], [1, 2]]: [rows, blocks, block, block]
    tensor([[[[ 0.6667, -0.3333],
              [-0.3333,  0.6667]]]], dtype=torch.float64)
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        count: int,
        block: int,
        damp: float,
        relative: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        if not damp > 0:
            raise ValueError(f"damp must be > 0, got {damp!r}: a sum of few gradients has no inverse without it")
        self.rows, self.columns, self.count, self.block = rows, columns, count, block
        self.damp, self.relative = damp, relative
        self.blocks = -(-columns // block)
        self.device = torch.device(device)
        self.empty = False
        size = _SLICE.get(self.device.type, _SLICE_ELSEWHERE)
        self._tall = max(1, size // (block**2 * max(self.blocks, 1)))  # rows of a slice
        self._slices: list[Tensor] = []  # each [block, block, rows * blocks]: equal places are neighbours in memory
        self._waiting: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the inverse."""
        return 8 * self.rows * self.blocks * self.block**2

    @property
    def context(self) -> dict[str, Any]:
        """Itself: `gossamer.Fisher` accepts it instead of the gradients."""
        return {"grads": self}

    def add(self, grad: Tensor) -> None:
        """Add one gradient, [rows, columns]."""
        grad = pad(grad.detach().to(self.device), (0, self.blocks * self.block - self.columns))
        self._waiting.append(grad.reshape(-1, self.block).t().contiguous())
        if len(self._waiting) == _WAITING:
            self._take_in()

    def inverse(self, rows: slice = slice(None)) -> Tensor:
        """F^-1 of some rows: float64 [rows, blocks, block, block]."""
        parts = [
            part.view(self.block, self.block, -1, self.blocks).permute(2, 3, 0, 1)[inside]
            for part, inside in self._inside(rows)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, self.blocks, self.block, self.block, dtype=torch.float64)

    def diagonal(self) -> Tensor:
        """The diagonal of F^-1, a value for each weight: float64 [rows, columns]."""
        parts = [part.diagonal(dim1=0, dim2=1) for part, _ in self._inside(slice(None))]  # rows * blocks, block
        found = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=self.device)
        return found.view(self.rows, self.blocks * self.block)[:, : self.columns]

    def _inside(self, rows: slice) -> list[tuple[Tensor, slice]]:
        """The slices that hold some rows, and where in each."""
        self._take_in()
        first, last, _ = rows.indices(self.rows)
        numbers = range(first // self._tall, -(-last // self._tall))
        tops = [number * self._tall for number in numbers]
        return [(self._slices[n], slice(max(first - t, 0), last - t)) for n, t in zip(numbers, tops, strict=True)]

    def _start(self) -> None:
        """The inverse of the damping alone."""
        squares = [float(g.double().square().mean()) for g in self._waiting]
        mean = sum(squares) / max(len(squares), 1)
        self.empty = not mean > 0
        scale = mean if self.relative and not self.empty else 1.0
        eye = torch.eye(self.block, dtype=torch.float64, device=self.device) / (self.damp * scale)
        heights = [min(self._tall, self.rows - top) for top in range(0, self.rows, self._tall)]
        self._slices = [eye[:, :, None].repeat(1, 1, tall * self.blocks) for tall in heights]

    def _take_in(self) -> None:
        if not self._slices:
            self._start()
        at = 0
        for here in self._slices if self._waiting else []:
            for waiting in self._waiting:
                g = waiting[:, at : at + here.shape[2]].double()
                v = (here * g).sum(1)
                here.addcmul_(v[:, None], (v / (self.count + (v * g).sum(0)))[None], value=-1)
            at += here.shape[2]
        self._waiting.clear()
