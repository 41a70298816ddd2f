"""Autocast: products run in the lower precision, as torch's own do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: The operators of torch's lower-precision list that have functions here.
LOWERED = {"linear", "matmul", "mm", "mv", "bmm", "addmm", "addmv", "baddbmm", "conv2d", "__matmul__"}


def lowered(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with float tensors in autocast's type, if it is on for their device."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    if not torch.is_autocast_enabled(device):
        return args
    dtype = torch.get_autocast_dtype(device)
    return tuple(a.to(dtype) if isinstance(a, Tensor) and a.dtype == torch.float32 else a for a in args)
