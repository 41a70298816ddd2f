"""Processes that train the same model: they start with the same weights, and update with the mean gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.train.layers import Layer
from gossamer.train.shards import is_sharded


class Ranks:
    """The ranks of a process group; the default group if None. Without torch.distributed there is one."""

    def __init__(self, group: Any = None) -> None:
        self.group = group

    @property
    def alone(self) -> bool:
        """Is there only one?"""
        return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self.group) == 1

    @torch.no_grad()
    def agree(self, layers: Sequence[Layer], rng: torch.Generator) -> None:
        """Copy the weights and the random numbers of the first rank to all (with FSDP, only the random numbers)."""
        if not self.alone:
            first = dist.get_global_rank(self.group, 0) if self.group is not None else 0
            state = rng.get_state().to(layers[0].parameter.device)
            plain = [layer.parameter.detach() for layer in layers if not is_sharded(layer.parameter)]
            for tensor in [state, *plain]:
                dist.broadcast(tensor, first, group=self.group)
            rng.set_state(state.cpu())

    def mean(self, grad: Tensor) -> Tensor:
        """The mean of a gradient over all."""
        if self.alone:
            return grad
        grad = grad.clone()
        dist.all_reduce(grad, group=self.group)
        return grad.div_(dist.get_world_size(self.group))
