"""Libraries with a digest at their end: a damaged one is noticed before it is loaded, and what was checked is loaded.

A truncated or changed library does not raise an error when it is loaded: its code runs, or a signal ends the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import logging
import os
from pathlib import Path

from gossamer.native import cache
from gossamer.native.cache import BuildError

_DIGEST = 32
_LOG = logging.getLogger("gossamer")
_LOADS = itertools.count(1)


def seal(path: Path, key: str) -> None:
    """Append the digest of a finished library; the loader does not look at what follows its last section.

    Examples
    --------
    >>> path = Path("library.so")
    >>> _ = path.write_bytes(b"code")
    >>> seal(path, "of these sources")
    >>> whole(path, "of these sources"), whole(path, "of others")
    (True, False)
    """
    data = path.read_bytes()
    with path.open("ab") as file:
        file.write(_digest(data, key))


def whole(path: Path, key: str) -> bool:
    """Is the library there, and as it was sealed?"""
    try:
        with path.open("rb") as file:
            return _is_whole(file.read(), key, path)
    except OSError:
        return False


def load(path: Path, key: str) -> ctypes.CDLL | None:
    """Load a library; None if it is damaged, BuildError if the system doesn't load it.

    The file is opened once: its bytes are checked, and the same file is loaded, whatever has its name by then.
    """
    try:
        with path.open("rb") as file:
            return _loaded(path, file.fileno()) if _is_whole(file.read(), key, path) else None
    except FileNotFoundError:
        return None


def _loaded(path: Path, descriptor: int) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_name_of(descriptor, path))
    except OSError as error:
        why = str(error).rpartition(": ")[2] if cache.runs_code() else cache.NOEXEC
        raise BuildError(f"{path} can't be loaded: {why}") from error


def _name_of(descriptor: int, path: Path) -> str:
    """Return a name by which the loader finds an open file.

    The loader takes a name that it has seen for the library that had it then. Numbers of closed files are used again,
    so each load spells the name in another way: the number of the load in binary, its digits "/." and "//".
    """
    if not os.path.exists(f"/proc/self/fd/{descriptor}"):
        return str(path)
    spelling = "".join("/." if digit == "1" else "//" for digit in f"{next(_LOADS):b}")
    return f"/proc/self/fd{spelling}/{descriptor}"


def _is_whole(data: bytes, key: str, path: Path) -> bool:
    good = data[-_DIGEST:] == _digest(data[:-_DIGEST], key)
    if not good:
        _LOG.warning("a cached library is damaged and will be built again: %s", path)
    return good


def _digest(data: bytes, key: str) -> bytes:
    digest = hashlib.blake2b(data, digest_size=_DIGEST)
    digest.update(key.encode())
    return digest.digest()
