"""What happens where no entry fits: compute on dense copies. Always right; said once, or an error if you like."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gossamer.core.tensor import SparseTensor

_POLICIES = ("warn", "error", "silent")
_STORED_DENSE = ("Dense", "Masked")  # their values are a dense tensor already: no copy, and nothing to say
_policy = "warn"
_told: set[tuple[str, tuple[str, ...]]] = set()
_watchers: list[list[tuple[str, tuple[str, ...]]]] = []


class FallbackWarning(UserWarning):
    """An operator had no function for the formats it was given, and ran on dense copies.

    Examples
    --------
    >>> import warnings, gossamer as gs
    >>> warnings.simplefilter("error", gs.FallbackWarning)
    """


class fallback(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Choose what a dense fallback does: ``"warn"`` (once for an operator and formats), ``"error"`` or ``"silent"``.

    Called, it sets the policy for the process; as a context manager it puts the old one back at the end.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.eye(3), gs.CSR())
    >>> with gs.fallback("error"):
    ...     torch.linalg.inv(t)
    Traceback (most recent call last):
        ...
    NotImplementedError: linalg_inv has no function for (CSR); allow the dense copy with gs.fallback("warn"), or ...
    """

    def __init__(self, policy: str) -> None:
        global _policy
        if policy not in _POLICIES:
            raise ValueError(f"fallback is one of {', '.join(_POLICIES)}, not {policy!r}")
        self._before, _policy = _policy, policy

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        global _policy
        _policy = self._before


@contextlib.contextmanager
def watch() -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """Collect operator and formats of every call that runs on dense copies, whatever the policy.

    Masked tensors are in the list too: their storage is a dense tensor, so torch computes on it, and nobody is warned.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> with gs.fallback("silent"), watch() as seen:
    ...     _ = torch.cumsum(gs.from_dense(torch.eye(2), gs.COO()), 0)
    >>> seen
    [('cumsum', ('COO',))]
    """
    seen: list[tuple[str, tuple[str, ...]]] = []
    _watchers.append(seen)
    try:
        yield seen
    finally:
        _watchers.remove(seen)


def announce(name: str, kinds: tuple[str, ...]) -> None:
    """Say that an operator is about to run on dense copies, as the policy wants it."""
    if torch.compiler.is_compiling():
        return
    for seen in _watchers:
        seen.append((name, kinds))
    if _policy == "silent" or all(kind in _STORED_DENSE for kind in kinds):
        return
    formats = ", ".join(kinds)
    if _policy == "error":
        raise NotImplementedError(
            f'{name} has no function for ({formats}); allow the dense copy with gs.fallback("warn"), or register one '
            f"with @gs.implements. gs.explain({name}, ...) lists what is there"
        )
    if (name, kinds) not in _told:
        _told.add((name, kinds))
        message = f"{name} has no function for ({formats}) and ran on a dense copy: right, but not sparse"
        warnings.warn(message, FallbackWarning, stacklevel=_outside())


Copies = list[tuple[SparseTensor, Tensor]]


def densify(tree: Any, copies: Copies | None = None) -> Any:
    """Return the arguments with every sparse tensor as a dense one; ``copies`` collects which became which."""

    def dense(value: Any) -> Any:
        if not isinstance(value, SparseTensor):
            return value
        copy = value.to_dense()
        if copies is not None:
            copies.append((value, copy))
        return copy

    return tree_map(dense, tree)


def sparse_leaves(tree: Any) -> Iterator[SparseTensor]:
    """Every sparse tensor in the arguments, in lists too."""
    if isinstance(tree, SparseTensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from sparse_leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from sparse_leaves(item)


def is_dense(value: Any) -> bool:
    """Is it an ordinary tensor?"""
    return isinstance(value, Tensor) and not isinstance(value, SparseTensor)


def _outside() -> int:
    """Return the stack level of the line that called torch: the first outside gossamer and torch."""
    homes = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(homes):
        frame, level = frame.f_back, level + 1
    return level
