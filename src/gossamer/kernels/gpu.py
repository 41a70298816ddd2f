"""What the kernels must know of a GPU, asked once; and plain kernels, by name."""

from __future__ import annotations

from functools import lru_cache

import torch

ELEMENTS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
#: Bytes from one line to the next that kernels can count.
MOST_LINE = 2**31


@lru_cache(maxsize=16)
def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a device."""
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=16)
def processors(device: int) -> int:
    """Return how many multiprocessors a device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def named(capability: tuple[int, int]) -> str:
    """Return a compute capability in words.

    Examples
    --------
    >>> named((9, 0)), named((8, 9))
    ('compute capability 9.0', 'compute capability 8.9')
    """
    return f"compute capability {capability[0]}.{capability[1]}"
