"""What tests of levels share: entries as (parent, coordinate), stored and read back."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from gossamer.formats.levels import Level, check

CPU = torch.device("cpu")


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long)


def lists(arrays: dict[str, Tensor]) -> dict[str, list]:
    return {name: array.tolist() for name, array in arrays.items()}


def there_and_back(
    level: Level, entries: list[tuple[int, int]], parents: int, size: int
) -> tuple[dict, list[int], int]:
    """Store sorted entries, check what is stored, read it back; return arrays, positions and their number."""
    parent, coord = (ints(*column) for column in (zip(*entries, strict=True) if entries else ((), ())))
    arrays, place, places = level.pack(parent, coord, parents, size)
    arrays = {n: a.to(level.types[n][0]) if a.dtype not in level.types[n] else a for n, a in arrays.items()}
    check(level, arrays, parents, size)
    assert places == level.positions(arrays, parents, size)
    back_parent, back_coord, real = level.unpack(arrays, parents, size, CPU)
    assert back_parent.numel() == back_coord.numel() == places
    assert back_parent[place].tolist() == parent.tolist() and back_coord[place].tolist() == coord.tolist()
    if real is not None:  # what is real is what was stored, and nothing else
        assert sorted(real.nonzero().view(-1).tolist()) == sorted(set(place.tolist()))
    return arrays, place.tolist(), places


def draw(seed: int, parents: int, size: int, most: int | None = None) -> list[tuple[int, int]]:
    """Random sorted entries, at most ``most`` below a parent."""
    rng = random.Random(seed)
    rows = [rng.randint(0, min(size, size if most is None else most)) for _ in range(parents)]
    return [(p, c) for p, count in enumerate(rows) for c in sorted(rng.sample(range(size), count))]
