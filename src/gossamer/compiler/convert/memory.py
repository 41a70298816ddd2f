"""Memory for results: large ones in large pages, where the system gives them to those who ask.

A result is new memory, and every page of it is a trap into the system when it is first written: for a large sparse
product that was more than half of its time. With pages of 2 MB there are 512 times fewer.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_PAGE = 1 << 21
_ADVICE = 14  # MADV_HUGEPAGE
_MAPPED = 1 << 25  # bytes: from here on, glibc asks the system for every allocation


def fresh(shape: int | Sequence[int], dtype: torch.dtype, zero: bool = False) -> Tensor:
    """Return new memory for a result, with zeros if asked for.

    Examples
    --------
    >>> import torch
    >>> fresh((2, 3), torch.float32, zero=True)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    size = (shape if isinstance(shape, int) else math.prod(shape)) * dtype.itemsize
    if zero and size >= _MAPPED and sys.platform == "linux":
        # so much is new to the process in any case, and the system gives it as zeros: don't write them again
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return in_large_pages(torch.frombuffer(mapped, dtype=dtype).view(shape))
    out = in_large_pages(torch.empty(shape, dtype=dtype))
    return out.zero_() if zero else out


def in_large_pages(out: Tensor) -> Tensor:
    """Ask for large pages for memory that nothing is written to yet.

    Examples
    --------
    >>> import torch
    >>> in_large_pages(torch.empty(3)).shape
    torch.Size([3])
    """
    size = out.numel() * out.element_size()
    if size >= 2 * _PAGE and (advise := _advise()) is not None:
        begin = -(-out.data_ptr() // _PAGE) * _PAGE  # whole pages only
        advise(begin, (out.data_ptr() + size - begin) // _PAGE * _PAGE, _ADVICE)
    return out


@functools.lru_cache(maxsize=1)
def _advise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found
