"""The product with packed rows of int8 values."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.formats import Structure
from gossamer.kernels.rows.operators import rows_of

_int8 = torch.ops.gossamer.rows_int8.default


def linear_int8(x: Tensor, values: Tensor, structure: Structure, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias for a packed weight of int8 values and the scales of its rows."""
    arrays, sizes = rows_of(structure)
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    flat = (flat if flat.dtype is torch.float32 else flat.float()).contiguous()
    scale = scale if scale.dtype is torch.float32 else scale.float()
    shift = bias if bias is None or bias.dtype is torch.float32 else bias.float()
    out = _int8(*arrays, values, scale, flat, shift, *sizes, 0)
    out = out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[-1])
    return out if x.dtype is torch.float32 else out.to(x.dtype)
