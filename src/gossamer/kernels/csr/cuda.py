"""The product of compressed rows with a dense matrix on a GPU: our kernels for int32 indices, in float32 sums."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.native.cuda import function, usable

ELEMENTS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_PARAMETERS = "P P P P q P q q"
#: Up to this many tokens, a warp walks the entries of a row; above, it walks the tokens.
_FEW = 16


def takes(pos: Tensor, crd: Tensor, values: Tensor, x: Tensor) -> bool:
    """Is there a kernel for these?"""
    if values.device.type != "cuda" or x.device != values.device or x.dtype is not values.dtype:
        return False
    return values.dtype in ELEMENTS and pos.dtype is torch.int32 and crd.dtype is torch.int32 and usable()


def spmm(pos: Tensor, crd: Tensor, values: Tensor, rows: int, x: Tensor, tokens_first: bool) -> Tensor:
    """A @ x for x [cols, tokens] of any strides; the result is [rows, tokens], or [tokens, rows] with tokens_first."""
    tokens, element, device = x.shape[1], ELEMENTS[values.dtype], values.get_device()
    pos, crd, values = pos.contiguous(), crd.contiguous(), values.contiguous()
    if tokens <= _FEW:
        x = x if x.stride(0) == 1 or x.shape[0] == 1 else x.t().contiguous().t()
        out = x.new_empty((tokens, rows))
        run = function("csr.cu", "csr_few", device, _PARAMETERS, ELEMENT=element)
        grid, lead = (-(-rows // 4), -(-tokens // 8), 1), x.stride(1)
        tokens_major = True
    else:
        x = _lines(x)
        wide = _wide(x, tokens)
        out = x.new_empty((rows, tokens))
        run = function("csr.cu", "csr_many", device, _PARAMETERS, ELEMENT=element, WIDE=wide)
        grid, lead = (-(-rows // 4), -(-tokens // (32 * wide)), 1), x.stride(0)
        tokens_major = False
    run(grid, 128, pos.data_ptr(), crd.data_ptr(), values.data_ptr(), x.data_ptr(), lead, out.data_ptr(), rows, tokens)
    return out if tokens_major == tokens_first else out.t().contiguous()


def _lines(x: Tensor) -> Tensor:
    """X feature-major, each line at a multiple of 16 bytes."""
    step = 16 // x.element_size()
    if x.stride(1) == 1 and (x.stride(0) % step == 0 or x.shape[0] == 1) and x.data_ptr() % 16 == 0:
        return x
    padded = x.new_empty((x.shape[0], -(-x.shape[1] // step) * step))
    padded[:, x.shape[1] :] = 0  # a wide read at the end of a line takes these in
    return padded[:, : x.shape[1]].copy_(x)


def _wide(x: Tensor, tokens: int) -> int:
    """How many elements a thread reads at once: as many as keep the threads of a warp busy, and as lines allow."""
    most = 16 // x.element_size()
    lines = 1 if x.shape[0] == 1 else x.stride(0)
    for wide in (8, 4, 2):
        fits = wide <= most and lines % wide == 0 and lines >= -(-tokens // wide) * wide
        if fits and tokens > 16 * wide:
            return wide
    return 1
