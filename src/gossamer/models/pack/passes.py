"""Where weights are when a layer is called: as far away as a call of the whole model leaves them.

The weights of a language model come from memory, those of a small model from a cache. So a layer that is measured by
itself is called with one copy of its weight after another, of as many bytes as the model reads between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from gossamer.models.weights import Weight

_USUAL = 32 << 20  # bytes of a largest cache, where the system doesn't tell
_MOST = 256 << 20  # bytes of copies
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

Key = TypeVar("Key")
Result = TypeVar("Result")


@lru_cache(maxsize=1)
def largest_cache() -> int:
    """Return the bytes of the processor's largest cache.

    Examples
    --------
    >>> largest_cache() > 2**15
    True
    """
    sizes = [bytes_of(file.read_text()) for file in _CACHES.glob("index*/size")]
    return max(sizes, default=0) or _USUAL


def bytes_of(text: str) -> int:
    """Return a size as Linux writes it.

    Examples
    --------
    >>> bytes_of("32768K"), bytes_of("512"), bytes_of("")
    (33554432, 512, 0)
    """
    text = text.strip()
    digits = text.rstrip("".join(_UNITS))
    return int(digits) * _UNITS.get(text[len(digits) :], 1) if digits.isdigit() else 0


def read_by_a_call(model: nn.Module, sparse: Iterable[Weight] = ()) -> int:
    """Return about how many bytes of weights a call of a model reads; more than the caches hold are cut to twice that.

    Of the ``sparse`` weights, which will be packed, only values that are not 0 count; no masks count. Nor do tables of
    embeddings, of which a call reads a few rows.

    Examples
    --------
    >>> model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 8))
    >>> read_by_a_call(model)
    544
    """
    kept = {id(weight.parameter): int(weight.dense().count_nonzero()) * weight.parameter.itemsize for weight in sparse}
    others = {
        id(tensor): tensor.nbytes
        for module in model.modules()
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if id(tensor) not in kept and tensor.dtype != torch.bool
    }
    return min(sum(kept.values()) + sum(others.values()), 2 * largest_cache(), _MOST)


def in_the_key(between: int) -> str:
    """Return what the times of a layer are known by: the bytes of weights that are read between two calls, about.

    Examples
    --------
    >>> in_the_key(3 << 20), in_the_key(1000)
    ('weights of 4 MiB', 'weights of 1 MiB')
    """
    return f"weights of {1 << max(-(-between >> 20) - 1, 0).bit_length()} MiB"


def far_away(
    weights: Mapping[Key, Tensor], between: int, call: Callable[[Key, Tensor], Result]
) -> dict[Key, Callable[[], Result]]:
    """Return a function for each form of a weight, whose calls take one copy after another.

    Parameters
    ----------
    weights
        One weight in several forms. Their functions must be called alternately.
    between
        Bytes of weights that must be read between two calls with the same copy.
    call
        Is given the form and the weight in it.

    Examples
    --------
    >>> calls = far_away({"a": torch.ones(256), "b": torch.ones(256)}, 4096, lambda form, weight: weight.data_ptr())
    >>> [len({call() for _ in range(10)}) for call in calls.values()]
    [2, 2]
    """
    count = max(between // max(sum(weight.nbytes for weight in weights.values()), 1), 1)

    def turning(form: Key, weight: Tensor) -> Callable[[], Result]:
        copies = cycle([weight, *(weight.clone() for _ in range(count - 1))])
        return lambda: call(form, next(copies))

    return {form: turning(form, weight) for form, weight in weights.items()}
