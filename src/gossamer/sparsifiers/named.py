"""Sparsifiers with names: those of STen, and other common combinations."""

from __future__ import annotations

from typing import ClassVar

from gossamer import patterns, scores
from gossamer.sparsifiers.base import Sparsifier


class Named(Sparsifier):
    """A sparsifier that prints as its name with some fields of its pattern."""

    shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(getattr(self.pattern, name)) for name in self.shown)})"


class KeepAll(Named):
    """Keeps everything.

    Examples
    --------
    >>> KeepAll()
    KeepAll()
    """

    def __init__(self) -> None:
        super().__init__(patterns.KeepAll())


class RandomFraction(Named):
    """Removes each value with probability p, independently (as in dropout), by a hash of seed and index.

    Examples
    --------
    >>> import torch
    >>> RandomFraction(0.5, seed=1)
    RandomFraction(0.5, seed=1)
    >>> RandomFraction(0.0).mask(torch.ones(3))
    tensor([True, True, True])
    """

    def __init__(self, p: float, seed: int = 0) -> None:
        # Uniform scores: "the lowest fraction p" and "below p" mean the same, and the latter needs no ranking.
        super().__init__(patterns.Threshold(patterns.Unstructured(p).sparsity), scores.Random(seed))

    def __repr__(self) -> str:
        assert isinstance(self.pattern, patterns.Threshold) and isinstance(self.score, scores.Random)
        return f"RandomFraction({self.pattern.t!r}, seed={self.score.seed})"


class ScalarThreshold(Named):
    """Keeps values with |x| > t.

    Examples
    --------
    >>> ScalarThreshold(0.01)
    ScalarThreshold(0.01)
    """

    shown: ClassVar[tuple[str, ...]] = ("t",)

    def __init__(self, t: float) -> None:
        super().__init__(patterns.Threshold(t))


class ScalarFraction(Named):
    """Removes the fraction p with the smallest magnitude.

    Examples
    --------
    >>> ScalarFraction(0.9)
    ScalarFraction(0.9)
    """

    shown: ClassVar[tuple[str, ...]] = ("sparsity",)

    def __init__(self, p: float) -> None:
        super().__init__(patterns.Unstructured(p))


class BlockwiseFraction(Named):
    """Removes the fraction p of blocks with the smallest mean magnitude.

    Examples
    --------
    >>> BlockwiseFraction(0.8, (4, 4))
    BlockwiseFraction(0.8, (4, 4))
    """

    shown: ClassVar[tuple[str, ...]] = ("sparsity", "block")

    def __init__(self, p: float, block: tuple[int, int] = (4, 4)) -> None:
        super().__init__(patterns.Blocks(p, block))


class PerBlockFraction(Named):
    """Keeps the n largest of every m neighbours in a row.

    Examples
    --------
    >>> PerBlockFraction(2, 4)
    PerBlockFraction(2, 4)
    """

    shown: ClassVar[tuple[str, ...]] = ("n", "m")

    def __init__(self, n: int, m: int) -> None:
        super().__init__(patterns.NM(n, m))


class GroupedNM(Named):
    """Keeps n of every m, with each choice used equally often in a chunk of rows: `patterns.GroupedNM` by magnitude.

    Examples
    --------
    >>> GroupedNM(1, 8, 16)
    GroupedNM(1, 8, 16)
    """

    shown: ClassVar[tuple[str, ...]] = ("n", "m", "g")

    def __init__(self, n: int, m: int, g: int) -> None:
        super().__init__(patterns.GroupedNM(n, m, g))


class Movement(Named):
    """Removes the fraction p that training moves most towards zero. `mask` needs `grad`.

    Examples
    --------
    >>> import torch
    >>> Movement(0.5).mask(torch.ones(2), grad=torch.tensor([1.0, -1.0]))
    tensor([False,  True])
    """

    shown: ClassVar[tuple[str, ...]] = ("sparsity",)

    def __init__(self, p: float) -> None:
        super().__init__(patterns.Unstructured(p), scores.Movement())


class HardConcrete(Named):
    """Removes values whose l0 gate is closed. `mask` needs `log_alpha`.

    Examples
    --------
    >>> import torch
    >>> HardConcrete().mask(torch.ones(2), log_alpha=torch.tensor([-4.0, 4.0]))
    tensor([False,  True])
    """

    def __init__(self) -> None:
        super().__init__(patterns.Threshold(0.0), scores.HardConcrete())
