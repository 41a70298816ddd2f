"""Weights that FSDP2 has sharded: each rank has its rows, with a mask for them.

Such a weight is still FSDP's DTensor, with zeros where the mask is False, and is gathered and reduced as usual. Its
gradient is masked before an optimizer step. An update gathers one layer, makes the same decision on every rank, and
each rank keeps its rows.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from gossamer.formats.values import cleared


def is_sharded(tensor: Any) -> bool:
    """Is this a DTensor? (Asked without importing torch.distributed.tensor, which takes a while.)"""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Any) -> Tensor:
    """All of a sharded tensor, on every rank."""
    full: Tensor = tensor.detach().full_tensor()
    return full


def local(tensor: Any) -> Tensor:
    """This rank's rows; what is written to them is written to the tensor."""
    rows: Tensor = tensor.detach().to_local()
    return rows


def shard_like(full: Tensor, like: Any) -> Any:
    """A tensor that every rank has, sharded as another one."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def rows_of(full: Tensor, like: Any) -> Tensor:
    """This rank's rows of a tensor that every rank has."""
    rows: Tensor = shard_like(full, like).to_local()
    return rows


def whole_mask(parameter: Any) -> Tensor:
    """The mask of a sharded weight, on every rank."""
    from torch.distributed.tensor import DTensor

    kept: Tensor = parameter.kept.view(torch.uint8)
    mesh, placements = parameter.device_mesh, parameter.placements
    sharded = DTensor.from_local(
        kept, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return whole(sharded).view(torch.bool)


def become_rows(parameter: Any, values: Tensor | None, mask: Tensor) -> None:
    """Give a sharded weight another mask, and other values unless None."""
    parameter.kept = rows_of(mask, parameter).contiguous()
    if values is not None:
        local(parameter).copy_(rows_of(values, parameter))
    clear(parameter, parameter)


def clear(tensor: Any, parameter: Any) -> None:
    """Zeros in this rank's rows of a tensor (a weight, its gradient or state) where the weight's mask is False."""
    cleared(local(tensor), parameter.kept, inplace=True)
