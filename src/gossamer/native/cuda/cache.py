"""Machine code on disk: a file for each source, macros, architecture and compiler, complete or not there."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gossamer.native import cache
from gossamer.native.cuda.compiler import compiler

#: Where the kernels' sources are.
SOURCES = Path(__file__).parent

_DIGEST = 32  # bytes of SHA-256 before the code: a file cut short, or changed, is known for it


def cubin(
    source: str, arch: str, macros: Mapping[str, object], *, folder: Path = SOURCES, text: str | None = None
) -> bytes:
    """Return the machine code of ``folder/source`` for an architecture, from the cache if it is there.

    Parameters
    ----------
    source
        Name of the file, such as ``"vnm_any.cu"``.
    arch
        Such as ``"sm_90a"``.
    macros
        Name and value of each macro.
    folder
        Of the source and of what it includes.
    text
        The source itself, if it is not a file; ``source`` is then a name for it.
    """
    text = (folder / source).read_text() if text is None else text
    flags = [f"-D{name}={value}" for name, value in sorted(macros.items())]
    made = compiler()
    name = f"{Path(source).stem}-{_key(made.version, arch, flags, text, folder)}.cubin"
    try:
        file = cache.folder("cuda") / name
    except cache.BuildError:  # a folder that can't be written, or that others can write to: only slower
        return made.compile(text, source, arch, flags, folder)
    code = _read(file)
    if code is None:
        code = made.compile(text, source, arch, flags, folder)
        _write(file, code)
    return code


def _key(version: str, arch: str, flags: list[str], text: str, folder: Path) -> str:
    digest = hashlib.sha256(repr((version, arch, flags, text)).encode())
    for header in sorted(folder.glob("*.cuh")):
        digest.update(header.name.encode() + header.read_bytes())
    return digest.hexdigest()[:24]


def _read(file: Path) -> bytes | None:
    if not file.exists() or not cache.trusted(file):
        return None
    try:
        held = file.read_bytes()
    except OSError:
        return None
    digest, code = held[:_DIGEST], held[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(file: Path, code: bytes) -> None:
    """Rename a finished file into place; a cache that can't be written is only slower."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".cubin-", delete=False) as part:
            part.write(hashlib.sha256(code).digest() + code)
        os.replace(part.name, file)
        cache.trim(file.parent, ".cubin")
    except OSError:
        pass
