"""The CPU kernels: build them if need be, load them into torch, and say why when that is not possible."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from functools import lru_cache
from pathlib import Path

from gossamer.native.build import BuildError, build

_HERE = Path(__file__).parent / "cpu"
_LOG = logging.getLogger("gossamer")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")


def units(machine: str) -> dict[str, tuple[Path, list[str]]]:
    """Return the object files of the library for a kind of processor: one for each instruction set, two for all.

    Examples
    --------
    >>> sorted(units("x86_64"))
    ['avx2', 'avx512', 'baseline', 'binding', 'dispatch']
    >>> sorted(units("aarch64"))
    ['baseline', 'binding', 'dispatch']
    """
    kernels = _HERE / "kernels.cpp"
    made = {
        "baseline": (kernels, ["-DISA=baseline", "-DWIDTH=4"]),
        "dispatch": (_HERE / "dispatch.cpp", []),
        "binding": (_HERE / "binding.cpp", []),
    }
    if machine in ("x86_64", "AMD64"):
        made["avx2"] = (kernels, ["-DISA=avx2", "-DWIDTH=8", "-mavx2", "-mfma"])
        made["avx512"] = (kernels, ["-DISA=avx512", "-DWIDTH=16", "-mavx2", "-mfma", *_AVX512])
    return made


@lru_cache(maxsize=1)
def _library() -> tuple[Path | None, str]:
    if os.environ.get("GOSSAMER_NATIVE", "1") == "0":
        return None, "GOSSAMER_NATIVE=0"
    import torch

    try:
        path = build("gossamer_cpu", units(platform.machine()), sorted(_HERE.glob("*.h")), stub="libtorch_cpu.so")
        torch.ops.load_library(path)
    except (BuildError, OSError) as error:
        _LOG.warning("gossamer runs without its own CPU kernels, on torch's slower ones: %s", error)
        return None, str(error)
    return path, ""


def load() -> bool:
    """Load the kernels into torch, building them first if need be; return whether they are there. Said once if not.

    Examples
    --------
    >>> load() == (why_not() == "")
    True
    """
    return _library()[0] is not None


def why_not() -> str:
    """Return why there are no kernels; empty if there are."""
    return _library()[1]


def isa() -> str | None:
    """Return the instruction set that the kernels use here: avx512, avx2 or baseline; None without kernels.

    ``$GOSSAMER_ISA`` chooses an older one than the best.
    """
    path = _library()[0]
    if path is None:
        return None
    function = ctypes.CDLL(str(path)).gossamer_isa
    function.restype = ctypes.c_char_p
    return str(function().decode())
