"""From C to a function: built by the machine's own compiler, kept on disk, loaded once.

An entry of the cache is a shared library with a digest at its end. It is made in a folder of its own and renamed into
place, so several processes may build at once and a killed build leaves no broken library; one that
is not whole is built again. The name holds everything that the code depends on: source, flags, processor, compiler.
A machine without a compiler uses what any compiler has built for its processor.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from gossamer.native import BuildError, cache, compiler, sealed
from gossamer.native.build import NO_COMPILER, compiler_key, find

FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-shared", "-w", "-fno-math-errno", "-ffp-contract=fast",
    "-fno-semantic-interposition", "-fwrapv",
)  # fmt: skip
#: The first turns the loop over columns into gathers, two to three times slower. The second moves conditions out of
#: loops, and gcc 12 then writes wrong code for AVX-512 (0 / 2 was NaN). clang knows neither.
GCC_ONLY = ("-fno-loop-unroll-and-jam", "-fno-unswitch-loops")
#: What ``$GOSSAMER_ISA`` asks for, as for the CPU kernels: older instructions than the machine has.
_OLDER = {"avx2": ("-march=haswell",), "baseline": ("-march=x86-64",)}
_LOG = logging.getLogger("gossamer")


@lru_cache(maxsize=1)
def processor() -> str:
    """Return what distinguishes this kind of processor: code for one may not run on another."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features", "model name"))]
    return " ".join([platform.machine(), *dict.fromkeys(lines)])


def march() -> tuple[str, ...]:
    """Return the flag that names the processor to build for: this one, unless ``$GOSSAMER_ISA`` names an older one.

    Examples
    --------
    >>> march()[0].startswith("-march=")
    True
    """
    if os.environ.get("GOSSAMER_SANITIZE"):  # for tests: every address is checked when it is used
        return ("-march=native", "-O1", "-g", f"-fsanitize={os.environ['GOSSAMER_SANITIZE']}")
    asked = os.environ.get("GOSSAMER_ISA", "")
    return _OLDER.get(asked, ("-march=native",)) if platform.machine() in ("x86_64", "AMD64") else ("-march=native",)


@lru_cache(maxsize=1)
def available() -> bool:
    """Is there a compiler to build kernels with, or a cache of them? (Asked once: it takes longer than many a kernel.)

    Examples
    --------
    >>> available() or available() is False
    True
    """
    if os.environ.get("GOSSAMER_NATIVE", "1") == "0" or not cache.runs_code():
        return False
    return compiler() is not None or any((cache.cache_dir() / "kernels").glob("*.so"))


def library(source: str) -> ctypes.CDLL:
    """Return the loaded library of a source, built first if it is in no cache.

    Examples
    --------
    >>> library("int twice(int x) { return 2 * x; }").twice(21)  # doctest: +SKIP
    42
    """
    if os.environ.get("GOSSAMER_NATIVE", "1") == "0":
        raise BuildError("GOSSAMER_NATIVE=0")
    command = compiler()
    if not available():
        raise BuildError(NO_COMPILER if cache.runs_code() else cache.NOEXEC)
    parts = [source, processor(), *FLAGS, *GCC_ONLY, *march()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    folder = cache.folder("kernels")
    path = find(folder, key[:32], command)
    loaded = None if path is None else sealed.load(path, key)
    if path is None or loaded is None:
        if command is None:
            raise BuildError(NO_COMPILER)
        path = folder / f"{key[:32]}-{compiler_key(command)}.so"
        _build(command, source, path, key)
        loaded = sealed.load(path, key)
        if loaded is None:
            raise BuildError(f"{path} was damaged or removed after it was built")
    cache.used(path)
    return loaded


def _build(command: list[str], source: str, path: Path, key: str) -> None:
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as work:
            made = Path(work) / "kernel.so"
            (Path(work) / "kernel.c").write_text(source)
            _compile(command, Path(work) / "kernel.c", made)
            sealed.seal(made, key)
            made.chmod(0o700)
            os.replace(made, path)
        cache.trim(path.parent)
    except OSError as error:
        raise BuildError(f"can't write to {path.parent}: {error}; name another folder in $GOSSAMER_CACHE") from error
    _LOG.debug("built a kernel in %.0f ms: %s", 1e3 * (time.perf_counter() - started), path)


def _compile(command: list[str], source: Path, made: Path) -> None:
    base = [*command, "-x", "c", *FLAGS, str(source), "-o", str(made)]
    answer = None
    for more in ((*march(), *GCC_ONLY), march(), ()):
        answer = subprocess.run([*base, *more], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return
    assert answer is not None
    raise BuildError(f"{' '.join(base)} failed:\n{answer.stderr[-4000:]}")


@lru_cache(maxsize=1)
def pool() -> int:
    """Return the address of torch's parallel_for, through which kernels use torch's own threads; 0 without one."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        with contextlib.suppress(OSError, AttributeError):
            handle = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return ctypes.cast(handle.torch_parallel_for, ctypes.c_void_p).value or 0
    return 0


_SIGNATURE = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, *(ctypes.c_void_p,) * 4]


def call(handle: ctypes.CDLL, name: str) -> Any:
    """Return the function of a nest that takes all of its arguments as one array of bytes: in a third of the time."""
    found = getattr(handle, f"call_{name}")
    found.argtypes, found.restype = [ctypes.c_void_p], ctypes.c_long
    return found


def function(handle: ctypes.CDLL, name: str) -> Any:
    """Return the function of a nest in a loaded library, ready to be called."""
    found = getattr(handle, f"run_{name}")
    found.argtypes, found.restype = _SIGNATURE, ctypes.c_long
    return found
