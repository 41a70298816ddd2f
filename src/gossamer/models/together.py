"""Packed 2:4 layers that read the same input, such as q, k and v, computed in one launch on a GPU.

Each layer keeps its own parameters and buffers: only the launch is shared. The first layer that is called computes for
all, and the others return their part when they are called with the same tensor. Where the kernel doesn't take a call
(many tokens, gradients, a CPU, a layer that has changed its format), each layer computes for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels import product as kernels
from gossamer.kernels.vnm import group
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.models.stored import structure_of

#: Layers of a launch.
MOST = 3


class Together:
    """Layers of one launch, and what was computed for those that are yet to be called."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = tuple(layers)
        self.ready: tuple[Tensor, int | None, tuple[Tensor, ...]] | None = None  # an input, its version, all outputs
        for number, layer in enumerate(layers):
            layer.__dict__["_together"] = (self, number)

    def output(self, number: int, x: Tensor) -> Tensor | None:
        """Return what layer ``number`` gives for x; None if each layer is to compute for itself."""
        if kernels.needed(x, self.layers[number]._parameters.get("weight_values")):
            return None
        ready, version = self.ready, _version(x)
        if ready is None or ready[0] is not x or ready[1] != version:
            outputs = self._product(x)
            ready = self.ready = None if outputs is None else (x, version, outputs)
        if number == len(self.layers) - 1:
            self.ready = None  # nobody else asks: neither x nor the outputs are kept alive
        return None if ready is None else ready[2][number]

    def _product(self, x: Tensor) -> tuple[Tensor, ...] | None:
        weights: list[Tensor | None] = []
        rows = []
        for layer in self.layers:
            held = layer.__dict__.get("_sparse", {}).get("weight")
            if held is None or not _is_two_of_four(held.format) or x.dim() < 2 or x.shape[-1] != held.shape[1]:
                return None
            values = layer._parameters["weight_values"]
            if values is None or values.dtype is not x.dtype or kernels.needed(values):
                return None
            weights += [values, structure_of(layer, "weight", held).arrays["meta1"]]
            rows.append(held.shape[0])
        if not _on_gpu(x) or not 0 < x.numel() // x.shape[-1] <= _most_tokens(tuple(rows), x.get_device()):
            return None
        missing = MOST - len(rows)
        sizes = (*rows, *(0,) * missing, x.shape[-1])
        out: Tensor = torch.ops.gossamer.vnm_group.default(*weights, *(None,) * (2 * missing), x, *sizes)
        return out.split(rows, -1)


def _is_two_of_four(format: Any) -> bool:
    """Is it 2:4 with values of 16 bits or more?"""
    return isinstance(format, PackedVNM) and (format.v, format.m, format.bits) == ("all", 4, 16)


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _most_tokens(rows: tuple[int, ...], device: int) -> int:
    """Return up to how many tokens one launch is faster; 0 on a GPU without the kernel. A constant in traces."""
    new = gpu.capability(device) == (9, 0)
    return vnm_plan.most_of_some(sum(rows), gpu.processors(device)) if new else 0


_most_tokens._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _version(x: Tensor) -> int | None:
    """How often x was written to, where that is counted."""
    return None if torch.compiler.is_compiling() or x.is_inference() else x._version


def can_join(layer: Any) -> bool:
    """May a layer be one of several in a launch?

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> layer = gs.sparsify_(torch.nn.Linear(64, 128, bias=False), "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    >>> can_join(layer), can_join(torch.nn.Linear(64, 128))
    (True, False)
    """
    held = layer.__dict__.get("_sparse", {}).get("weight")
    if held is None or not _is_two_of_four(held.format) or getattr(layer, "_dense_class", None) is not nn.Linear:
        return False
    rows, cols = held.shape
    return layer.bias is None and rows % group.ROWS == 0 and cols % 64 == 0


def leave(layer: nn.Module) -> None:
    """Let a layer compute for itself again; the others of its launch then do, too."""
    layer.__dict__.pop("_together", None)
