"""Sources and flags of the CPU kernels: ``cpu/recipe.json``. Builds at first use read it here; CMake reads it too."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE / "cpu"


@lru_cache(maxsize=1)
def _recipe() -> dict[str, Any]:
    return json.loads((SOURCES / "recipe.json").read_text())


def flags() -> tuple[str, ...]:
    """Return the compiler's flags that all native code is built with.

    Examples
    --------
    >>> flags()[:2]
    ('-std=c++17', '-O3')
    """
    return tuple(_recipe()["flags"])


def units(machine: str) -> dict[str, tuple[Path, list[str]]]:
    """Return the object files of the library for a kind of processor: some for each instruction set, some for all.

    Examples
    --------
    >>> [name for name in sorted(units("x86_64")) if "avx" in name]
    ['avx2', 'avx512', 'int8_avx2', 'int8_avx512vbmi', 'int8_avx512vnni', 'int8_avxvnni', 'tiles_avx512']
    >>> sorted(units("aarch64"))
    ['baseline', 'binding', 'binding_attention', 'binding_blocks', 'binding_conv', 'binding_int8', ...]
    """
    return {
        name: (SOURCES / unit["source"], list(unit["flags"]))
        for name, unit in _recipe()["units"].items()
        if unit.get("machine", machine) == machine
    }


def headers() -> list[Path]:
    """Return what the sources include."""
    return sorted(SOURCES.glob("*.h"))


def digest() -> str:
    """Return what says whether a library was built of these very sources; CMakeLists.txt computes the same."""
    files = sorted((p for p in SOURCES.iterdir() if p.suffix in (".cpp", ".h", ".json")), key=lambda p: p.name)
    lines = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def installed() -> Path | None:
    """Return the library that came with the wheel; None if there is none, or if it is of other sources."""
    path = HERE / f"gossamer_cpu-{digest()}.so"
    return path if path.exists() else None
