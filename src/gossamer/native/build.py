"""Compile C++ sources into a shared library, once for each source, compiler and processor family.

A wheel brings the CPU kernels along (CMakeLists.txt). Everything else is compiled here, at first use: an editable
install then needs no compiler, never fails without one, and rebuilds when a source changes; the library is built by
the compiler of the machine that runs it, in a few seconds. A finished library is renamed into place, so two processes
that build at the same time both end with a whole one. It has a digest at its end (:mod:`gossamer.native.sealed`): one
that is damaged is built again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gossamer.native import cache, recipe, sealed
from gossamer.native.cache import BuildError

COMMON = recipe.flags()
NO_COMPILER = "no C++ compiler: install one (Debian: apt-get install g++), or name it in $CXX"


def compiler() -> list[str] | None:
    """Return the C++ compiler as the start of a command: ``$CXX``, or the first of c++, g++ and clang++; or None."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        try:
            words = shlex.split(name)
        except ValueError:  # a quotation without end
            continue
        if words and (path := shutil.which(words[0])):
            return [path, *words[1:]]
    return None


def build(
    name: str,
    units: Mapping[str, tuple[Path, Sequence[str]]],
    headers: Sequence[Path],
    *,
    stub: str | None = None,
    flags: Sequence[str] = (),
) -> Path:
    """Build a shared library and return its path; a library built before from the same sources is used again.

    Parameters
    ----------
    name
        Of the library.
    units
        For each object file its source and the flags of its own.
    headers
        What the sources include: part of what decides whether a built library is still good.
    stub
        SONAME of a library that will be in the process already (``libtorch_cpu.so``); it is linked as an empty stub, so
        that nothing of it is needed here.
    flags
        More flags for all units and the link.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> source = Path(tempfile.mkdtemp()) / "two.cpp"
    >>> _ = source.write_text('extern "C" int two() { return 2; }')
    >>> build("two", {"two": (source, [])}, []).name  # doctest: +SKIP
    'two-3f0c1a9b5e7d2468-9c41d20b.so'
    """
    if not cache.runs_code():
        raise BuildError(cache.NOEXEC)
    command = compiler()
    folder = cache.folder("native")
    key = _key(units, headers, stub, flags)
    if (built := find(folder, f"{name}-{key}", command)) is not None and sealed.whole(built, built.name):
        return built
    if command is None:
        raise BuildError(NO_COMPILER)
    target = folder / f"{name}-{key}-{compiler_key(command)}.so"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
            made = _compile(command, units, Path(work), stub, [*COMMON, *flags])
            sealed.seal(made, target.name)
            made.chmod(0o700)
            os.replace(made, target)
        cache.trim(folder)
    except OSError as error:
        raise BuildError(f"can't write to {folder}: {error}; name another folder in $GOSSAMER_CACHE") from error
    return target


def load_built(path: Path) -> ctypes.CDLL:
    """Load a library that :func:`build` returned; BuildError if it was damaged since."""
    handle = sealed.load(path, path.name)
    if handle is None:
        raise BuildError(f"{path} was damaged after it was built: remove it, and start again")
    return handle


def find(folder: Path, stem: str, command: list[str] | None) -> Path | None:
    """Return a library that was built before by this compiler, or by any if there is none here; None if there is none.

    Libraries are called ``stem-compiler.so``.
    """
    if command is not None:
        found = [folder / f"{stem}-{compiler_key(command)}.so"]
    else:
        found = sorted(folder.glob(f"{stem}-*.so"))
    return next((path for path in found if path.exists() and cache.trusted(path)), None)


def compiler_key(command: list[str]) -> str:
    """Return what distinguishes the libraries of one compiler from those of others."""
    return hashlib.sha256(version(command).encode()).hexdigest()[:8]


def _key(units: Mapping[str, tuple[Path, Sequence[str]]], headers: Sequence[Path], *more: object) -> str:
    digest = hashlib.sha256(repr((COMMON, platform.machine(), "sealed", more)).encode())
    for name, (path, own) in sorted(units.items()):
        digest.update(repr((name, tuple(own))).encode() + path.read_bytes())
    for path in sorted(headers):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def version(command: list[str]) -> str:
    """Return the compiler and its size and time: cheaper than asking for its version, and changes when it does."""
    real = Path(command[0]).resolve()
    return f"{real} {real.stat().st_size} {real.stat().st_mtime_ns} {command[1:]}"


def _compile(
    command: list[str], units: Mapping[str, tuple[Path, Sequence[str]]], work: Path, stub: str | None, flags: list[str]
) -> Path:
    def one(item: tuple[str, tuple[Path, Sequence[str]]]) -> Path:
        name, (source, own) = item
        _run([*command, *flags, *own, "-c", str(source), "-o", str(work / f"{name}.o")])
        return work / f"{name}.o"

    with ThreadPoolExecutor() as pool:
        objects = [str(path) for path in pool.map(one, units.items())]
    link: list[str] = []
    if stub is not None:
        (work / "empty.cpp").write_text("")
        _run([*command, "-shared", "-fPIC", f"-Wl,-soname,{stub}", str(work / "empty.cpp"), "-o", str(work / stub)])
        link = ["-Wl,--no-as-needed", str(work / stub)]
    _run([*command, "-shared", *flags, *objects, *link, "-o", str(work / "library.so")])
    return work / "library.so"


def _run(command: list[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{answer.stderr[-4000:]}")
