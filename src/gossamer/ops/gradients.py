"""Backward formulas of torch's pointwise functions for a sparse gradient.

Each is linear in the gradient that arrives, so it is computed where that is stored and is zero elsewhere. They are
reached below autograd, when the gradient of a dense activation was made sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import build, gather, values_of
from gossamer.core.look import shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.values import mask_padding

NAMES = (
    "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "elu_backward",
    "leaky_relu_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward", "mish_backward",
    "softplus_backward", "native_dropout_backward", "hardshrink_backward", "softshrink_backward",
    "log_sigmoid_backward",
)  # fmt: skip


def _takes(grad: Tensor, *others: Any, **kwargs: Any) -> str | None:
    if not isinstance(grad, SparseTensor):
        return "the gradient is dense"
    fits = all(shape_of(o) == grad._dense_shape for o in others if isinstance(o, Tensor))
    return None if fits else "an operand has another shape"


def _at_stored(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(grad: SparseTensor, *others: Any, **kwargs: Any) -> Any:
        structure = grad.structure
        at = [gather(o, structure) if isinstance(o, Tensor) else o for o in others]
        return build(mask_padding(function(values_of(grad), *at, **kwargs), structure), structure)

    return run


for _name in NAMES:  # elu_backward has its tensor last, after four options
    implements(_name, (Format,) * 6, when=_takes)(_at_stored(getattr(torch.ops.aten, _name)))
