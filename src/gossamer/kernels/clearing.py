"""Zeros into many tensors outside their masks: the gradients of a masked model, before an optimizer's step."""

from __future__ import annotations

import struct
from collections import defaultdict

import torch
from torch import Tensor

from gossamer.formats.values import BITS, cleared
from gossamer.kernels.gpu import processors
from gossamer.native.cuda import function, usable

_MOST = 64  # arrays of a launch: clear.cu has a table of them
Pairs = list[tuple[Tensor, Tensor]]


def clear_all(tensors: list[Tensor], masks: list[Tensor]) -> None:
    """Put zeros into tensors where their masks are False, in place; on a GPU in one launch for up to 64 of a type.

    Examples
    --------
    >>> import torch
    >>> one, two = torch.tensor([1.0, float("nan")]), torch.ones(3)
    >>> clear_all([one, two], [torch.tensor([True, False]), torch.tensor([False, True, True])])
    >>> one.tolist(), two.tolist()
    ([1.0, 0.0], [0.0, 1.0, 1.0])
    """
    kinds: dict[tuple[torch.device, int], Pairs] = defaultdict(list)
    for tensor, mask in zip(tensors, masks, strict=True):
        if type(tensor) is Tensor and tensor.dtype.is_floating_point and tensor.element_size() in BITS:
            kinds[tensor.device, tensor.element_size()].append((tensor, mask))
        else:
            cleared(tensor, mask, inplace=True)
    for (device, size), pairs in kinds.items():
        flat = device.type == "cuda" and usable() and all(t.is_contiguous() and m.is_contiguous() for t, m in pairs)
        if flat:
            for start in range(0, len(pairs), _MOST):
                _launch(pairs[start : start + _MOST], size, device.index)
        else:
            torch._foreach_mul_([t.view(BITS[size]) for t, _ in pairs], [m for _, m in pairs])


def _launch(pairs: Pairs, size: int, device: int) -> None:
    """Clear up to 64 contiguous tensors with elements of one size."""
    counts = [tensor.numel() for tensor, _ in pairs]
    rest = [0] * (_MOST - len(pairs))
    values = [tensor.data_ptr() for tensor, _ in pairs]
    masks = [mask.data_ptr() for _, mask in pairs]
    run = function("clear.cu", "clear", device, f"{3 * _MOST * 8}s", ITEM=size, ELEMENT=2)
    table = struct.pack(f"{3 * _MOST}Q", *values, *rest, *masks, *rest, *counts, *rest)
    wide = max(1, min(-(-max(counts) * size // (16 * 256)), 8 * processors(device)))
    run((wide, len(pairs), 1), 256, table)
