"""Linear layers that train on sparse tensor cores: 2:4 in both directions, packed again after every optimizer step.

The output and the gradient of the input are products with the packed weight and with its packed transpose; the gradient
of the weight is dense, at every position. On a CPU the same packed arrays are multiplied as dense: correct, but not
faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.vnm.two_ways import TwoWays
from gossamer.models.masked import MaskedParameter


class SparseForward:
    """The forward function of one ``nn.Linear`` with a masked weight, while a method trains it.

    Parameters
    ----------
    module
        The layer; its mask is 2:4 in rows and in columns.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.packed: TwoWays | None = None
        self.version = -1
        self.module.forward = self

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self.module.weight, self.module.bias
        device, dtype = x.device.type, weight.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            x, bias = x.to(dtype), None if bias is None else bias.to(dtype)
        if not isinstance(weight, MaskedParameter) or x.dtype is not dtype or not x.numel():
            out: Tensor = type(self.module).forward(self.module, x)
            return out
        stale = not torch.compiler.is_compiling() and self.version != weight._version
        if self.packed is None or self.packed.values.dtype is not dtype or stale:
            self.pack(dtype)
        assert self.packed is not None
        return self.packed.linear(x, weight, bias)

    @torch.compiler.disable
    @torch.no_grad()
    def pack(self, dtype: torch.dtype) -> None:
        """Pack the weight as it is, mask and values."""
        weight = self.module.weight
        self.packed, self.version = TwoWays.of(weight.detach(), weight.known_mask(), dtype), weight._version

    @torch.no_grad()
    def follow(self, chosen: bool) -> None:
        """Take the values that a step has left, and the mask if it was chosen."""
        if self.packed is None:
            return
        weight = self.module.weight
        if chosen:
            self.packed.choose(weight.known_mask())
        self.packed.fill(weight.detach())
        self.version = weight._version

    def close(self) -> None:
        """Let the layer compute as any masked one."""
        self.module.__dict__.pop("forward", None)
