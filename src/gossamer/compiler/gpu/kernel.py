"""Kernels: a program with a mapping to threads, compiled when it is first launched. One for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from gossamer.compiler.gpu.mapping import THREADS, Mapping
from gossamer.compiler.gpu.source import parameters, source
from gossamer.compiler.language.program import Program
from gossamer.compiler.loops.lower import Lowering
from gossamer.compiler.loops.nest import Nest
from gossamer.native.cuda import generated, usable

_KERNELS: dict[tuple[Program, Mapping, bool], Kernel] = {}
_GRID = 65535  # blocks along the second and third axis of a grid


class Kernel:
    """A loop nest for the GPU: ``loops`` and ``source`` print it, ``launch`` runs it."""

    def __init__(self, nest: Nest, mapping: Mapping, long: bool) -> None:
        self.nest, self.mapping, self.long = nest, mapping, long
        self._functions: dict[int, Any] = {}

    @property
    def loops(self) -> str:
        """The loop nest as text."""
        return str(self.nest)

    @cached_property
    def source(self) -> str:
        """The CUDA source."""
        return source(self.nest, self.mapping, self.long)

    def launch(self, device: int, grid: tuple[int, int, int], arguments: Sequence[int]) -> None:
        """Launch a grid of blocks on torch's current stream of a device."""
        run = self._functions.get(device)
        if run is None:
            run = generated(self.source, "nest", device, parameters(self.nest))
            self._functions[device] = run
        run(grid, THREADS, *arguments)


def kernel(program: Program, mapping: Mapping, long: bool) -> Kernel:
    """Return the kernel of a program; equal programs have one."""
    key = (program, mapping, long)
    found = _KERNELS.get(key)
    return found if found is not None else _KERNELS.setdefault(key, Kernel(Lowering(program).nest(), mapping, long))


def on_gpu(device: torch.device) -> bool:
    """Are there kernels for tensors on this device?

    Examples
    --------
    >>> import torch
    >>> on_gpu(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and usable()


def fits(grid: tuple[int, int, int]) -> bool:
    """Can a grid be this large?"""
    return grid[1] <= _GRID and grid[2] <= _GRID
