"""OBS, the optimal brain surgeon: choose jointly which weights to remove, and adjust the others in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.patterns import Choice, Pattern
from gossamer.prune.choose import best_sets, invert, tiled
from gossamer.prune.gram import Gram
from gossamer.prune.greedy import greedy_scores
from gossamer.prune.methods import Known, Method, Pruned, check_target, uncalibrated
from gossamer.prune.portions import Portions
from gossamer.prune.repair import repair
from gossamer.prune.sparsegpt import static_mask, sweep_blocks
from gossamer.prune.sweep import Choose, Swept, sweep
from gossamer.scores import BlockFisher, Magnitude

_VALUES = 1 << 25  # of inverse matrices at a time
_TOGETHER = 32  # columns of the Hessian that are decided and repaired together


@dataclass(frozen=True)
class OBS(Method):
    """Optimal brain surgeon: choose jointly which weights to remove, by the loss after adjusting the others optimally.

    Parameters
    ----------
    curvature
        "fisher": gradients of the loss, in blocks of consecutive weights of a row (oBERT, VENOM). "hessian": the
        layer's inputs, in a sweep over the columns like SparseGPT's, with the exact choice and adjustment in each step.
    block
        Weights that are treated together, rounded up to a multiple of the pattern's group.
    damp
        Added to the diagonal, as a share of its mean.
    target
        The outputs that a layer should reproduce. "model": its outputs in the dense model, so that it compensates for
        the errors of earlier layers. "layer": those of the dense layer for the inputs that it now gets, as published.
        Only for curvature="hessian".
    per_sample
        Compute one gradient per sample (Fisher); False: one per batch, which is faster, and enough for hundreds of
        batches.

    Notes
    -----
    N:M and V:N:M: all choices are tried, up to 2048 per group (2 of 64, 4 of 16, shared columns 4 of 16); above that,
    pairs are removed one after the other. Other patterns: weights (or blocks) are removed greedily, one after the
    other, with updates in between.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gram = gs.prune.Gram(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]]))
    >>> obs = gs.prune.OBS("hessian", damp=0)
    >>> obs.prune(torch.tensor([[3.0, 1.0]]), gs.NM(1, 2), gs.prune.Known(gram)).weight
    tensor([[3.5000, 0.0000]])
    """

    curvature: Literal["fisher", "hessian"] = "fisher"
    block: int = 16
    damp: float = 0.01
    per_sample: bool = True
    target: Literal["model", "layer"] = "model"

    repairs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.curvature not in ("fisher", "hessian"):
            raise ValueError(f'curvature must be "fisher" or "hessian", got {self.curvature!r}')
        check_target(self.target)

    @property
    def follows(self) -> bool:
        """Whether each layer is fitted to its outputs in the dense model, which needs its inputs."""
        return self.curvature == "hessian" and self.target == "model"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Gradients or inputs, depending on the curvature."""
        return ("grads",) if self.curvature == "fisher" else ("inputs",)

    def collector(
        self, pattern: Pattern, rows: int, columns: int, count: int, device: torch.device | str = "cpu"
    ) -> BlockFisher:
        """The Fisher inverse, in blocks of a multiple of what the pattern decides together."""
        choice = pattern.choice(rows)
        unit = choice.m if choice else _unit(pattern)[1]
        block = -(-min(max(self.block, unit), columns) // unit) * unit
        return BlockFisher(rows, columns, count=count, block=block, damp=self.damp, device=device)

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        if self.curvature == "hessian" and known.gram is not None:
            return self._sweep(weight, pattern, known.gram)
        if self.curvature == "fisher" and isinstance(known.gradients, BlockFisher):
            return self._blocks(weight, pattern, known.gradients)
        return uncalibrated(weight, pattern)

    def _blocks(self, weight: Tensor, pattern: Pattern, fisher: BlockFisher) -> Pruned:
        rows = len(weight)
        choice = pattern.choice(rows)
        height = choice.rows if choice else _unit(pattern)[0]
        step = max(1, _VALUES // (fisher.blocks * fisher.block**2 * height)) * height
        slices = [slice(at, min(at + step, rows)) for at in range(0, rows, step)]

        def inverse(part: slice) -> Tensor:
            return fisher.inverse(part).to(weight.device)

        if choice:
            mask = torch.cat([_joint(weight[part], inverse(part), choice) for part in slices])
        elif pattern.ranks:
            scores = [greedy_scores(weight[part], inverse(part), _unit(pattern)) for part in slices]
            mask = pattern.select(torch.cat(scores))
        else:
            mask = pattern.select(Magnitude()(weight))
        fresh = torch.cat([repair(weight[part], mask[part], inverse(part)) for part in slices])
        note = ("no gradient reached it: weights were ranked by magnitude",) if fisher.empty else ()
        return Pruned(fresh, mask, note)

    def _sweep(self, weight: Tensor, pattern: Pattern, gram: Gram) -> Pruned:
        rows, columns = weight.shape
        choice, unit = pattern.choice(rows), _unit(pattern)
        portions = Portions(pattern, rows, columns, max(_TOGETHER, unit[1]))
        fixed = None if portions.width else static_mask(weight, pattern, gram, self.damp)

        def choose(now: Tensor, here: Tensor, at: int) -> Tensor:
            if fixed is not None:
                return fixed[:, at : at + now.shape[1]]
            groups, wide, tall = now.shape
            precision = (here @ here.mT).double()
            inverse = invert(precision.permute(1, 2, 0)).permute(2, 0, 1)
            matrix = now.transpose(1, 2).reshape(-1, wide)
            each = inverse[:, None] if groups == 1 else inverse.repeat_interleave(tall, 0)[:, None]
            if choice:
                return _joint(matrix, each, choice).view(groups, tall, wide).transpose(1, 2)
            scores = greedy_scores(matrix, each, unit if wide % unit[1] == 0 else (1, 1))
            return portions.select(scores.view(groups, tall, wide).transpose(1, 2), at)

        def each(part: Tensor, r: Tensor, choose: Choose) -> Swept:
            return sweep(part, r, choose, width=portions.width or _TOGETHER, joint=True)

        return sweep_blocks(weight, gram, self.damp, choose, each)


def _unit(pattern: Pattern) -> tuple[int, int]:
    """Rows and columns that are removed together, where the columns are few enough to be solved for."""
    rows, width = pattern.unit
    return rows, max(d for d in range(1, min(width, _TOGETHER) + 1) if width % d == 0)


def _joint(weight: Tensor, inverse: Tensor, choice: Choice) -> Tensor:
    """Best n of m, from F^-1 in blocks [rows or 1, blocks, block, block] of a multiple of m, or of less than m."""
    m, v = choice.m, choice.rows
    rows, wide = weight.shape
    block = inverse.shape[-1]
    if block < m:  # the last few columns
        inverse = pad(inverse, (0, m - block, 0, m - block))
        inverse.diagonal(dim1=2, dim2=3)[..., block:] = 1
        block = m
    tiles, back = tiled(weight, v, m)
    inside = inverse.view(*inverse.shape[:2], block // m, m, block // m, m).diagonal(dim1=2, dim2=4).movedim(-1, 2)
    inside = inside.reshape(len(inverse), -1, m, m)[:, : -(-wide // m)]
    if len(inverse) == 1 and rows > 1:
        return back(best_sets(tiles, inside.transpose(0, 1), choice.n, choice.shared))
    fill = torch.eye(m, dtype=inside.dtype, device=inside.device).expand(-rows % v, *inside.shape[1:])
    inside = torch.cat([inside, fill])
    inside = inside.view(-1, v, inside.shape[1], m, m).transpose(1, 2).reshape(-1, v, m, m)
    return back(best_sets(tiles, inside, choice.n, choice.shared))
