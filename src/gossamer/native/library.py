"""The CPU kernels: from the wheel or compiled here, loaded into torch; and the reason if that is not possible.

The library of a wheel is used if it was built from exactly the installed sources: not after an edit, and not in an
editable install, which has no library. Otherwise the same sources are compiled at first use
(:mod:`gossamer.native.build`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from gossamer.native import recipe
from gossamer.native.build import build, load_built
from gossamer.native.cache import BuildError

_LOG = logging.getLogger("gossamer")


@lru_cache(maxsize=1)
def _library() -> tuple[Path | None, str]:
    if os.environ.get("GOSSAMER_NATIVE", "1") == "0":
        return None, "GOSSAMER_NATIVE=0"
    import torch

    if (path := recipe.installed()) is not None:
        try:
            torch.ops.load_library(path)
            return path, ""
        except OSError as error:  # another libc, say: the compiler here may do better
            _LOG.info("the kernels of the wheel don't load: %s", error)
    try:
        path = build("gossamer_cpu", recipe.units(platform.machine()), recipe.headers(), stub="libtorch_cpu.so")
        load_built(path)  # which registers the operators with torch
    except (BuildError, OSError) as error:
        _LOG.warning("gossamer can't load its CPU kernels, and uses torch's slower operators: %s", error)
        return None, str(error)
    return path, ""


def load() -> bool:
    """Load the kernels into torch, building them first if needed; return whether they are there. One warning if not.

    Examples
    --------
    >>> load() == (why_not() == "")
    True
    """
    return _library()[0] is not None


load._dynamo_marked_constant = True  # type: ignore[attr-defined]  # a trace takes the answer as a constant


def loaded() -> bool | None:
    """Return whether the kernels are there, or None if nobody has asked for them yet. Nothing is built or loaded.

    Examples
    --------
    >>> loaded() in (True, False, None)
    True
    """
    return _library()[0] is not None if _library.cache_info().currsize else None


loaded._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_not() -> str:
    """Return why there are no kernels; empty if there are."""
    return _library()[1]


def path() -> Path | None:
    """Return the library that is loaded: in the package if it came with the wheel, else in the cache; None without.

    Examples
    --------
    >>> (path() is not None) == load()
    True
    """
    return _library()[0]


def isa() -> str | None:
    """Return the instruction set that the kernels use here: avx512, avx2 or baseline; None without kernels.

    ``$GOSSAMER_ISA`` chooses an older one than the best.
    """
    return _name_by("gossamer_isa")


def int8_isa() -> str | None:
    """Return that of the int8 kernels: amx, avx512vbmi, avx512vnni, avxvnni, avx2 or baseline; None without kernels.

    ``$GOSSAMER_ISA`` chooses an older one than the best here too.

    Examples
    --------
    >>> (int8_isa() is None) == (isa() is None)
    True
    """
    return _name_by("gossamer_int8_isa")


def tiles_isa() -> str | None:
    """Return that of the kernels of packed tiles: amx, avx512 (with bfloat16) or baseline; None without kernels.

    ``$GOSSAMER_ISA`` chooses an older one than the best here too.

    Examples
    --------
    >>> (tiles_isa() is None) == (isa() is None)
    True
    """
    return _name_by("gossamer_tiles_isa")


def forget(number: int) -> None:
    """Let the kernels forget rows that were registered with them (``rows_register``)."""
    _forget()(number)


@lru_cache(maxsize=1)
def _forget() -> Callable[[int], None]:
    function = ctypes.CDLL(str(_library()[0])).gossamer_forget
    function.argtypes, function.restype = [ctypes.c_int64], None
    return function


@lru_cache(maxsize=3)
def _name_by(function: str) -> str | None:
    library = _library()[0]
    if library is None:
        return None
    named = getattr(ctypes.CDLL(str(library)), function)
    named.restype = ctypes.c_char_p
    return str(named().decode())
