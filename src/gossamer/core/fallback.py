"""The dense fallback: what runs where no entry of the table takes a call, and who is told.

Torch computes the call on dense copies, which is right for every operator. One warning gives the reason of
the decision; :class:`fallback` turns it into an error, or off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gossamer.core.decide import Decision
from gossamer.core.opaque import Opaque
from gossamer.core.table import name_of
from gossamer.core.tensor import SparseTensor

_POLICIES = ("warn", "error", "silent")
_policy = "warn"
_told: set[tuple[str, tuple[str, ...], str]] = set()


class FallbackWarning(UserWarning):
    """No function of the table took a call, and torch computed it on dense copies.

    Examples
    --------
    >>> import warnings, gossamer as gs
    >>> warnings.simplefilter("error", gs.FallbackWarning)
    """


class fallback(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Choose what a dense fallback does: ``"warn"``, ``"error"`` or ``"silent"``.

    A warning comes once for an operator, formats and reason.
    Called, it sets the policy for the process; as a context manager it restores the old one at the end.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.eye(3), gs.CSR())
    >>> with gs.fallback("error"):
    ...     torch.linalg.inv(t)
    Traceback (most recent call last):
        ...
    NotImplementedError: linalg_inv(CSR) needs a dense copy: no entry of the table takes these formats. Allow ...
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


class Ran(NamedTuple):
    """A call that ran: what :func:`watch` collects."""

    operator: str
    formats: tuple[str, ...]
    how: str  # as in gs.explain
    function: str


_watchers: list[list[Ran]] = []


@contextlib.contextmanager
def watch() -> Iterator[list[Ran]]:
    """Collect the calls that compute with a sparse tensor, in the order in which they start; calls inside calls too.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> with gs.fallback("silent"), watch() as seen:
    ...     _ = torch.cumsum(gs.from_dense(torch.eye(2), gs.COO()), 0)
    >>> [(ran.operator, ran.formats, ran.how) for ran in seen]
    [('cumsum', ('COO',), 'fallback')]
    """
    seen: list[Ran] = []
    _watchers.append(seen)
    try:
        yield seen
    finally:
        _watchers[:] = [other for other in _watchers if other is not seen]


def note(decision: Decision) -> None:
    """Tell those who watch that a decision is about to run."""
    for seen in _watchers:
        seen.append(Ran(decision.name, decision.formats, decision.how, name_of(decision.function)))


def announce(decision: Decision) -> None:
    """Warn, or raise, before a call runs on dense copies, as the policy says."""
    if _policy == "silent" or decision.quiet or torch.compiler.is_compiling():
        return
    formats, reason = decision.formats, decision.reason
    call = f"{decision.name}({', '.join(formats)})"
    if _policy == "error":
        raise NotImplementedError(
            f'{call} needs a dense copy: {reason}. Allow it with gs.fallback("warn"), or register a function with '
            f"@gs.implements; gs.explain lists what is registered"
        )
    if (decision.name, formats, reason) not in _told:
        _told.add((decision.name, formats, reason))
        warnings.warn(f"{call} ran on a dense copy: {reason}", FallbackWarning, stacklevel=_outside())


Copies = list[tuple[SparseTensor, Tensor]]


def densify(tree: Any, copies: Copies | None = None) -> Any:
    """Return the arguments with every sparse tensor as a dense one; ``copies`` collects which became which."""

    def dense(value: Any) -> Any:
        if isinstance(value, Opaque):
            return value.to_dense()
        if not isinstance(value, SparseTensor):
            return value
        copy = value.to_dense()
        if copies is not None:
            copies.append((value, copy))
        return copy

    return tree_map(dense, tree)


def sparse_leaves(tree: Any) -> Iterator[SparseTensor | Opaque]:
    """Every sparse tensor in the arguments, in lists too, and every weight of a class of its own."""
    if isinstance(tree, SparseTensor | Opaque):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from sparse_leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from sparse_leaves(item)


def _outside() -> int:
    """Return the stack level of the line that called torch: the first outside gossamer and torch."""
    homes = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(homes):
        frame, level = frame.f_back, level + 1
    return level
