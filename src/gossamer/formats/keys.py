"""Keys: the row-major numbers of positions in a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ravel(coords: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Row-major number of coordinates.

    Examples
    --------
    >>> import torch
    >>> ravel([torch.tensor([0, 1]), torch.tensor([2, 3])], (2, 4))
    tensor([2, 7])
    """
    number = coords[0]
    for coord, size in zip(coords[1:], sizes[1:], strict=True):
        number = number * size + coord
    return number


def unravel(keys: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Coordinates of row-major numbers.

    Examples
    --------
    >>> import torch
    >>> unravel(torch.tensor([2, 7]), (2, 4))
    [tensor([0, 1]), tensor([2, 3])]
    """
    coords: list[Tensor] = []
    for size in reversed(sizes[1:]):
        coords.insert(0, keys % size if size else keys)
        keys = torch.div(keys, size, rounding_mode="floor") if size else keys
    return [keys, *coords]


def ascending(keys: Tensor) -> bool:
    """Is each key greater than the one before?"""
    return keys.numel() < 2 or bool((keys[1:] > keys[:-1]).all())
