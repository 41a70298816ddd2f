"""Which pattern a mask has: read off the mask itself, so that it works for a model of any origin."""

from __future__ import annotations

from math import comb

import torch
import torch.nn.functional as F
from torch import Tensor

_M = (4, 8, 16, 32, 10, 20, 5, 6, 12, 3, 2)  # the usual ones first
_V = ("all", 128, 64, 32, 16, 8)
_G = (1, 2, 4, 8, 16, 32, 64)  # the smallest that holds: its multiples do as well
_BLOCKS = (32, 16, 8, 4, 2)


def recognise(mask: Tensor) -> str:
    """Return the most special pattern that a matrix of kept positions has, as gossamer would write it.

    A mask of chance may look more regular than it was meant: a matrix of two rows soon has a constant fan-in.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> scores = torch.rand(128, 128, generator=torch.Generator().manual_seed(0))
    >>> [recognise(gs.patterns.as_pattern(p).select(scores)) for p in ("2:4", "64:2:8", "block 4x4 75%", "fan-in k=8")]
    ['2:4', '64:2:8', 'block 4x4', 'fan-in k=8']
    >>> recognise(gs.Unstructured(0.9).select(scores))
    'unstructured'
    """
    mask = mask.flatten(1) if mask.dim() > 1 else mask.reshape(1, -1)
    kept = int(mask.sum())
    if mask.numel() == 0 or kept == mask.numel():
        return "dense"
    if kept == 0:
        return "empty"
    return _blocks(mask) or _n_of_m(mask, kept) or _fan_in(mask) or "unstructured"


def _blocks(mask: Tensor) -> str | None:
    """Blocks that are whole or empty; a matrix of one block tells nothing."""
    for side in _BLOCKS:
        if mask.shape[0] % side or mask.shape[1] % side or min(mask.shape) < 2 * side:
            continue
        counts = mask.view(mask.shape[0] // side, side, -1, side).sum((1, 3))
        if bool(((counts == 0) | (counts == side * side)).all()):
            return f"block {side}x{side}"
    return None


def _n_of_m(mask: Tensor, kept: int) -> str | None:
    density = kept / mask.numel()
    for m in _M:
        if m > mask.shape[1]:
            continue
        groups = F.pad(mask, (0, -mask.shape[1] % m)).view(mask.shape[0], -1, m)
        n = int(groups.sum(2).max())
        if n == m or n / m > 1.02 * density:
            continue
        if n == 2 and m > 4 and (v := _shared(groups)):
            return f"{v}:{n}:{m}"
        g = _grouped(groups[:, : mask.shape[1] // m], n, m)  # the last group may be short, and is free then
        return f"{n}:{m}:g{g}" if g else f"{n}:{m}"
    return None


def _shared(groups: Tensor) -> str | None:
    """V of V:N:M: the most rows that share 4 columns of each group."""
    rows = groups.shape[0]
    for v in _V:
        size = rows if v == "all" else int(v)
        if size > rows or size < 8:
            continue
        padded = F.pad(groups, (0, 0, 0, 0, 0, -rows % size))
        columns = padded.view(-1, size, *groups.shape[1:]).any(1).sum(-1)
        if bool((columns <= 4).all()):
            return str(v)
    return None


def _grouped(groups: Tensor, n: int, m: int) -> int | None:
    """G of grouped n:m: in every chunk of rows each choice is made by as many rows."""
    rows, choices = groups.shape[0], comb(m, n)
    if choices > 4096 or rows < 2 * choices:
        return None
    words = (groups.long() << torch.arange(m)).sum(2)
    for g in _G:
        chunk = choices * g
        if chunk > rows:
            continue
        whole = words[: rows // chunk * chunk].view(-1, chunk, words.shape[1]).sort(1).values
        runs = whole.view(whole.shape[0], choices, g, -1)
        if bool((runs == runs[:, :, :1]).all()) and bool((runs[:, 1:, 0] != runs[:, :-1, 0]).all()):
            return g
    return None


def _fan_in(mask: Tensor) -> str | None:
    counts = mask.sum(1)
    active = counts[counts > 0]
    if mask.shape[0] > 1 and bool((active == active[0]).all()):
        gone = int((counts == 0).sum())
        return f"fan-in k={int(active[0])}" + (f", {gone} rows gone" if gone else "")
    return None
