"""Memory for results: large results use large pages, if the system provides them on request.

A result is new memory, and the first write to each of its pages causes a page fault. For a large sparse product these
took more than half of the time. With pages of 2 MB there are 512 times fewer.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_PAGE = 1 << 21
_ADVICE, _DONTNEED = 14, 4  # MADV_HUGEPAGE, MADV_DONTNEED
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
    out = torch.empty(shape, dtype=dtype)
    if zero and out.numel() * out.element_size() >= _MAPPED and _emptied(out):
        return in_large_pages(out)
    return in_large_pages(out).zero_() if zero else in_large_pages(out)


def _emptied(out: Tensor) -> bool:
    """Let the system take the pages of new memory back, so that it gives zeros in their place: nobody writes them.

    Return whether it did: memory may be of a kind that keeps what it holds.
    """
    advise = _advise()
    if advise is None:
        return False
    data = out.view(-1).view(torch.uint8)
    begin, end = -out.data_ptr() % _PAGE, (out.data_ptr() + data.numel()) // _PAGE * _PAGE - out.data_ptr()
    data[begin] = 1
    if advise(out.data_ptr() + begin, end - begin, _DONTNEED) or int(data[begin]):
        return False
    data[:begin], data[end:] = 0, 0
    return True


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
