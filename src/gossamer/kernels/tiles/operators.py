"""The product of packed tiles, as a torch operator: schema and fake function; the kernels are native.

``tiles_linear(pos, bits, values, x, bias, rows, cols, activation)`` is act(x @ A.T + bias) in bfloat16. ``A`` are the
values and arrays of :class:`gossamer.formats.PackedTiles`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.rows.operators import _library

_library.define(
    "tiles_linear(Tensor pos, Tensor bits, Tensor values, Tensor x, Tensor? bias, int rows, int cols, int activation) "
    "-> Tensor"
)
_library.impl("tiles_linear", torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::tiles_linear", lib=_library)
def _(pos: Any, bits: Any, values: Any, x: Tensor, bias: Any, rows: int, *rest: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))
