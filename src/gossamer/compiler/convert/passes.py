"""Nests that run on tensors: in C, or as the interpreter of nests runs them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.emit import routines
from gossamer.compiler.loops.machine import Machine
from gossamer.compiler.loops.nest import Nest
from gossamer.compiler.run import runtime

#: How the interpreter sees the memory that C sees as these types.
_SEEN = {
    "float": torch.float32, "double": torch.float64, "char": torch.int8, "signed char": torch.int8,
    "unsigned char": torch.uint8, "short": torch.int16, "unsigned short": torch.int16, "int": torch.int32,
    "unsigned int": torch.int32, "long": torch.int64, "unsigned long": torch.int64,
}  # fmt: skip


class Passes:
    """Nests that are built together, and run on tensors and integers by their names.

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler.loops.nest import ZERO, For, Load, Num, Store, Var
    >>> from gossamer.compiler.loops.uses import routine
    >>> copy = [For("i", ZERO, Var("n"), [Store("to", Var("i"), Load("from", Var("i")))])]
    >>> passes = Passes({"copy": routine("copy", copy, {"from": "int", "to": "int"})})
    >>> to = torch.zeros(3, dtype=torch.int32)
    >>> _ = passes.interpret("copy", {"from": torch.tensor([5, 7, 9], dtype=torch.int32), "to": to}, {"n": 2})
    >>> to.tolist()
    [5, 7, 0]
    """

    def __init__(self, nests: Mapping[str, Nest]) -> None:
        self.nests = nests

    @functools.cached_property
    def _functions(self) -> dict[str, Any]:
        library = runtime.library(routines.source(self.nests))
        found = {name: getattr(library, name) for name in self.nests}
        for function in found.values():
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
        return found

    def run(self, name: str, arrays: Mapping[str, Tensor | None], sizes: Mapping[str, int]) -> int:
        """Run a nest in C; return its result. Arrays that are None are not touched."""
        nest, function = self.nests[name], self._functions[name]
        held = [None if (t := arrays[array]) is None else t.data_ptr() for array, _ in nest.arrays]
        pointers = (ctypes.c_void_p * len(held))(*held)
        integers = (ctypes.c_long * len(nest.sizes))(*(sizes[size] for size in nest.sizes))
        result: int = function(pointers, integers)
        if result < 0:
            raise MemoryError(f"no memory for a workspace of {name}")
        return result

    def interpret(self, name: str, arrays: Mapping[str, Tensor | None], sizes: Mapping[str, int]) -> int:
        """Run a nest by the interpreter, with the same result."""
        nest = self.nests[name]
        views = {array: _seen(t, ctype) for array, ctype in nest.arrays if (t := arrays[array]) is not None}
        machine = Machine({array: view.tolist() for array, view in views.items()}, sizes)
        after = machine.run(nest)
        for array, view in views.items():
            view.copy_(torch.tensor(after[array], dtype=view.dtype))
        return int(machine.names[nest.result]) if nest.result else 0


def _seen(tensor: Tensor, ctype: str) -> Tensor:
    flat = tensor.view(-1)
    return flat if ctype == "value16" else flat.view(_SEEN[ctype])
