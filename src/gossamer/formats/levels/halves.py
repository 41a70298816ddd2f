"""Two numbers below 16 in a byte, sixteen bytes at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 16


def paired(codes: Tensor) -> Tensor:
    """Put two steps of sixteen numbers below 16 into sixteen bytes, the first into the lower halves.

    Examples
    --------
    >>> import torch
    >>> hex(paired(torch.tensor([1] * 16 + [2] * 16, dtype=torch.uint8))[0])
    '0x21'
    """
    steps = codes.view(-1, LANES)
    steps = F.pad(steps, (0, 0, 0, steps.shape[0] % 2)).view(-1, 2, LANES)
    return (steps[:, 0] | steps[:, 1] << 4).view(-1)


def halves(crd: Tensor) -> Tensor:
    """Return the lower halves of sixteen bytes, their upper halves, those of the next sixteen, and so on.

    Examples
    --------
    >>> import torch
    >>> halves(torch.full((16,), 0x21, dtype=torch.uint8))[[0, 15, 16, 31]].tolist()
    [1, 1, 2, 2]
    """
    pairs = crd.view(-1, 1, LANES)
    return torch.cat([pairs & 15, pairs >> 4], 1).view(-1)
