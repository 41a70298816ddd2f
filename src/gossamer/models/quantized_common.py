"""What quantized layers share: checks of inputs, the type of a weight, and the dense layer that they stand for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gossamer.ops.ready import transformed


def check_tokens(x: Tensor, cols: int) -> None:
    """Raise an error if x can't be multiplied by a quantized weight with this number of columns.

    Examples
    --------
    >>> import torch
    >>> check_tokens(torch.ones(2, 3), 4)
    Traceback (most recent call last):
    ValueError: x has shape (2, 3); its last dimension must be 4
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}: a quantized layer takes floats, so give it x.float()")
    if x.dim() == 0 or x.shape[-1] != cols:
        raise ValueError(f"x has shape {tuple(x.shape)}; its last dimension must be {cols}")


def is_transformed(x: Tensor) -> bool:
    """Does x belong to a transform of ``torch.func``, or has it a tangent? Then only torch's own operators will do."""
    return not torch.compiler.is_dynamo_compiling() and transformed([x])


def linear_like(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``F.linear`` in the type of x.

    Examples
    --------
    >>> import torch
    >>> linear_like(torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2), torch.ones(1))
    tensor([[3.]], dtype=torch.float64)
    """
    return nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def dtype_after(fn: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type that a weight would have after what a module applies to its parameters.

    Examples
    --------
    >>> import torch
    >>> dtype_after(torch.Tensor.half, torch.float32, torch.device("cpu"))
    torch.float16
    """
    return fn(torch.empty(0, dtype=dtype, device=device)).dtype


def dense_layer(weight: Tensor, bias: nn.Parameter | None, inputs_first: bool) -> nn.Module:
    """Return a Linear with this weight, [outputs, inputs]; or transformers' Conv1D.

    Examples
    --------
    >>> import torch
    >>> dense_layer(torch.ones(2, 3), None, inputs_first=False)
    Linear(in_features=3, out_features=2, bias=False)
    """
    with torch.device("meta"):
        if inputs_first:
            from transformers.pytorch_utils import Conv1D

            made: nn.Module = Conv1D(*weight.shape)
        else:
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(weight.t().contiguous() if inputs_first else weight)
    made.bias = bias  # type: ignore[assignment]
    return made
