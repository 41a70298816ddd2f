"""pack_ on a GPU: which packed formats fit a pattern there, and how long each takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Condensed, Dense, Format, PackedBitmap, PackedCSR, PackedVNM, as_format
from gossamer.kernels.bitmap.plan import TOKENS
from gossamer.models.pack.graphs import replayed
from gossamer.patterns import FanIn, recognise

_COPIES = 32
#: Density above which bitmaps are not tried: dense is as fast.
DENSEST_BITMAP = 0.6
_DENSEST_ROWS = 0.5  # density above which rows of any length are not tried: dense is tensor cores


def fitting(mask: Tensor, dtype: torch.dtype) -> list[Format]:
    """Return the packed formats for a GPU that hold such a pattern and waste little.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> fitting(gs.VNM(64, 2, 8).select(torch.rand(128, 256)), torch.float16)
    [PackedVNM(64, 2, 8)]
    """
    density = float(mask.float().mean()) if mask.numel() else 0.0
    pattern = recognise(mask)
    special = [as_format(name) for name in pattern.formats] if pattern is not None else []
    shared = [format for format in special if isinstance(format, PackedVNM)]
    half = dtype in (torch.float16, torch.bfloat16)
    if shared and half:
        return [shared[0]]  # sparse tensor cores: nothing without them comes near
    found: list[Format] = [PackedBitmap()] if half and 0 < density <= DENSEST_BITMAP else []
    if 0 < density <= _DENSEST_ROWS:
        found.append(Condensed() if FanIn.recognise(mask) is not None else PackedCSR())
    return found


def interleaved(
    x: Tensor, weights: dict[Format, Tensor], call: Callable[[Tensor, Tensor], Tensor]
) -> dict[Format, float]:
    """Return the seconds of one call with each weight.

    With few tokens a layer is bound by the bytes of its weight, which in a model are not in the L2 cache: the
    calls then go round copies that together don't fit into it.
    """
    calls = {}
    for format, weight in weights.items():
        held = [weight, *(_copy(weight) for _ in range(copies_of(weight.nbytes, x) - 1))]
        calls[format] = [partial(call, x, each) for each in held]
    return replayed(calls, device=x.device)


def copies_of(nbytes: int, x: Tensor) -> int:
    """Return how many copies of a weight the calls go round."""
    cache = torch.cuda.get_device_properties(x.device).L2_cache_size
    return min(max(ceil(2 * cache / max(nbytes, 1)), 2), _COPIES) if x.shape[0] <= 64 else 2


def _copy(weight: Tensor) -> Tensor:
    """A weight in memory of its own, index arrays too."""
    if not isinstance(weight, SparseTensor):
        return weight.clone()
    arrays = {name: array.clone() for name, array in weight.structure.arrays.items()}
    structure = type(weight.structure)(weight.format, weight.shape, arrays, weight.device)
    return SparseTensor(weight._values.clone(), structure)


def guess(format: Format, rows: int, cols: int, kept: int, tokens: int, size: int) -> float:
    """Seconds by a model: bytes over bandwidth or products over rate, whichever is more; an H200's figures."""
    bandwidth, rate = 4.0e12, 7.0e14
    if isinstance(format, Dense):
        return 4e-6 + max(rows * cols * size / bandwidth, 2 * rows * cols * tokens / rate)
    if isinstance(format, PackedVNM):
        return 4e-6 + max(kept * size * 1.2 / bandwidth, 2 * rows * cols * tokens / (rate * format.m / 4 * 1.4))
    if isinstance(format, PackedBitmap):
        if tokens > TOKENS:  # decoded first
            return guess(Dense(), rows, cols, kept, tokens, size) + 2 * rows * cols * size / bandwidth
        stored = (0.17 * rows * cols + 1.12 * kept) * size  # codes, words and padding
        return 4e-6 + stored / bandwidth * max(1.0, tokens / 24)
    return 6e-6 + max(kept * (size + 1.2) / bandwidth * 2, 2 * kept * tokens / 1e13)
