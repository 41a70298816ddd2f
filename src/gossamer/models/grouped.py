"""Experts in packed V:N:M: all of them multiply their tokens in one launch, and nothing waits for the GPU.

Tokens are sorted by their expert. How many each has stays on the GPU, so that the forward function can be captured in a
CUDA graph and traced by ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.formats import Format, PackedVNM, Stacked
from gossamer.kernels import product as kernels
from gossamer.kernels.vnm import experts as kernel  # noqa: F401  registers the operator
from gossamer.models.stored import structure_of

_DOWN = "down_proj"
#: Multiplies each row by a weight of its expert: of experts, a weight's name, x, the tokens with these numbers (None: x
#: as it is), the expert of each row, and the end of the rows of each expert.
Projection = Callable[[Any, str, Tensor, Tensor | None, Tensor, Tensor], Tensor]


def format_of(rows: int, m: int) -> Stacked:
    """Return the format of experts of ``rows`` rows that keep 2 of every m columns, four of them shared.

    Examples
    --------
    >>> format_of(128, 8), format_of(128, 4)
    (Stacked(PackedVNM(128, 2, 8)), Stacked(PackedVNM('all', 2, 4)))
    """
    return Stacked(PackedVNM("all" if m == 4 else rows, 2, m))


def is_grouped(format: Format | None, rows: int) -> bool:
    """Are experts of ``rows`` rows stored such that one launch can multiply all of them?

    Examples
    --------
    >>> is_grouped(format_of(128, 8), 128), is_grouped(format_of(128, 8), 256), is_grouped(format_of(128, 4), 256)
    (True, False, True)
    """
    if not isinstance(format, Stacked) or not isinstance(format.inner, PackedVNM):
        return False
    inner = format.inner  # compared by its parts: older versions of torch.compile don't trace format == format
    return (inner.v, inner.bits) == ("all" if inner.m == 4 else rows, 16)


def takes(experts: Any, x: Tensor) -> bool:
    """Can the experts of a module be computed for these tokens without gradients and in one launch for each weight?"""
    for name in names_of(experts):
        held = experts._sparse.get(name)
        if held is None or not is_grouped(held.format, held.shape[1]) or held.shape[2] % held.format.inner.m:
            return False
        values = experts._parameters[f"{name}_values"]
        if values.dtype is not x.dtype or kernels.needed(values, x):
            return False
    return not experts.is_transposed


def grouped(experts: Any, x: Tensor, index: Tensor, shares: Tensor, projected: Projection | None = None) -> Tensor:
    """Return the sum of the chosen experts of each token, by their shares.

    Parameters
    ----------
    experts
        The module; :func:`takes` has said that it can be computed here.
    x
        Tokens [tokens, features].
    index, shares
        [tokens, chosen]: which experts a token goes to, and how much each counts.
    projected
        What multiplies tokens by the weights of experts; those in 16 bits by default.
    """
    projected = projected or _projected
    (first, second), chosen, count = names_of(experts), index.shape[-1], experts.num_experts
    expert, order = torch.sort(index.reshape(-1), stable=True)
    ends = torch.searchsorted(expert, torch.arange(count, device=expert.device), right=True).to(torch.int32)
    own = expert.clamp(max=count - 1).long()  # a token may be for none of them
    up = projected(experts, first, x, order // chosen, own, ends)
    inner = experts._apply_gate(up) if experts.has_gate else experts.act_fn(up)
    out = projected(experts, second, inner, None, own, ends)
    out = normed(experts, out)
    weighted = out * shares.reshape(-1)[order].unsqueeze(-1)
    weighted = torch.where((expert < count).unsqueeze(-1), weighted, 0)  # such rows were not written
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return weighted[back].view(*index.shape, out.shape[-1]).sum(1).to(x.dtype)


def _projected(experts: Any, name: str, x: Tensor, token: Tensor | None, own: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row by its expert: of the tokens with these numbers, or of x as it is."""
    held = experts._sparse[name]
    count, rows, _ = held.shape
    arrays, m = structure_of(experts, name, held).arrays, held.format.inner.m
    x = read_columns(x, token, own, None if m == 4 else arrays["cols2"].view(count, -1, 4), m)
    bias = getattr(experts, f"{name}_bias").reshape(-1) if experts.has_bias else None
    out: Tensor = torch.ops.gossamer.vnm_experts.default(
        experts._parameters[f"{name}_values"], arrays["meta2"], bias, x, ends, rows, x.shape[1]
    )
    return out


def read_columns(x: Tensor, token: Tensor | None, own: Tensor, shared: Tensor | None, m: int) -> Tensor:
    """Return the tokens with these numbers (None: all), of each the columns that the weight of its expert reads.

    Parameters
    ----------
    x
        Tokens [tokens, features].
    token
        The number of the token of each row.
    own
        The expert of each row.
    shared
        [experts, groups, 4]: where in its m columns each shared one is. None: all columns are read.
    m
        Columns of a group.

    Examples
    --------
    >>> shared = torch.tensor([[[0, 1, 2, 3]], [[0, 2, 4, 6]]], dtype=torch.uint8)
    >>> read_columns(torch.arange(16.0).view(2, 8), torch.tensor([1, 0]), torch.tensor([0, 1]), shared, 8)
    tensor([[ 8.,  9., 10., 11.],
            [ 0.,  2.,  4.,  6.]])
    """
    if shared is None:
        return x if token is None else x[token]
    groups = torch.arange(0, x.shape[1], m, device=x.device)[:, None]
    columns = (shared[:, : len(groups)].long() + groups).view(len(shared), -1)  # what is stored has whole steps
    line = torch.arange(len(x), device=x.device) if token is None else token
    return x[line[:, None], columns[own]]


def normed(experts: Any, out: Tensor) -> Tensor:
    """Apply the norm that follows each expert, if the class has one; older versions of transformers don't know it."""
    return experts.post_expert_norm(out) if getattr(experts, "has_post_expert_norm", False) else out


def names_of(experts: Any) -> tuple[str, str]:
    """Return the names of the weights of a module of experts, in the order of their use."""
    return "gate_up_proj" if experts.has_gate else "up_proj", _DOWN
