"""Patterns on the way to a pattern: structure decay, and unstructured sparsity in steps.

V:N:M is approached through patterns of its own kind: blocks of v rows share c of each m columns, and each row keeps n
of those; c and n shrink until they are 4 and 2. Every later mask can lie within an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, Pattern, Unstructured
from gossamer.prune.choose import best_sets


@dataclass(frozen=True)
class SharedNM(Pattern):
    """Each block of v rows shares `shared` of each m columns, and each of its rows keeps n of those.

    ``SharedNM(v, 4, 2, m)`` keeps what ``VNM(v, 2, m)`` keeps; the others lead there.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[9.0, 1.0, 8.0, 7.0], [1.0, 1.0, 6.0, 9.0]])
    >>> SharedNM(2, 3, 2, 4).select(scores).int().tolist()
    [[1, 0, 1, 0], [0, 0, 1, 1]]
    """

    v: int
    shared: int
    n: int
    m: int

    def pick(self, scores: Tensor) -> Tensor:
        matrix = scores.reshape(len(scores), -1) if scores.dim() > 1 else scores.reshape(1, -1)
        # with F = identity, keeping w is worth w^2: scores are ranked as they are, shifted to be positive
        low = matrix.clamp(-1e30, 1e30)
        w = (low - low.amin()).double().sqrt()
        tiles, back = tiled(w, min(self.v, len(matrix)), self.m)
        eye = torch.eye(self.m, dtype=torch.float64, device=scores.device)
        return back(best_sets(tiles, eye[None, None], self.n, self.shared)).view(scores.shape)

    def sparsity_of(self, shape: tuple[int, ...]) -> float:  # type: ignore[override]
        return NM(self.n, self.m).sparsity_of(shape)

    def __str__(self) -> str:
        return f"{self.v}:{self.n}:{self.m}" + ("" if (self.shared, self.n) == (4, 2) else f" of {self.shared}")


def tiled(weight: Tensor, v: int, m: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A matrix as [tiles, v, m], filled up with zeros, and the way back for a mask of that shape.

    Examples
    --------
    >>> import torch
    >>> tiles, back = tiled(torch.arange(6.0).view(2, 3), 2, 2)
    >>> tiles.shape, back(tiles).tolist()
    (torch.Size([2, 2, 2]), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    """
    rows, columns = weight.shape
    filled = pad(weight, (0, -columns % m, 0, -rows % v))
    tall, groups = filled.shape[0] // v, filled.shape[1] // m

    def back(mask: Tensor) -> Tensor:
        return mask.view(tall, groups, v, m).transpose(1, 2).reshape(filled.shape)[:rows, :columns]

    return filled.view(tall, v, groups, m).transpose(1, 2).reshape(-1, v, m), back


def sharing(pattern: Pattern, rows: int) -> tuple[int, int | None, int, int] | None:
    """(v, shared, n, m) of a pattern that keeps n of each m columns, shared by v rows; None for other patterns."""
    if isinstance(pattern, NM):
        return 1, None, pattern.n, pattern.m
    if isinstance(pattern, VNM):
        v = rows if pattern.v == "all" else min(pattern.v, rows)
        return (1, None, 2, pattern.m) if v <= 1 or pattern.m == 4 else (v, 4, 2, pattern.m)
    if isinstance(pattern, SharedNM):
        return min(pattern.v, rows), pattern.shared, pattern.n, pattern.m
    return None


def on_the_way(pattern: Pattern, share: float) -> Pattern:
    """The pattern to hold when `share` (0 to 1) of the way to `pattern` is done.

    Examples
    --------
    >>> from gossamer.patterns import NM, VNM, Unstructured
    >>> [str(on_the_way(Unstructured(0.8), s)) for s in (0.5, 1.0)]
    ['40%', '80%']
    >>> [str(on_the_way(NM(2, 8), s)) for s in (0.5, 0.67, 0.83, 1.0)]
    ['5:8', '4:8', '3:8', '2:8']
    >>> [str(on_the_way(VNM(64, 2, 8), s)) for s in (0.5, 0.67, 0.83, 1.0)]
    ['64:5:8 of 6', '64:4:8 of 5', '64:3:8 of 5', '64:2:8']
    """
    if share >= 1:
        return pattern
    if isinstance(pattern, Unstructured | Blocks) or (isinstance(pattern, FanIn) and pattern.sparsity is not None):
        return replace(pattern, sparsity=round(pattern.sparsity * max(share, 0.0), 6))  # type: ignore[operator]
    if isinstance(pattern, NM | VNM | GroupedNM):
        n, m = pattern.n, pattern.m
        kept = min(m, max(n, round(m - share * (m - n))))
        if kept == m:
            return Unstructured(0.0)
        if not isinstance(pattern, VNM):
            return NM(kept, m)
        shared = min(m, max(4, round(m - share * (m - 4)), kept + (kept < m)))
        v = 1 << 62 if pattern.v == "all" else pattern.v
        return SharedNM(v, shared, kept, m) if v > 1 else NM(kept, m)
    return pattern
