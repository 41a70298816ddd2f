"""The methods: how to prune one weight, given what is known about it. One small class each, and a table of names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from gossamer.patterns import Blocks, Pattern, Threshold
from gossamer.prune.choose import best_sets, invert
from gossamer.prune.curvature import Gram, factor
from gossamer.prune.decay import sharing, tiled
from gossamer.prune.fisher import BlockFisher
from gossamer.prune.greedy import greedy_scores
from gossamer.prune.portions import Portions
from gossamer.prune.repair import repair
from gossamer.prune.sweep import sweep

Needs = Literal["nothing", "inputs", "gradients"]


class Pruned(NamedTuple):
    """A weight after pruning, [rows, columns], what stayed of it, and what was out of the ordinary."""

    weight: Tensor
    mask: Tensor
    notes: tuple[str, ...] = ()


class Known(NamedTuple):
    """What calibration has told about a weight."""

    gram: Gram | None = None
    fisher: BlockFisher | None = None


class Method(ABC):
    """How a weight is pruned. A method of your own is a class with one method; pass an instance to ``oneshot``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> class KeepLargest(gs.prune.Method):
    ...     def prune(self, weight, pattern, known):
    ...         mask = pattern.select(weight)
    ...         return gs.prune.Pruned(weight * mask, mask)
    >>> model = torch.nn.Linear(8, 8)
    >>> gs.prune.oneshot(model, "2:4", method=KeepLargest()).sparsity
    0.5
    """

    needs: ClassVar[Needs] = "nothing"
    """What has to be gathered first: "nothing", the layer's "inputs", or "gradients" of a loss."""

    @abstractmethod
    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        """Prune a weight [rows, columns], float32 or float64; it is not changed."""

    @property
    def name(self) -> str:
        """How reports call it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Magnitude(Method):
    """Keep the largest; repair nothing. Needs no calibration.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.prune.Magnitude().prune(torch.tensor([[1.0, -3.0]]), gs.NM(1, 2), gs.prune.Known()).weight
    tensor([[ 0., -3.]])
    """

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        mask = pattern.select(weight.abs())
        return Pruned(weight * mask, mask)


@dataclass(frozen=True)
class Wanda(Method):
    """Keep the largest |w| |x|, with x the inputs that a weight meets; repair nothing (Sun et al. 2023).

    As published, unstructured sparsity ("50%") is taken from every row alike.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gram = gs.prune.Gram(torch.diag(torch.tensor([100.0, 1.0]))[None])
    >>> gs.prune.Wanda().prune(torch.tensor([[1.0, -3.0]]), gs.NM(1, 2), gs.prune.Known(gram)).weight
    tensor([[1., -0.]])
    """

    needs: ClassVar[Needs] = "inputs"

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        if known.gram is None:
            return _uncalibrated(weight, pattern)
        rows, columns = weight.shape
        norms = known.gram.norms
        scores = (weight.view(len(norms), -1, columns).abs() * norms[:, None]).view(rows, columns)
        mask = Portions(pattern, rows, columns).by_row(scores)
        return Pruned(weight * mask, mask)


@dataclass(frozen=True)
class SparseGPT(Method):
    """Sweep over the columns; what goes is made good by the columns to its right (Frantar and Alistarh 2023).

    Parameters
    ----------
    damp
        Added to the diagonal of the layer's Hessian, as a share of its mean.
    block
        Columns among which unstructured sparsity is decided at a time.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gram = gs.prune.Gram(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]]))
    >>> gs.prune.SparseGPT(damp=0).prune(torch.tensor([[1.0, 3.0]]), gs.NM(1, 2), gs.prune.Known(gram)).weight
    tensor([[0.0000, 3.5000]])
    """

    damp: float = 0.01
    block: int = 128
    needs: ClassVar[Needs] = "inputs"

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        if known.gram is None:
            return _uncalibrated(weight, pattern)
        rows, columns = weight.shape
        r, note = factor(known.gram.total.to(weight.dtype), self.damp)
        grouped = weight.view(len(r), -1, columns)
        portions = Portions(pattern, rows, columns, self.block)
        fixed = None if portions.width else _static(weight, pattern, r)

        def choose(now: Tensor, here: Tensor, at: int) -> Tensor:
            if fixed is not None:
                return fixed[:, at : at + now.shape[1]]
            scores = now * here.diagonal(dim1=1, dim2=2)[..., None]
            return portions.select(scores.square_(), at)

        out = sweep(grouped, r, choose, width=portions.width or self.block, block=self.block)
        return Pruned(out.weight.view(rows, columns), out.mask.view(rows, columns), (note,) if note else ())


@dataclass(frozen=True)
class OBS(Method):
    """Optimal brain surgeon: choose jointly what goes, by the loss after the best repair, and repair what stays.

    Parameters
    ----------
    curvature
        "fisher": gradients of the loss, in blocks of consecutive weights of a row (oBERT, VENOM). "hessian": the
        layer's inputs, in a sweep over the columns as SparseGPT's, with the exact choice and repair in each step.
    block
        Weights that are seen together: rounded up to a multiple of m for n:m patterns.
    damp
        Added to the diagonal, as a share of its mean.
    per_sample
        Take one gradient a sample (Fisher); False: one a batch, which is faster, and enough for hundreds of batches.
    memory
        Bytes for Fisher matrices: the layers that fit are gathered in one pass over the batches, the next ones in
        another.

    Notes
    -----
    N:M and V:N:M: every choice is tried up to 2048 choices a group (2 of 64, 4 of 16, shared columns 4 of 16), and
    pairs beyond. Other patterns: greedily, one weight (or block) after the other, with updates in between.

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
    memory: float = 4e9

    def __post_init__(self) -> None:
        if self.curvature not in ("fisher", "hessian"):
            raise ValueError(f'curvature must be "fisher" or "hessian", got {self.curvature!r}')

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Gradients or inputs, as the curvature has it."""
        return "gradients" if self.curvature == "fisher" else "inputs"

    def block_for(self, pattern: Pattern, rows: int, columns: int) -> int:
        """Size of a Fisher block: a multiple of what the pattern decides together."""
        shared = sharing(pattern, rows)
        unit = shared[3] if shared else _unit(pattern)[1]
        return -(-min(max(self.block, unit), columns) // unit) * unit

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        if self.curvature == "hessian" and known.gram is not None:
            return self._sweep(weight, pattern, known.gram)
        if self.curvature == "fisher" and known.fisher is not None:
            return self._blocks(weight, pattern, known.fisher)
        return _uncalibrated(weight, pattern)

    def _blocks(self, weight: Tensor, pattern: Pattern, fisher: BlockFisher) -> Pruned:
        rows = len(weight)
        shared = sharing(pattern, rows)
        height = shared[0] if shared else _unit(pattern)[0]
        step = max(1, (1 << 25) // (fisher.blocks * fisher.block**2 * height)) * height
        slices = [slice(at, min(at + step, rows)) for at in range(0, rows, step)]
        parts = []
        for part in slices:
            inverse = fisher.inverse(part).to(weight.device)
            if shared:
                parts.append(_joint(weight[part], inverse, shared))
            else:
                parts.append(greedy_scores(weight[part], inverse, _unit(pattern)))
        mask = torch.cat(parts) if shared else _ranked(pattern, torch.cat(parts), weight)
        there = weight.device
        fresh = torch.cat([repair(weight[p], mask[p], fisher.inverse(p).to(there)) for p in slices])
        note = ("no gradient reached it: weights were ranked by magnitude",) if fisher.empty else ()
        return Pruned(fresh, mask, note)

    def _sweep(self, weight: Tensor, pattern: Pattern, gram: Gram) -> Pruned:
        rows, columns = weight.shape
        r, note = factor(gram.total.to(weight.dtype), self.damp)
        grouped = weight.view(len(r), -1, columns)
        shared = sharing(pattern, rows)
        unit = _unit(pattern)
        width = -(-max(32, unit[1]) // unit[1]) * unit[1]
        portions = Portions(pattern, rows, columns, width)
        fixed = None if portions.width else _static(weight, pattern, r)

        def choose(now: Tensor, here: Tensor, at: int) -> Tensor:
            if fixed is not None:
                return fixed[:, at : at + now.shape[1]]
            groups, wide, tall = now.shape
            precision = (here @ here.mT).double()
            inverse = invert(precision.permute(1, 2, 0)).permute(2, 0, 1)
            matrix = now.transpose(1, 2).reshape(-1, wide)
            each = inverse[:, None] if groups == 1 else inverse.repeat_interleave(tall, 0)[:, None]
            if shared:
                mask = _joint(matrix, each, shared)
                return mask.view(groups, tall, wide).transpose(1, 2)
            scores = greedy_scores(matrix, each, unit if wide % unit[1] == 0 else (1, 1))
            return portions.select(scores.view(groups, tall, wide).transpose(1, 2), at)

        out = sweep(grouped, r, choose, width=portions.width or width, joint=True)
        return Pruned(out.weight.view(rows, columns), out.mask.view(rows, columns), (note,) if note else ())


def _joint(weight: Tensor, inverse: Tensor, shared: tuple[int, int | None, int, int]) -> Tensor:
    """Best n of m, from F^-1 in blocks [rows or 1, blocks, block, block] of a multiple of m, or of less than m."""
    v, columns, n, m = shared
    rows, wide = weight.shape
    block = inverse.shape[-1]
    if block < m:  # the last few columns
        inverse = torch.nn.functional.pad(inverse, (0, m - block, 0, m - block))
        inverse.diagonal(dim1=2, dim2=3)[..., block:] = 1
        block = m
    tiles, back = tiled(weight, v, m)
    inside = inverse.view(*inverse.shape[:2], block // m, m, block // m, m).diagonal(dim1=2, dim2=4).movedim(-1, 2)
    inside = inside.reshape(len(inverse), -1, m, m)[:, : -(-wide // m)]
    if len(inverse) == 1 and rows > 1:
        return back(best_sets(tiles, inside.transpose(0, 1), n, columns))
    fill = -rows % v
    if fill:
        inside = torch.cat(
            [inside, torch.eye(m, dtype=inside.dtype, device=inside.device).expand(fill, *inside.shape[1:])]
        )
    groups = inside.shape[1]
    inside = inside.view(-1, v, groups, m, m).transpose(1, 2).reshape(-1, v, m, m)
    return back(best_sets(tiles, inside, n, columns))


def _unit(pattern: Pattern) -> tuple[int, int]:
    """Rows and columns that go together where nothing else is known of a pattern."""
    if not isinstance(pattern, Blocks):
        return 1, 1
    width = pattern.block[1]
    return pattern.block[0], max(d for d in range(1, min(width, 32) + 1) if width % d == 0)


def _ranked(pattern: Pattern, scores: Tensor, weight: Tensor) -> Tensor:
    return pattern.select(weight.abs() if isinstance(pattern, Threshold) else scores)


def _static(weight: Tensor, pattern: Pattern, r: Tensor) -> Tensor:
    """A mask for all columns at once, [groups, columns, rows], from w^2 / [H^-1]_jj."""
    eye = torch.eye(r.shape[1], dtype=r.dtype, device=r.device).expand_as(r)
    spread = torch.linalg.solve_triangular(r, eye, upper=True)
    grouped = weight.view(len(r), -1, weight.shape[1])
    scores = grouped.square() / spread.square().sum(1)[:, None]
    mask = _ranked(pattern, scores.view(weight.shape), weight)
    return mask.view(grouped.shape).transpose(1, 2)


def _uncalibrated(weight: Tensor, pattern: Pattern) -> Pruned:
    mask = pattern.select(weight.abs())
    return Pruned(weight * mask, mask, ("no calibration reached it: pruned by magnitude",))


METHODS: dict[str, type[Method]] = {"magnitude": Magnitude, "wanda": Wanda, "sparsegpt": SparseGPT, "obs": OBS}


def as_method(method: str | Method) -> Method:
    """A method, from itself or its name.

    Examples
    --------
    >>> as_method("sparsegpt")
    SparseGPT(damp=0.01, block=128)
    """
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ValueError(
            f"unknown method {method!r}; there are {', '.join(map(repr, METHODS))}, or a Method of your own"
        )
    return METHODS[method]()
