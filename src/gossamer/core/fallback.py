"""The dense fallback: what runs if no entry of the table accepts a call, and the warning about it.

Torch computes the call on dense copies, which is correct for every operator. One warning gives the reason.
:class:`fallback` turns the warning into an error, or off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
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
    """A call ran on dense copies, because no function of the table accepted it.

    Examples
    --------
    >>> import warnings, gossamer as gs
    >>> warnings.simplefilter("error", gs.FallbackWarning)
    """


class fallback(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Set what a dense fallback does: ``"warn"``, ``"error"`` or ``"silent"``.

    There is one warning for each operator, formats and reason. As a function it sets the policy for the process; as a
    context manager it restores the old policy at the end.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.eye(3), gs.CSR())
    >>> with gs.fallback("error"):
    ...     torch.linalg.inv(t)
    Traceback (most recent call last):
        ...
    NotImplementedError: linalg_inv(CSR) needs a dense copy: no entry of the table accepts these formats. Allow ...
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
    """A call that ran, as collected by :func:`watch`."""

    operator: str
    formats: tuple[str, ...]
    how: str  # as in gs.explain
    function: str


_watchers: list[list[Ran]] = []


@contextlib.contextmanager
def watch() -> Iterator[list[Ran]]:
    """Collect the calls that compute with a sparse tensor, in the order in which they start, including nested ones.

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
    """Notify :func:`watch` that a decision is about to run."""
    for seen in _watchers:
        seen.append(Ran(decision.name, decision.formats, decision.how, name_of(decision.function)))


def announce(decision: Decision) -> None:
    """Warn, or raise, before a call runs on dense copies, as the policy says."""
    if not decision.quiet:
        tell_fallback(decision.name, decision.formats, decision.reason)


def tell_fallback(name: str, formats: tuple[str, ...], reason: str) -> None:
    """Warn, or raise, that a call of this name is computed on dense copies."""
    if _policy == "silent" or torch.compiler.is_compiling():
        return
    call = f"{name}({', '.join(formats)})"
    refuse_fallback(name, formats, reason)
    if (name, formats, reason) not in _told:
        _told.add((name, formats, reason))
        warnings.warn(f"{call} ran on a dense copy: {reason}", FallbackWarning, stacklevel=outside())


def refuse_fallback(name: str, formats: tuple[str, ...], reason: str) -> None:
    """Raise under ``gs.fallback("error")``, in a trace too, where nothing is warned about.

    Examples
    --------
    >>> with fallback("error"):
    ...     refuse_fallback("gs.einsum", ("CSR",), "there is no kernel")
    Traceback (most recent call last):
        ...
    NotImplementedError: gs.einsum(CSR) needs a dense copy: there is no kernel. Allow it with gs.fallback("warn"), ...
    """
    if _policy == "error":
        call = f"{name}({', '.join(formats)})"
        raise NotImplementedError(
            f'{call} needs a dense copy: {reason}. Allow it with gs.fallback("warn"), or register a function with '
            f"@gs.implements; gs.explain lists what is registered"
        )


def formats_of(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the names of tensors' formats, as messages give them."""
    return tuple(str(t.format).partition("(")[0] if isinstance(t, SparseTensor) else "Dense" for t in tensors)


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


def outside() -> int:
    """Return the stack level of the line that called torch: the first outside gossamer and torch."""
    homes = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(torch.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(homes):
        frame, level = frame.f_back, level + 1
    return level
