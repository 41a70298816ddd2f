"""The curvature of one layer: from its inputs, which errors of its weight matter.

A layer computes y = W x. Changing W by D changes its outputs by D X, whose squared norm is tr(D H D^T) with H = X X^T:
every row of W has the same H. It is accumulated batch by batch, so activations are freed after each batch.

Given the inputs of the same layer in the dense model as well, X_dense, it also accumulates (X_dense - X) X^T. From this
a weight can compensate for the errors of earlier layers (``repair.follow``).

H takes 4 bytes x columns^2. If that is too much, only blocks on its diagonal are computed; columns of different blocks
are then treated as if their inputs were unrelated.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Gram:
    """Running sum of X X^T, [groups, columns, columns] (groups: those of a convolution, otherwise 1).

    Parameters
    ----------
    total
        An initial sum.
    tokens
        How many columns of X are in it.
    limit
        Bytes that it may take. A larger matrix is reduced to blocks on the diagonal.
    align
        Columns of a block are a multiple of this, so that patterns can be split there.

    Examples
    --------
    >>> import torch
    >>> gram = Gram()
    >>> gram.add(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]))  # one group, two tokens
    >>> gram.total
    tensor([[[10.,  2.],
             [ 2.,  4.]]])
    >>> gram.norms, gram.tokens
    (tensor([[3.1623, 2.0000]]), 2)
    """

    def __init__(
        self, total: Tensor | None = None, tokens: int = 0, limit: float = float("inf"), align: int = 8
    ) -> None:
        self.parts = [] if total is None else [total]
        self.moved: list[Tensor] = []  # (X_dense - X) X^T in the same blocks, once dense inputs have come
        self.tokens, self.limit, self.align = tokens, limit, align

    @property
    def total(self) -> Tensor:
        """The sum, if it isn't reduced to blocks."""
        (total,) = self.parts
        return total

    @property
    def groups(self) -> int:
        """Groups of outputs that have different inputs."""
        return self.parts[0].shape[0]

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """The blocks on the diagonal, and the columns of each; one block if it isn't reduced."""
        at = 0
        for part in self.parts:
            yield slice(at, at + part.shape[1]), part
            at += part.shape[1]

    def add(self, x: Tensor, dense: Tensor | None = None) -> None:
        """Add activations [groups, tokens, columns], and optionally those of the dense model for the same tokens."""
        x = x if x.dtype == torch.float64 else x.float()
        if not self.parts:
            groups, _, columns = x.shape
            width = block_width(groups, columns, x.element_size(), self.limit, self.align)
            sizes = [min(width, columns - at) for at in range(0, columns, width)]
            self.parts = [x.new_zeros(groups, size, size) for size in sizes]
        for columns_, part in self.blocks():
            part.baddbmm_(x[:, :, columns_].transpose(1, 2), x[:, :, columns_])
        if dense is not None:
            self.moved = self.moved or [torch.zeros_like(part) for part in self.parts]
            gap = dense.to(x) - x
            for (columns_, _), moved in zip(self.blocks(), self.moved, strict=True):
                moved.baddbmm_(gap[:, :, columns_].transpose(1, 2), x[:, :, columns_])
        self.tokens += x.shape[1]

    def merge(self, other: Gram) -> None:
        """Add another sum."""
        if self.parts:
            for mine, theirs in zip(self.parts, other.parts, strict=True):
                mine.add_(theirs)
        else:
            self.parts = [part.clone() for part in other.parts]
        if other.moved:
            self.moved = self.moved or [torch.zeros_like(part) for part in self.parts]
            for mine, theirs in zip(self.moved, other.moved, strict=True):
                mine.add_(theirs)
        self.tokens += other.tokens

    @property
    def finite(self) -> bool:
        """Are all inputs finite? (A NaN or infinity in any input shows on the diagonal.)"""
        return bool(self.norms.isfinite().all())

    @property
    def norms(self) -> Tensor:
        """Euclidean norm of each input column: [groups, columns]."""
        return torch.cat([part.diagonal(dim1=1, dim2=2) for part in self.parts], 1).clamp(min=0).sqrt()

    @property
    def note(self) -> str | None:
        """A note about the blocks, if the matrix was reduced to them."""
        if len(self.parts) == 1:
            return None
        columns, size = sum(part.shape[1] for part in self.parts), self.parts[0].element_size()
        return (
            f"X X^T would take {self.groups * columns**2 * size / 1e9:.1f} GB: "
            f"its diagonal blocks of {self.parts[0].shape[1]} columns were used (memory=...)"
        )

    def copy(self) -> Gram:
        """Return an independent copy."""
        fresh = Gram(None, self.tokens, self.limit, self.align)
        fresh.parts, fresh.moved = [part.clone() for part in self.parts], [part.clone() for part in self.moved]
        return fresh

    def error(self, change: Tensor) -> float:
        """Squared norm of `change` @ X, for a change of the weight [rows, columns]."""
        change = change.view(self.groups, -1, change.shape[-1])
        total = 0.0
        for columns, part in self.blocks():
            here = change[:, :, columns].to(part.dtype)
            total += float((torch.bmm(here, part.to(here.device)) * here).sum())
        return total


def block_width(groups: int, columns: int, size: int, limit: float, align: int) -> int:
    """Columns of a diagonal block so that all blocks together take at most `limit` bytes.

    Examples
    --------
    >>> block_width(1, 4096, 4, limit=1e9, align=8), block_width(1, 65536, 4, limit=2e9, align=8)
    (4096, 7624)
    """
    if groups * columns**2 * size <= limit:
        return columns
    width = int(limit / (groups * columns * size))
    return max(width - width % align, align)
