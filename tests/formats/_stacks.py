"""Any stack of levels in any order: drawn at random, with a tensor to store in it."""

from __future__ import annotations

import random

import torch

import gossamer as gs
from gossamer.formats.levels import Fixed, FixedLanes, HalfLanes, Lanes, Level, NearLanes, Pairs, Slots

SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32)


def levels(rng: random.Random, ndim: int) -> list[str | Level]:
    kinds: list[str | Level] = [
        *("dense", "compressed") * 3, "bitmap", "compressed-nonunique", "singleton", "fixed", Fixed(rng.randint(0, 9)),
        Slots(), Lanes(), NearLanes(), FixedLanes(rng.randint(1, 9), rng.choice((1, 1, 2))),
        HalfLanes(rng.randint(1, 9)), Pairs("all", 8),
    ]  # fmt: skip
    return [rng.choice(kinds) for _ in range(ndim)]


def draw(seed: int) -> tuple[list[str | Level], list[int], torch.Tensor]:
    """Levels, their order, and a tensor; its sizes suit lanes more often than chance would have it."""
    rng = random.Random(seed)
    ndim = rng.randint(1, 4)
    given, order = levels(rng, ndim), rng.sample(range(ndim), ndim)
    shape = [rng.choice(SIZES) for _ in range(ndim)]
    for n, level in enumerate(given):
        if isinstance(level, (Lanes, NearLanes, FixedLanes)) and n and rng.random() < 0.8:
            shape[order[n - 1]] = rng.choice((16, 32))
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(shape, generator=generator) < rng.choice((0.0, 0.1, 0.3, 0.7, 1.0))
    return given, order, torch.randn(shape, dtype=torch.float64, generator=generator) * keep


def stored(seed: int) -> tuple[gs.SparseTensor | None, torch.Tensor]:
    """The tensor in its stack of levels, or None if that is refused, and the tensor itself."""
    given, order, x = draw(seed)
    try:
        return gs.from_dense(x, gs.Format(*given, order=order)), x
    except ValueError as error:
        assert len(str(error)) > 20  # it says why
        return None, x
