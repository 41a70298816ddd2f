"""Attention as a torch operator: schema, fake function, and what it takes; the kernel is native.

``attention(q, k, v, mask, scale)`` is softmax(q @ k.T * scale) @ v for [batch, heads, tokens, depth]. The result is
stored in the order [batch, queries, heads, depth]: the projection behind it reads it without a copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer import native

_library = torch.library.Library("gossamer", "FRAGMENT")
_library.define("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale) -> Tensor")
_library.impl("attention", torch.library.fallthrough_kernel, "Autograd")
_attention = torch.ops.gossamer.attention.default
#: Scores of 32 queries and all keys are held at once: up to here in half a megabyte.
MOST_KEYS = 4096


@torch.library.register_fake("gossamer::attention", lib=_library)
def _(q: Tensor, k: Any, v: Any, mask: Any, scale: float) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], q.shape[3])).transpose(1, 2)


def takes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Return why the kernel can't compute this attention, or None.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> takes(x, x, x, torch.zeros(3, 3))
    'the mask is torch.float32 [3, 3]: bool [batch, 1, queries, keys] is taken'
    """
    if any(x.dim() != 4 or x.dtype is not torch.float32 or not x.is_cpu for x in (q, k, v)):
        return "q, k and v must be float32 [batch, heads, tokens, depth] on a CPU"
    if any((x.shape[0], x.shape[1], x.shape[3]) != (q.shape[0], q.shape[1], q.shape[3]) for x in (k, v)):
        return "q, k and v must have the same batch, heads and depth"
    if mask is not None and (mask.dtype is not torch.bool or mask.dim() != 4 or mask.shape[1] != 1):
        return f"the mask is {mask.dtype} {list(mask.shape)}: bool [batch, 1, queries, keys] is taken"
    if isinstance(k.shape[2], int) and k.shape[2] > MOST_KEYS:  # a size that is free is taken to be smaller
        return f"there must be {MOST_KEYS} keys at most"
    return None if native.load() else f"no native kernels: {native.why_not()}"


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Return softmax(q @ k.T * scale) @ v, over the keys where the mask is True. There is no gradient.

    A query whose mask has no key gives 0, as in torch. Results don't depend on the number of threads.

    Parameters
    ----------
    q, k, v
        float32 [batch, heads, tokens, depth] on a CPU.
    mask
        bool [1 or batch, 1, 1 or queries, 1 or keys], or None.
    scale
        By default 1 / sqrt(depth).

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> attention(x, x, x + 1.0)[0, 0, 0]
    tensor([1., 1., 1., 1.])
    """
    reason = takes(q, k, v, mask)
    if reason is not None:
        raise ValueError(reason)
    tensors = [x if x.shape[3] <= 1 or x.stride(3) == 1 else x.contiguous() for x in (q, k, v)]
    factor = max(q.shape[3], 1) ** -0.5 if scale is None else scale
    out: Tensor = _attention(*tensors, mask, factor)
    return out
