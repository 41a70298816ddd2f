"""Products of the CPU kernels as functions of CPython, which skip torch's dispatcher: a microsecond less for each call.

A function answers None where only the operator will do: in a trace, under a mode of torch or a profiler, for tensor
subclasses, for arguments that don't fit. See ``cpu/binding_python.cpp``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from gossamer.native.library import load, path

#: The functions, in the order of their numbers.
NAMES = ("rows", "int8", "layer")
#: Wraps a tensor of C++ for Python; every extension of torch calls it.
WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"


@lru_cache(maxsize=3)
def direct(name: str) -> Callable[..., Any]:
    """Return a function by its name.

    - ``rows(values, x, bias, number, rows, activation)``: the operator ``rows_registered``,
    - ``int8(weight, x, bias, rows, activation)``: the operator ``int8_linear``,
    - ``layer(parameters, buffers, x, known)``: ``rows`` of a layer whose parameters and buffers are those of ``known``,
      a tuple of values, bias, ((name, array, its version) ...), number and rows.

    Where it can't be had, the function that is returned always answers None. ``GOSSAMER_DIRECT=0`` asks for that.

    Examples
    --------
    >>> direct("int8")(1, 2, 3) is None
    True
    """
    found = _found(NAMES.index(name)) if os.environ.get("GOSSAMER_DIRECT", "1") != "0" and load() else None
    return _nothing if found is None else found


def _nothing(*arguments: Any) -> None:
    """Answer None: call the operator."""


def _found(number: int) -> Callable[..., Any] | None:
    import torch

    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    core: Any = torch._C
    active = (
        core._len_torch_dispatch_stack, core._len_torch_function_stack, core._are_functorch_transforms_active,
        core._get_tracing_state, core._autograd._profiler_enabled, core._is_any_autocast_enabled,
    )  # fmt: skip
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        torch_python = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_python.so"))
        wrap = ctypes.cast(getattr(torch_python, WRAP), ctypes.c_void_p)
        function = ctypes.PyDLL(str(path())).gossamer_direct
    except (OSError, AttributeError):
        return None
    if table is None:
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_int32, ctypes.py_object, ctypes.c_void_p, *(ctypes.py_object,) * 5]
    made = function(number, table, wrap, None, torch.Tensor, torch.nn.Parameter, torch.Tensor.is_neg, active)
    return None if made is None else ctypes.cast(made, ctypes.py_object).value
