"""The folder of built code: only the user can write to it, and it does not grow without end.

Code from the cache runs in the user's process. So it is loaded only from folders and files that belong to the user (or
to root) and that nobody else can write to; what others could have changed is built again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import time
from pathlib import Path

KINDS = ("native", "kernels", "cuda")
_WRITTEN = (".so", ".cubin")
_ABANDONED = 3600.0  # seconds after which a build is not under way any more
NOEXEC = "the cache is on a file system that is mounted noexec: name another folder in $GOSSAMER_CACHE"
LIMIT = 1 << 28  # bytes of one kind of built code; what was not used for longest is removed first
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOG = logging.getLogger("gossamer")


class BuildError(RuntimeError):
    """The library could not be built; the message says why."""


def cache_dir() -> Path:
    """Return where built code is kept: ``$GOSSAMER_CACHE``, or ``gossamer`` in the user's cache folder."""
    if own := os.environ.get("GOSSAMER_CACHE"):
        return Path(own).expanduser()
    import platformdirs  # only programs that build or measure need it

    return platformdirs.user_cache_path("gossamer", appauthor=False)


def runs_code() -> bool:
    """May code from the cache run: is its file system not mounted noexec?

    Examples
    --------
    >>> runs_code()
    True
    """
    place = cache_dir().absolute()
    while not place.exists():
        place = place.parent
    return not os.statvfs(place).f_flag & os.ST_NOEXEC


def folder(kind: str) -> Path:
    """Return the folder of one kind of built code, after making it; BuildError if others could put code there.

    Examples
    --------
    >>> folder("kernels").name
    'kernels'
    """
    root = cache_dir()
    path = root / kind
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        for ancestor in root.resolve().parents:
            _refuse_shared(ancestor, stat.S_IWOTH)
        if not os.environ.get("GOSSAMER_CACHE"):
            _close(root)
        _refuse_shared(root, _OTHERS)
        _close(path)
        _refuse_shared(path, _OTHERS)
    except OSError as error:
        raise BuildError(f"can't write to {path}: {error}; name another folder in $GOSSAMER_CACHE") from error
    return path


def trusted(path: Path) -> bool:
    """Is this an ordinary file of the user's that nobody else can write to?"""
    try:
        found = path.lstat()
    except OSError:
        return False
    good = stat.S_ISREG(found.st_mode) and found.st_uid in _owners() and not found.st_mode & _OTHERS
    if not good:
        _LOG.warning("others could have changed this file, so it is not loaded: %s", path)
    return good


def used(path: Path) -> None:
    """Note that a file was used now. Its modification time does not change."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def trim(path: Path, suffix: str = ".so") -> None:
    """Remove what killed builds left, and the files that were not used for longest if a folder takes too many bytes."""
    _remove_leftovers(path)
    known = []
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    known.append((max(found.st_atime_ns, found.st_mtime_ns), found.st_size, entry.path))
    total = sum(size for _, size, _ in known)
    if total <= LIMIT:
        return
    for _, size, name in sorted(known)[:-1]:  # the newest is the one for which this was called
        if total <= LIMIT * 3 // 4:
            return
        with contextlib.suppress(OSError):
            os.remove(name)
            total -= size


def clear() -> tuple[int, int]:
    """Remove built code and what was measured; return how many files that were, and their bytes.

    Only what gossamer writes is removed: ``$GOSSAMER_CACHE`` may be a folder that holds other things.
    """
    root = cache_dir()
    files = [root / "pack.json"]
    for kind in KINDS:
        files += [path for path in (root / kind).rglob("*") if path.suffix in _WRITTEN or _is_leftover(path)]
    count = size = 0
    for path in files:
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
                continue
            bytes_ = path.lstat().st_size
            path.unlink()
            count, size = count + 1, size + bytes_
    return count, size


def _remove_leftovers(path: Path) -> None:
    """Remove what builds that were killed an hour ago or more have left."""
    now = time.time()
    with contextlib.suppress(OSError):
        for left in filter(_is_leftover, path.iterdir()):
            with contextlib.suppress(OSError):
                if now - left.lstat().st_mtime > _ABANDONED:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()


def _is_leftover(path: Path) -> bool:
    return path.name.startswith((".build-", ".cubin-"))


def _owners() -> set[int]:
    """Users whose files may be loaded; root can change anything anyway."""
    return {os.getuid(), 0}


def _close(path: Path) -> None:
    """Take the right to write from others, in a folder that is ours alone."""
    found = path.stat()
    if found.st_uid == os.getuid() and found.st_mode & _OTHERS:
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def _refuse_shared(path: Path, writers: int) -> None:
    """Raise BuildError if another user owns a folder, or could replace what is in it."""
    found = path.stat()
    if found.st_uid not in _owners():
        raise BuildError(f"{path} belongs to another user, who could put code there: {_ADVICE}")
    if found.st_mode & writers and not found.st_mode & stat.S_ISVTX:
        raise BuildError(f"other users can write to {path}, and could put code there: chmod go-w, or {_ADVICE}")


_ADVICE = "name a folder of your own in $GOSSAMER_CACHE"
