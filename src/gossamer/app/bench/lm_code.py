"""A text that does not run out: the Python sources of packages that are installed wherever gossamer is benchmarked.

A Bible has 4 MB, so that 1,500 steps of 64 x 256 bytes read it six times, and large nets overfit. These sources have
about 125 MB. Validation is on packages that are not trained on: pieces of files would have near copies in training.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TRAINED = ("torch", "transformers", "sympy")
REPORTED = ("numpy",)
CHOSEN_BY = ("networkx",)
_LARGEST = 200_000  # bytes of a file; larger ones are tables
_PIECE = 4096
_HELD = 256  # pieces of validation


def sources(package: str) -> Iterator[Path]:
    """Yield the Python files of an installed package, in sorted order, without tables.

    Examples
    --------
    >>> next(sources("numpy")).name
    '__config__.py'
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(
            f'the text "code" has the sources of {package}, which is not installed: pip install {package}'
        )
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
        if path.stat().st_size <= _LARGEST:
            yield path


def read(packages: Sequence[str]) -> bytes:
    """Return the sources of packages, one after the other."""
    return b"\n".join(path.read_bytes() for package in packages for path in sources(package))


def as_bytes(text: bytes) -> Tensor:
    """Return a text as a tensor of bytes."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def pieces(text: Tensor, count: int = _HELD) -> Tensor:
    """Return evenly spaced pieces of 4,096 bytes; all of a text that has no more of them.

    Examples
    --------
    >>> pieces(torch.arange(5 * 4096), count=2)[::4096].tolist()
    [0, 8192]
    """
    every = max(len(text) // _PIECE // count, 1)
    whole = text[: len(text) // _PIECE * _PIECE].view(-1, _PIECE)
    return whole[::every][:count].flatten()


def described() -> dict[str, Any]:
    """Return what the text consists of: versions, bytes and a digest, for the results."""
    every = (*TRAINED, *REPORTED, *CHOSEN_BY)
    found = {package: read([package]) for package in every}
    digest = hashlib.sha256(b"".join(found.values())).hexdigest()
    versions = {package: importlib.metadata.version(package) for package in every}
    return {"digest": digest, "versions": versions, "bytes": {package: len(text) for package, text in found.items()}}
