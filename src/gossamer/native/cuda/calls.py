"""What a call of an operator launches: kernels, the memory they need, and where each of their arguments comes from.

A :class:`Call` is made once for operands of a kind (types, sizes, strides) and then run for all of that kind, by Python
here, or without Python by ``launch.cpp``, which :func:`remember` registers it with.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.native import recipe
from gossamer.native.build import build, load_built
from gossamer.native.cache import BuildError
from gossamer.native.cuda.driver import Function, _offsets, places_of, primary_context, tensor_map

_HERE = Path(__file__).parent
_LOG = logging.getLogger("gossamer")
#: Of torch's types, the numbers that its C functions know them by.
_DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.float16: 5, torch.float32: 6, torch.bfloat16: 15, torch.float8_e4m3fn: 24,
}  # fmt: skip


class Buffer(NamedTuple):
    """Memory that a call makes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Address(NamedTuple):
    """Of tensor number ``of``, and ``plus`` bytes; 0 if there is no such tensor."""

    of: int
    plus: int = 0


class Box(NamedTuple):
    """How the copy engine finds boxes of tensor number ``of``: see :func:`~gossamer.native.cuda.driver.tensor_map`."""

    of: int
    width: int
    height: int
    line: int
    lines: int


Argument = int | float | bytes | Address | Box


class Launch(NamedTuple):
    """One kernel and its arguments."""

    run: Function
    grid: tuple[int, int, int]
    threads: int
    arguments: tuple[Argument, ...]


class Call(NamedTuple):
    """All that a call launches. Tensors are numbered: those given, then the buffers. The last buffer is the result."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    aligned: tuple[int, ...] = ()  # tensors that must lie at multiples of 16 bytes

    def fits(self, tensors: Sequence[Tensor | None]) -> bool:
        """Do the tensors that must be aligned lie at multiples of 16 bytes?"""
        return not any(tensor.data_ptr() & 15 for n in self.aligned if (tensor := tensors[n]) is not None)

    def __call__(self, *given: Tensor | None) -> Tensor:
        """Launch, and return the result."""
        return self.run(*given)[-1]

    def run(self, *given: Tensor | None) -> list[Tensor]:
        """Launch, and return all buffers."""
        like = next(tensor for tensor in given if tensor is not None)
        made = [
            torch.empty_strided(shape, strides, dtype=dtype, device=like.device)
            for shape, strides, dtype in self.buffers
        ]
        at = [0 if tensor is None else tensor.data_ptr() for tensor in (*given, *made)]
        for run, grid, threads, arguments in self.launches:
            run(grid, threads, *(_resolved(argument, at) for argument in arguments))
        return made


def _resolved(argument: Argument, at: list[int]) -> int | float | bytes:
    if isinstance(argument, Address):
        return at[argument.of] + argument.plus if at[argument.of] else 0
    if isinstance(argument, Box):
        return tensor_map(at[argument.of], *argument[1:])
    return argument


def words(call: Call, device: int) -> list[int]:
    """Return a call as integers, as ``plan.h`` reads it."""
    out = [primary_context(device).value or 0, sum(1 << n for n in call.aligned), len(call.buffers)]
    for shape, strides, dtype in call.buffers:
        out += [_DTYPES[dtype], len(shape), *shape, len(strides), *strides]
    out.append(len(call.launches))
    for launch in call.launches:
        out += _launch_words(launch)
    return out


def _launch_words(launch: Launch) -> list[int]:
    run, grid, threads, arguments = launch
    places, offsets = places_of(run.parameters), _offsets(run.parameters)
    addresses = [(place, *a) for a, place in zip(arguments, places, strict=True) if isinstance(a, Address)]
    boxes = [(place, *a) for a, place in zip(arguments, places, strict=True) if isinstance(a, Box)]
    known = (0 if isinstance(a, Address) else bytes(128) if isinstance(a, Box) else a for a in arguments)
    fixed = struct.pack(f"@{run.parameters}", *known)
    fixed += bytes(-len(fixed) % 8)
    held = struct.unpack(f"{len(fixed) // 8}q", fixed)
    head = [run.handle, *grid, threads, run.shared, int(run.chained), len(offsets), *offsets]
    out = [*head, len(held), *held]
    for table in (addresses, boxes):
        out += [len(table), *(n for row in table for n in row)]
    return out


# -- the library that launches without Python


@lru_cache(maxsize=1)
def library() -> Any:
    """Return the library of ``launch.cpp``, which makes itself the implementation of its operators; None without."""
    if torch.version.cuda is None:
        return None
    try:
        ctypes.CDLL("libcuda.so.1")
        headers = [_HERE / "driver.h", _HERE / "plan.h", *recipe.headers()]
        path = build("gossamer_cuda", {"launch": (_HERE / "launch.cpp", [])}, headers, stub="libtorch_cpu.so")
        return load_built(path)
    except (BuildError, OSError) as error:
        _LOG.info("gossamer launches its GPU kernels from Python: %s", error)
        return None


def remember(call: Call, device: int) -> None:
    """Let calls of the kind that is under way in this thread go without Python from now on."""
    if (lib := library()) is not None:
        held = words(call, device)
        lib.gossamer_remember((ctypes.c_int64 * len(held))(*held))


def refuse(why: str) -> bool:
    """Say why the call under way in this thread can't be made, where the library called it; return whether it did."""
    if (lib := library()) is None:
        return False
    lib.gossamer_refuse(why.encode())
    return True
