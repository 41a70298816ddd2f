"""The curvature of one layer: what its inputs say about which errors of its weight hurt.

A layer computes y = W x. Changing W by D changes its outputs by D X, whose squared norm is tr(D H D^T) with H = X X^T:
every row of W meets the same H. It is gathered batch by batch, so that no activation outlives its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

_DAMPS = 6  # times that damping is raised tenfold before giving up


@dataclass
class Gram:
    """Running sum of X X^T, [groups, columns, columns] (groups: those of a convolution, otherwise 1).

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

    total: Tensor = field(default_factory=lambda: torch.zeros(0))
    tokens: int = 0

    def add(self, x: Tensor) -> None:
        """Take in activations [groups, tokens, columns]."""
        x = x if x.dtype == torch.float64 else x.float()
        if not self.total.numel():
            self.total = x.new_zeros(x.shape[0], x.shape[2], x.shape[2])
        self.total.baddbmm_(x.transpose(1, 2), x)
        self.tokens += x.shape[1]

    def merge(self, other: Gram) -> None:
        """Take in another sum."""
        self.total = self.total.add_(other.total) if self.total.numel() else other.total.clone()
        self.tokens += other.tokens

    @property
    def finite(self) -> bool:
        """Has no NaN or infinity come in? (One in any input shows on the diagonal.)"""
        return bool(self.total.diagonal(dim1=1, dim2=2).isfinite().all())

    @property
    def norms(self) -> Tensor:
        """Euclidean norm of each input column: [groups, columns]."""
        return self.total.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()

    def copy(self) -> Gram:
        """Return one that goes its own way."""
        return Gram(self.total.clone(), self.tokens)

    def error(self, change: Tensor) -> Tensor:
        """Squared norm of `change` @ X, for a change of the weight [groups, rows, columns]; a scalar."""
        total = self.total.to(change.device)
        return (torch.bmm(change.to(total.dtype), total) * change).sum()


def factor(hessian: Tensor, damp: float) -> tuple[Tensor, str | None]:
    """Upper triangular R with R R^T = H + damping, and a note where more damping was needed than asked for.

    Damping is a share of the mean of the diagonal. A matrix that is still not positive definite gets ten times as
    much, first in float64, until it is. A matrix of zeros (no input was ever seen) becomes the identity.

    Parameters
    ----------
    hessian
        [groups, columns, columns], symmetric, positive semi-definite.
    damp
        Share of the mean diagonal that is added to the diagonal, >= 0.

    Examples
    --------
    >>> import torch
    >>> r, note = factor(torch.tensor([[[4.0, 2.0], [2.0, 4.0]]]), damp=0.0)
    >>> torch.allclose(r @ r.mT, torch.tensor([[4.0, 2.0], [2.0, 4.0]])), note
    (True, None)
    """
    mean = hessian.diagonal(dim1=1, dim2=2).mean(1)
    empty = mean <= 0
    note = None
    if bool(empty.any()):
        note = "inputs are all zero: weights were ranked by magnitude"
        eye = torch.eye(hessian.shape[1], dtype=hessian.dtype, device=hessian.device)
        hessian = torch.where(empty[:, None, None], eye, hessian)
        mean = torch.where(empty, 1, mean)
    for attempt in range(2 * _DAMPS):
        share = damp if attempt < 2 else max(damp, 1e-6) * 10 ** (attempt // 2)
        wide = hessian.double() if attempt % 2 else hessian
        lower = _flipped_cholesky(wide, share * mean)
        if lower is not None:
            if attempt > 1:
                note = f"the Hessian was singular: damping was raised from {damp:g} to {share:g} of its mean diagonal"
            return lower.flip(1, 2).to(hessian.dtype), note
    raise ValueError(
        "the Hessian of the calibration inputs can't be factored, whatever the damping; are there huge values "
        f"(largest on its diagonal {float(hessian.diagonal(dim1=1, dim2=2).max()):.3g}) in the activations?"
    )


def _flipped_cholesky(hessian: Tensor, added: Tensor) -> Tensor | None:
    """Cholesky factor from the last row to the first; None where the matrix isn't safely positive definite."""
    flipped = hessian.flip(1, 2)
    flipped.diagonal(dim1=1, dim2=2).add_(added.to(flipped.dtype)[:, None])
    lower, info = torch.linalg.cholesky_ex(flipped)
    pivots = lower.diagonal(dim1=1, dim2=2)
    sound = pivots.amin(1).square() > torch.finfo(hessian.dtype).eps * flipped.diagonal(dim1=1, dim2=2).amax(1)
    return lower if not bool(info.any()) and bool(sound.all()) and bool(pivots.isfinite().all()) else None
