"""Compressed rows as compressed columns: entries are counted and put in their place. C, built like a kernel."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import runtime

_TYPES = {torch.int32: "int", torch.int64: "long"}


def transpose(pos: Tensor, crd: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compressed rows as compressed columns: pos, crd, and where each entry was.

    Examples
    --------
    >>> import torch
    >>> pos, crd = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 2, 2], dtype=torch.int32)
    >>> [x.tolist() for x in transpose(pos, crd, 3)]
    [[0, 1, 1, 3], [0, 0, 1], [0, 1, 2]]
    """
    pos, crd = pos.contiguous(), crd.contiguous()
    to_pos = torch.zeros(columns + 1, dtype=pos.dtype)
    to_crd, index = torch.empty_like(crd), torch.empty(crd.numel(), dtype=pos.dtype)
    arrays = (pos, crd, to_pos, to_crd, index)
    _helper(_TYPES[pos.dtype], _TYPES[crd.dtype])(pos.numel() - 1, columns, *(a.data_ptr() for a in arrays))
    return to_pos, to_crd, index


_SOURCE = """\
void turn(long rows, long columns, const {pos} *pos, const {crd} *crd, {pos} *to_pos, {crd} *to_crd, {pos} *index) {{
  const long entries = pos[rows];
  for (long q = 0; q < entries; ++q) ++to_pos[crd[q]];
  long before = 0;
  for (long j = 0; j <= columns; ++j) {{ const long here = to_pos[j]; to_pos[j] = before, before += here; }}
  for (long i = 0; i < rows; ++i)
    for (long q = pos[i]; q < pos[i + 1]; ++q) {{
      const long p = to_pos[crd[q]]++;
      to_crd[p] = i, index[p] = q;
    }}
  for (long j = columns; j > 0; --j) to_pos[j] = to_pos[j - 1];  /* each stands at the end of its column now */
  to_pos[0] = 0;
}}
"""


@functools.lru_cache(maxsize=4)
def _helper(pos: str, crd: str) -> Callable[..., Any]:
    found = runtime.library(_SOURCE.format(pos=pos, crd=crd)).turn
    found.argtypes, found.restype = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 5, None
    return found
