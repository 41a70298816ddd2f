"""gs.linear: a linear layer and its activation in one call, in one kernel where the format has one."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.autocast import LOWERED
from gossamer.core.tensor import SparseTensor, tracked
from gossamer.formats import BSR, PackedRows, PackedVNM
from gossamer.kernels.transpose import feature_major, token_major
from gossamer.ops import packed, vnm

Activation = Literal["relu", "gelu", "silu"]
_CODES = {"relu": 1, "gelu": 2, "silu": 3}
_FUNCTIONS: dict[str, Any] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
    """Return activation(input @ weight.T + bias): ``F.linear`` and an activation, in one kernel where there is one.

    Packed formats apply the activation before the result leaves the registers, which saves a pass over it; other
    formats, dense weights and calls that need a gradient apply it afterwards. The result is the same up to rounding.

    Parameters
    ----------
    input, weight, bias
        As in :func:`torch.nn.functional.linear`; the weight in any format, or dense.
    activation
        ``"relu"``, ``"gelu"`` (by erf, torch's default), ``"silu"``, or None.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(64, 128), "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    >>> x = torch.randn(5, 128)
    >>> torch.equal(gs.linear(x, w, activation="relu"), torch.relu(torch.nn.functional.linear(x, w)))
    True
    """
    if activation is None:
        return F.linear(input, weight, bias)
    if activation not in _CODES:
        raise ValueError(f"activation={activation!r} must be one of {', '.join(map(repr, _CODES))}, or None")
    out = _fused(input, weight, bias, _CODES[activation])
    return _FUNCTIONS[activation](F.linear(input, weight, bias)) if out is NotImplemented else out


def linear_in_order(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None, turned: bool
) -> Tensor:
    """:func:`linear` with a feature-major (turned) or token-major result, whatever the order of the input.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(64, 128), "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    >>> linear_in_order(torch.randn(24, 128), w, None, None, turned=True).stride()
    (1, 24)
    """
    code = _CODES[activation] if activation else 0
    out = _fused(input, weight, bias, code, turned)
    if out is NotImplemented:
        out = linear(input, weight, bias, activation)
        return feature_major(out) if turned else token_major(out)
    return out


def _fused(input: Tensor, weight: Tensor, bias: Tensor | None, code: int, turned: bool | None = None) -> Any:
    if not isinstance(weight, SparseTensor) or isinstance(input, SparseTensor) or isinstance(bias, SparseTensor):
        return NotImplemented
    if "linear" in LOWERED and torch._C._is_any_autocast_enabled():
        return NotImplemented
    if torch.is_grad_enabled() and any(t is not None and tracked(t) for t in (input, weight, bias)):
        return NotImplemented  # the gradient needs what came before the activation
    if isinstance(weight.format, PackedVNM):
        return vnm.fused_linear(input, weight, bias, code, turned)
    if isinstance(weight.format, (PackedRows, BSR)) and turned is None:
        return packed.fused_linear(input, weight, bias, code)
    return NotImplemented
