"""SparseGPT: a sweep over the columns, in which later columns compensate for earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.patterns import Pattern
from gossamer.prune.factor import factor
from gossamer.prune.gram import Gram
from gossamer.prune.methods import Known, Method, Pruned, check_target, uncalibrated
from gossamer.prune.portions import Portions
from gossamer.prune.sweep import Choose, Grid, Swept, sweep
from gossamer.scores import Magnitude


@dataclass(frozen=True)
class SparseGPT(Method):
    """Sweep over the columns; the columns to the right compensate for what is removed (Frantar and Alistarh 2023).

    Parameters
    ----------
    damp
        Added to the diagonal of the layer's Hessian, as a share of its mean.
    block
        Columns for which unstructured sparsity is decided at a time.
    target
        The outputs that a layer should reproduce. "model": its outputs in the dense model, so that it compensates for
        the errors of earlier layers. "layer": those of the dense layer for the inputs that it now gets, as published.
    bits
        Round the kept values to this many bits, symmetric, with a scale for each row, as ``gs.quantize_`` does. Each
        column is rounded when it is pruned, so that the columns to its right compensate for both. With 8 bits,
        ``gs.quantize_(model, "int8")`` adds no error. None: no rounding.

    Notes
    -----
    If a pattern removes units of several columns (blocks), a unit is rated by the error of removing all of it, |R_PP^T
    w_P|^2, not by the sum of the errors of its values.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gram = gs.prune.Gram(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]]))
    >>> gs.prune.SparseGPT(damp=0).prune(torch.tensor([[1.0, 3.0]]), gs.NM(1, 2), gs.prune.Known(gram)).weight
    tensor([[0.0000, 3.5000]])
    """

    damp: float = 0.01
    block: int = 128
    bits: int | None = None
    target: Literal["model", "layer"] = "model"

    needs: ClassVar[tuple[str, ...]] = ("inputs",)
    repairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bits is not None and not 2 <= self.bits <= 16:
            raise ValueError(f"bits must be from 2 to 16, or None; got {self.bits!r}")
        check_target(self.target)

    @property
    def follows(self) -> bool:
        """Whether each layer is fitted to its outputs in the dense model."""
        return self.target == "model"

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        gram = known.gram
        if gram is None:
            return uncalibrated(weight, pattern)
        rows, columns = weight.shape
        portions = Portions(pattern, rows, columns, self.block)
        fixed = None if portions.width else static_mask(weight, pattern, gram, self.damp)

        def choose(now: Tensor, here: Tensor, at: int) -> Tensor:
            if fixed is not None:
                return fixed[:, at : at + now.shape[1]]
            return portions.select(removal_cost(now, here, pattern.unit[1]), at)

        def once(grid: Grid | None) -> Pruned:
            def each(part: Tensor, r: Tensor, choose: Choose) -> Swept:
                return sweep(part, r, choose, width=portions.width or self.block, block=self.block, grid=grid)

            return sweep_blocks(weight, gram, self.damp, choose, each)

        out = once(None)
        return out if self.bits is None else _rounded(out, once, gram.groups, 2 ** (self.bits - 1) - 1)


def sweep_blocks(
    weight: Tensor, gram: Gram, damp: float, choose: Choose, each: Callable[[Tensor, Tensor, Choose], Swept]
) -> Pruned:
    """Sweep over the columns of each diagonal block of X X^T, one block after the other."""
    grouped = weight.view(gram.groups, -1, weight.shape[1])
    new, mask = torch.empty_like(grouped), torch.empty(grouped.shape, dtype=torch.bool, device=weight.device)
    notes = [gram.note]
    for columns, part in gram.blocks():
        r, note = factor(part.to(weight), damp)
        at = columns.start
        out = each(grouped[:, :, columns], r, lambda now, here, local, at=at: choose(now, here, at + local))  # type: ignore[misc]
        new[:, :, columns], mask[:, :, columns] = out.weight, out.mask
        notes.append(note)
    return Pruned(new.view_as(weight), mask.view_as(weight), tuple(dict.fromkeys(note for note in notes if note)))


def removal_cost(now: Tensor, here: Tensor, width: int) -> Tensor:
    """What removing each unit of `width` neighbouring columns costs, shared among its values.

    Parameters
    ----------
    now
        Weights, [groups, columns, rows].
    here
        R with R R^T = H, [groups, columns, columns]. With the columns of P and all to its right free, removing P costs
        w_P^T ((H^-1)_PP)^-1 w_P = |R_PP^T w_P|^2.
    width
        Columns of a unit; the last may have fewer.

    Examples
    --------
    >>> import torch
    >>> r = torch.tensor([[[2.0, 1.0], [0.0, 1.0]]])
    >>> removal_cost(torch.ones(1, 2, 1), r, 1).flatten(), removal_cost(torch.ones(1, 2, 1), r, 2).flatten()
    (tensor([4., 1.]), tensor([4., 4.]))
    """
    if width == 1:
        return (now * here.diagonal(dim1=1, dim2=2)[..., None]).square_()
    columns = now.shape[1]
    fill = -columns % width
    units = (columns + fill) // width
    w = pad(now, (0, 0, 0, fill)).unflatten(1, (units, width))  # groups, units, width, rows
    r = pad(here, (0, fill, 0, fill)).unflatten(2, (units, width)).unflatten(1, (units, width))
    inside = r.diagonal(dim1=1, dim2=3).permute(0, 3, 2, 1)  # groups, units, width, width: R_PP^T
    cost = (inside @ w).square_().sum(2, keepdim=True) / width
    if fill:
        cost[:, -1] *= width / (width - fill)
    return cost.expand_as(w).flatten(1, 2)[:, :columns]


def static_mask(weight: Tensor, pattern: Pattern, gram: Gram, damp: float) -> Tensor:
    """A mask for all columns at once, [groups, columns, rows], from w^2 / [H^-1]_jj: for patterns that don't split."""
    grouped = weight.view(gram.groups, -1, weight.shape[1])
    scores = Magnitude()(grouped)
    if pattern.ranks:
        for columns, part in gram.blocks():
            r, _ = factor(part.to(weight), damp)
            eye = torch.eye(r.shape[1], dtype=r.dtype, device=r.device).expand_as(r)
            spread = torch.linalg.solve_triangular(r, eye, upper=True)
            scores[:, :, columns] = grouped[:, :, columns].square() / spread.square().sum(1)[:, None]
    return pattern.select(scores.view(weight.shape)).view(grouped.shape).transpose(1, 2)


def _rounded(first: Pruned, once: Callable[[Grid], Pruned], groups: int, levels: int) -> Pruned:
    """Sweep again on a grid whose range is that of the first result; the largest of each row ends at its last level.

    So the scale is the row's largest value over `levels`, and ``gs.quantize_`` finds it again.
    """
    largest = first.weight.abs().amax(1)
    scale = torch.where(largest > 0, largest / levels, 1.0)
    out = once(Grid(scale.view(groups, -1), levels))
    best = out.weight.abs().max(1)
    top = torch.where(best.values > 0, scale * levels, 0.0) * out.weight.gather(1, best.indices[:, None])[:, 0].sign()
    weight = out.weight.scatter(1, best.indices[:, None], top[:, None])
    return out._replace(weight=weight)
