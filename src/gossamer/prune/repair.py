"""Repair: new values for the weights that stay, once it is decided which are removed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.prune.factor import factor
from gossamer.prune.gram import Gram
from gossamer.prune.sweep import solve_spd

_PULL = 0.3  # chosen on sentences that no figure is reported of; 0.1 and 1 are 0.001 to 0.002 worse in cosine
_VALUES = 1 << 22  # of inverse matrices worked on at a time


def repair(weight: Tensor, mask: Tensor, inverse: Tensor) -> Tensor:
    """The closed-form update w - F^-1 s, s = ((F^-1)_PP)^-1 w_P, of what stays when P is removed: [rows, columns].

    Parameters
    ----------
    weight, mask
        [rows, columns]; True stays.
    inverse
        F^-1 in blocks, [rows, blocks, block, block]. A weight makes up for those of its own block.

    Examples
    --------
    >>> import torch
    >>> inverse = torch.tensor([[[[1.0, 0.5], [0.5, 1.0]]]], dtype=torch.float64)
    >>> repair(torch.tensor([[2.0, 3.0]]), torch.tensor([[False, True]]), inverse)
    tensor([[0., 2.]])
    """
    rows, columns = weight.shape
    blocks, block = inverse.shape[1], inverse.shape[-1]
    fill = blocks * block - columns
    out = torch.empty_like(weight)
    eye = torch.eye(block, dtype=torch.float64, device=weight.device)
    step = max(1, _VALUES // (blocks * block * block))
    for at in range(0, rows, step):
        here = slice(at, at + step)
        w = pad(weight[here].double(), (0, fill)).view(-1, blocks, block)
        gone = pad(~mask[here], (0, fill)).view(w.shape)
        f = inverse[here] if len(inverse) > 1 else inverse.expand(len(w), -1, -1, -1)
        system = torch.where(gone[..., None] & gone[..., None, :], f, eye)
        s = solve_spd(system, w * gone) * gone
        fresh = (w - (f @ s[..., None])[..., 0]) * ~gone
        out[here] = fresh.flatten(1)[:, :columns].to(weight.dtype)
    return out


def follow(weight: Tensor, gram: Gram) -> Tensor:
    """The weight whose outputs come closest to those of the dense model, though its inputs have moved: [rows, columns].

    min |new X - weight X_dense|^2 + p |new - weight|^2, with p a share of the mean of the diagonal of X X^T: without it
    the weight would learn the calibration data by heart.

    Parameters
    ----------
    weight
        Of the dense model, [rows, columns].
    gram
        X X^T, and (X_dense - X) X^T.

    Examples
    --------
    >>> import torch
    >>> gram = Gram()
    >>> gram.add(torch.tensor([[[1.0], [2.0]]]), dense=torch.tensor([[[2.0], [4.0]]]))  # the inputs have been halved
    >>> follow(torch.tensor([[1.0]]), gram)  # 2, but for the pull to what it was
    tensor([[1.7692]])
    """
    grouped = weight.view(gram.groups, -1, weight.shape[1])
    new = grouped.clone()
    for (columns, part), moved in zip(gram.blocks(), gram.moved, strict=True):
        r, _ = factor(part.to(weight), _PULL)  # R R^T = X X^T + p
        wanted = torch.bmm(grouped[:, :, columns], moved.to(weight)).mT
        half = torch.linalg.solve_triangular(r, wanted, upper=True)
        new[:, :, columns] += torch.linalg.solve_triangular(r.mT, half, upper=False).mT
    return new.view_as(weight)


def least_squares(weight: Tensor, start: Tensor, mask: Tensor, gram: Gram, steps: int) -> Tensor:
    """Values of what stays that come closest to the dense outputs: min |(new - weight) X| by conjugate gradients.

    Parameters
    ----------
    weight
        The dense weight, [rows, columns].
    start
        What to begin with: zero where the mask is False.
    mask
        True where a value may differ from zero.
    gram
        X X^T.
    steps
        Products with X X^T, at most; the answer is never worse than `start`.

    Examples
    --------
    >>> import torch
    >>> w, mask = torch.tensor([[2.0, 3.0]]), torch.tensor([[False, True]])
    >>> least_squares(w, w * mask, mask, Gram(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])), steps=1)
    tensor([[0., 4.]])
    """
    grouped = [x.view(gram.groups, -1, x.shape[1]) for x in (weight, start, mask)]
    new = torch.empty_like(grouped[1])
    for columns, part in gram.blocks():
        dense, first, kept = (x[:, :, columns] for x in grouped)
        new[:, :, columns] = _conjugate_gradients(dense, first, kept, part.to(start.device), steps)
    return new.view_as(start)


def _conjugate_gradients(weight: Tensor, start: Tensor, mask: Tensor, hessian: Tensor, steps: int) -> Tensor:
    scale = hessian.diagonal(dim1=1, dim2=2)[:, None].clamp(min=1e-12 * float(hessian.diagonal(dim1=1, dim2=2).max()))
    scale = scale.clamp(min=torch.finfo(hessian.dtype).tiny)
    x = start.to(hessian.dtype)
    residual = torch.bmm(weight.to(hessian.dtype) - x, hessian) * mask
    z = residual / scale
    direction, energy = z, (residual * z).sum(2, keepdim=True)
    best, gained = x, torch.zeros_like(energy)
    total = torch.zeros_like(energy)
    for _ in range(steps):
        image = torch.bmm(direction, hessian) * mask
        curve = (direction * image).sum(2, keepdim=True)
        length = torch.where(curve > 0, energy / curve, 0)
        x = x + length * direction
        total = total + length * energy  # what this step takes off the squared error, row by row
        best, gained = torch.where(total >= gained, x, best), torch.maximum(total, gained)
        residual = residual - length * image
        z = residual / scale
        fresh = (residual * z).sum(2, keepdim=True)
        direction = z + torch.where(energy > 0, fresh / energy, 0) * direction
        energy = fresh
    return torch.where(mask & best.isfinite(), best, start.to(best.dtype)).to(start.dtype)
