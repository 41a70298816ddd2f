"""pack_ on a GPU: which packed formats fit a pattern there, and how long each takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Condensed, Dense, Format, PackedCSR, PackedVNM
from gossamer.models.pack.graphs import replayed

#: Rows that may share columns, as kernels like them: the more, the better.
_ROWS = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8, 4, 2, 1)
_WASTE = 1.1  # stored over kept, at most
_COPIES = 32
_SPARSEST_DENSE = 0.5  # density above which unstructured patterns are not tried: dense is tensor cores


def fitting(mask: Tensor, dtype: torch.dtype) -> list[Format]:
    """Return the packed formats for a GPU that hold such a pattern and waste little.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> fitting(gs.VNM(64, 2, 8).select(torch.rand(128, 256)), torch.float16)
    [PackedVNM(64, 2, 8)]
    """
    density = float(mask.float().mean()) if mask.numel() else 0.0
    shared = shared_columns(mask) if dtype in (torch.float16, torch.bfloat16) and density else None
    if shared is not None:
        return [shared]  # tensor cores: nothing without them comes near
    if not 0 < density <= _SPARSEST_DENSE:
        return []
    counts = mask.sum(1)
    constant = bool(((counts == counts.max()) | (counts == 0)).all())
    return [Condensed() if constant else PackedCSR()]


def shared_columns(mask: Tensor) -> PackedVNM | None:
    """Return the V:N:M that the pattern is, with the most rows that share columns; None if it is none."""
    rows, cols = mask.shape
    groups = -(-int(mask.sum(1).max()) // 2)  # two of each: so many groups there must be
    if 2 * groups * rows > _WASTE * int(mask.sum()):
        return None
    widest = cols if groups == 1 else (cols - 1) // (groups - 1)
    for m in range(min(widest, 256), max(-(-cols // groups), 4) - 1, -1):
        each = F.pad(mask, (0, -cols % m)).view(rows, -1, m)
        if int(each.sum(2).max()) > 2:
            continue
        if m == 4 or _shares(each.any(0)[None]):
            return PackedVNM("all", 2, m)
        for v in _ROWS:
            if v < rows and _shares(F.pad(each, (0, 0, 0, 0, 0, -rows % v)).view(-1, v, *each.shape[1:]).any(1)):
                return PackedVNM(v, 2, m)
    return None


def _shares(used: Tensor) -> bool:
    return int(used.sum(-1).max()) <= 4


def interleaved(
    x: Tensor, weights: dict[Format, Tensor], call: Callable[[Tensor, Tensor], Tensor]
) -> dict[Format, float]:
    """Return the seconds of one call with each weight.

    With few tokens a layer is bound by the bytes of its weight, which in a model are not in the second cache: the
    calls then go round copies that together don't fit into it.
    """
    cache = torch.cuda.get_device_properties(x.device).L2_cache_size
    calls = {}
    for format, weight in weights.items():
        copies = min(max(ceil(2 * cache / max(weight.nbytes, 1)), 2), _COPIES) if x.shape[0] <= 64 else 2
        held = [weight, *(_copy(weight) for _ in range(copies - 1))]
        calls[format] = [partial(call, x, each) for each in held]
    return replayed(calls, device=x.device)


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
    return 6e-6 + max(kept * (size + 1.2) / bandwidth * 2, 2 * kept * tokens / 1e13)
