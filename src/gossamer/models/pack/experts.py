"""Experts of a mixture of experts in pack_: one expert is measured, with the tokens that are routed to each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import Format, PackedVNM, Stacked
from gossamer.kernels.gpu import capability
from gossamer.kernels.vnm.experts import ROWS
from gossamer.models.experts import as_rows, experts_hold_inputs_first, is_experts
from gossamer.models.grouped import format_of
from gossamer.models.modules import dense_class
from gossamer.models.pack import gpu
from gossamer.models.pack.tune import fitting
from gossamer.models.routed import is_routed
from gossamer.models.weights import all_weights


def has_experts(module: nn.Module) -> bool:
    """Is it a module that holds the matrices of all experts?

    Examples
    --------
    >>> has_experts(nn.Linear(4, 4))
    False
    """
    return any(is_experts(module, weight.shape) for weight in all_weights(module).values())


def routed(module: nn.Module, args: Sequence[Any]) -> list[int]:
    """Return how many tokens each expert gets in a call, to the next power of two; those without any are left out.

    transformers passes the indices of the experts after the tokens. Without indices the tokens are in equal parts.
    """
    experts = next(w.shape[0] for w in all_weights(module).values() if is_experts(module, w.shape))
    x, *others = args
    indices = next((o for o in others if isinstance(o, Tensor) and o.dtype in (torch.int64, torch.int32)), None)
    if indices is None:
        counts = [x[..., 0].numel() // experts] * experts
    else:
        counts = torch.bincount(indices.flatten(), minlength=experts)[:experts].tolist()
    return [1 << round(math.log2(count)) for count in counts if count]


def usual_expert(dense: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrix and the mask of the expert that keeps a median number of values.

    Examples
    --------
    >>> mask = torch.tensor([[[True, True]], [[False, False]], [[True, False]]])
    >>> usual_expert(torch.ones(3, 1, 2), mask)[1]
    tensor([[ True, False]])
    """
    index = int(torch.argsort(mask.flatten(1).sum(1))[mask.shape[0] // 2])
    return dense[index], mask[index]


def formats_of_experts(module: nn.Module, mask: Tensor, dtype: torch.dtype) -> list[Format]:
    """Return the formats with kernels that hold the matrix of each expert."""
    if mask.is_cuda:
        return _on_a_gpu(module, mask, dtype)
    if not experts_hold_inputs_first(module):
        return fitting(as_rows(mask, inputs_first=False))
    formats = (format.transposed() for format in fitting(as_rows(mask, inputs_first=True)))
    return [format for format in formats if format is not None]


def _on_a_gpu(module: nn.Module, mask: Tensor, dtype: torch.dtype) -> list[Format]:
    """Packed V:N:M, if all experts keep 2 of every m columns, of four that the rows of an expert share.

    Other GPUs have kernels for one expert, but none for all of them: each call would decode every weight.
    """
    if capability(mask.get_device()) != (9, 0):
        return []
    if not is_routed(dense_class(module)) or experts_hold_inputs_first(module) or mask.shape[1] % ROWS:
        return []
    found = [f for f in gpu.fitting(mask[0], dtype) if isinstance(f, PackedVNM) and f == PackedVNM("all", 2, f.m)]
    return [format for format in found if _all_have(mask, format.m)]


def _all_have(mask: Tensor, m: int) -> bool:
    """Do the rows of each expert keep 2 of every m columns, and the same four together?

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> mask = torch.stack([gs.VNM("all", 2, 8).select(torch.rand(64, 16)) for _ in range(3)])
    >>> _all_have(mask, 8), _all_have(mask, 4), _all_have(mask | True, 8)
    (True, True, False)
    """
    if mask.shape[2] % m:
        return False
    groups = mask.unflatten(2, (-1, m))
    return int(groups.sum(3).max()) <= 2 and (m == 4 or int(groups.any(1).sum(2).max()) <= 4)


def stacked(format: Format, rows: int) -> Format:
    """Return the format of all experts, whose matrices are best in this format.

    Examples
    --------
    >>> import gossamer as gs
    >>> stacked(gs.formats.PackedCSR(), 64), stacked(gs.formats.PackedVNM("all", 2, 8), 64)
    (Stacked(PackedCSR()), Stacked(PackedVNM(64, 2, 8)))
    """
    return format_of(rows, format.m) if isinstance(format, PackedVNM) else Stacked(format)
