"""Activations between layers: which work element by element, and which kernels have them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_MODULES: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Identity, nn.Dropout,
)  # fmt: skip
_FUNCTIONS: dict[Any, int] = {F.relu: 1, torch.relu: 1, F.gelu: 2, F.silu: 3}
_CODES: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.GELU: 2, nn.SiLU: 3}
_OF_TRANSFORMERS = {"GELUActivation": 2, "SiLUActivation": 3}  # classes by name: transformers need not be installed


def is_elementwise(activation: Any) -> bool:
    """Is it a module or a function whose results depend on one element each?

    Examples
    --------
    >>> import torch
    >>> is_elementwise(torch.nn.Tanh()), is_elementwise(torch.nn.functional.silu), is_elementwise(torch.nn.Softmax())
    (True, True, False)
    """
    return activation in _FUNCTIONS or type(activation) in _MODULES or type(activation).__name__ in _OF_TRANSFORMERS


def code_of(activation: Any) -> int | None:
    """Return the code by which kernels know an activation; None for one that they don't have.

    Examples
    --------
    >>> import torch
    >>> code_of(torch.nn.SiLU()), code_of(torch.nn.functional.gelu), code_of(torch.nn.GELU("tanh"))
    (3, 2, None)
    """
    if getattr(activation, "approximate", "none") != "none":
        return None
    if not isinstance(activation, nn.Module):
        return _FUNCTIONS.get(activation)
    return _CODES.get(type(activation), _OF_TRANSFORMERS.get(type(activation).__name__))
