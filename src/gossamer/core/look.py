"""Shape and type of any tensor, without torch: asking a SparseTensor as torch does costs microseconds."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor


def shape_of(t: Tensor) -> torch.Size:
    """Return the shape of a tensor.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> shape_of(gs.from_dense(torch.eye(2), gs.CSR()))
    torch.Size([2, 2])
    """
    return t._dense_shape if isinstance(t, SparseTensor) else t.shape


def dtype_of(t: Tensor) -> torch.dtype:
    """Return the type of a tensor's values.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> dtype_of(gs.from_dense(torch.eye(2), gs.CSR()))
    torch.float32
    """
    return t._values.dtype if isinstance(t, SparseTensor) else t.dtype
