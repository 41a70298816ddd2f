"""A triangular factor of a curvature matrix, with damping if needed."""

from __future__ import annotations

import torch
from torch import Tensor

_DAMPS = 6  # times that damping is raised tenfold before giving up


def factor(hessian: Tensor, damp: float) -> tuple[Tensor, str | None]:
    """Upper triangular R with R R^T = H + damping, and a note if more damping was needed than requested.

    Damping is a share of the mean of the diagonal. A matrix that is still not positive definite gets ten times as
    much, first in float64, until it is. A matrix of zeros (there was no input) becomes the identity.

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
        "the Hessian of the calibration inputs can't be factored with any damping; are there huge values "
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
