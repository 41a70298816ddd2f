"""Memo: a cache with a limit in bytes. It drops the least recently used values.

A value may have owners: objects without which it is useless. The memo has weak references to the owners, and drops the
value when one of them is collected. So the ``id`` of an owner can be part of a key: an entry never outlives it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from torch import Tensor

ENTRY = 4096  # bytes added for each entry besides its tensors, for its Python objects


class Memo:
    """A cache of at most ``limit`` bytes; the newest value is always kept.

    Examples
    --------
    >>> memo = Memo(1 << 20)
    >>> memo.cached("answer", lambda: 42), memo.cached("answer", lambda: 43), len(memo)
    (42, 42, 1)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._entries: dict[Hashable, _Entry] = {}
        self._clock = 0  # number of values stored so far: uses between two stores have the same time
        self._lock = threading.RLock()  # an owner may be collected, and call drop, while this thread holds the lock

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = self._clock
        return entry.value

    def cached(self, key: Hashable, make: Callable[[], Any], owners: tuple[object, ...] = ()) -> Any:
        """Return the value of a key; make it first if it is not there."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.used = self._clock
            return entry.value
        value = make()
        self.keep(key, value, owners)
        return value

    def keep(self, key: Hashable, value: Any, owners: tuple[object, ...] = ()) -> None:
        """Store a value under a key until one of its owners is collected, or others need its bytes."""
        refs = tuple(weakref.ref(owner, lambda _: self.drop(key)) for owner in owners)
        entry = _Entry(value, ENTRY + nbytes_of(value), refs)
        with self._lock:
            self._clock += 1
            entry.used = self._clock
            self.drop(key)
            self._entries[key] = entry
            self.nbytes += entry.nbytes
            if self.nbytes > self.limit:
                self._shrink(key)

    def drop(self, key: Hashable) -> None:
        """Forget a key."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.nbytes -= entry.nbytes

    def clear(self) -> None:
        """Forget everything."""
        for key in tuple(self._entries):
            self.drop(key)

    def _shrink(self, newest: Hashable) -> None:
        """Drop the entries that were not used for longest, down to three quarters: one search serves many of them."""
        known = [(entry.used, key) for key in tuple(self._entries) if (entry := self._entries.get(key))]
        for _, key in sorted(known, key=lambda pair: pair[0]):
            if self.nbytes <= self.limit * 3 // 4:
                break
            if key != newest:
                self.drop(key)


class _Entry:
    __slots__ = ("nbytes", "owners", "used", "value")

    def __init__(self, value: Any, nbytes: int, owners: tuple[Any, ...]) -> None:
        self.value, self.nbytes, self.used, self.owners = value, nbytes, 0, owners


def nbytes_of(value: Any) -> int:
    """Bytes of the tensors in a value: a tensor, containers of tensors, or an object with ``nbytes``.

    Examples
    --------
    >>> import torch
    >>> nbytes_of({"pos": torch.zeros(3), "more": (torch.zeros(2), None)})
    20
    """
    if isinstance(value, Tensor):
        return value.nbytes  # of a sparse tensor, that of its arrays
    own = getattr(value, "nbytes", None)
    if callable(own):
        return int(own())
    if isinstance(value, Mapping):
        return sum(nbytes_of(v) for v in value.values())
    return sum(nbytes_of(v) for v in value) if isinstance(value, (tuple, list)) else 0
