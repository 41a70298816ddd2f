"""Condensed and PackedCSR on a GPU, for few tokens: read as they are stored, 3 bytes a value at half precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.formats import PackedCSR
from gossamer.native.cuda import function, usable
from gossamer.ops.csr_cuda import ELEMENTS
from gossamer.ops.packed_kernels import rows_of
from gossamer.tensor import SparseTensor

_TOKENS = 8  # of a launch
#: Above so many tokens, compressed rows and lines of feature-major activations are faster.
_MOST = 32
_ROWS = "PPPPqqqqq"
_shares: dict[int, int] = {}


def linear(x: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int) -> Any:
    """Return act(x @ weight.T + bias) for a matrix x of tokens; NotImplemented where there is no kernel."""
    values = weight._values
    fits = x.device == values.device and x.dtype is values.dtype and values.dtype in ELEMENTS
    if not (fits and isinstance(weight.format, PackedCSR) and 0 < x.shape[0] <= _MOST):
        return NotImplemented
    if bias is not None and (bias.dtype is not x.dtype or bias.device != x.device):
        return NotImplemented  # torch's own error, from the general path
    (row, pos, crd), (rows, cols, block, tile, _, _) = rows_of(weight.structure)
    assert row is not None and pos is not None
    if not rows or not usable() or crd.dtype is not torch.uint8 or pos.dtype is not torch.int32:
        return NotImplemented
    x = x if x.stride(1) == 1 else x.contiguous()
    return _launch((row, pos, crd, values.contiguous()), (rows, cols, block, tile), x, bias, activation)


def _launch(arrays: tuple[Tensor, ...], sizes: tuple[int, ...], x: Tensor, bias: Tensor | None, code: int) -> Tensor:
    rows, cols, block, tile = sizes
    values, device, element = arrays[3], x.get_device(), ELEMENTS[x.dtype]
    tokens, tiles, blocks = x.shape[0], -(-cols // tile), -(-rows // block)
    share = max(1, -(-tiles * blocks // (2 * _processors(device))))  # tiles of a thread block: fill the GPU twice over
    shares = max(1, -(-tiles // share))
    out = x.new_empty((tokens, rows))
    few = function("rows.cu", "rows_few", device, f"{_ROWS}PqPqq", ELEMENT=element)
    total = function("rows.cu", "rows_sum", device, "PqPPqqq", ELEMENT=element)
    pointers = [a.data_ptr() for a in (*arrays[:3], values)]
    shift = 0 if bias is None else bias.contiguous().data_ptr()
    partial = torch.empty((shares, min(tokens, _TOKENS), rows), dtype=torch.float32, device=x.device)
    for start in range(0, tokens, _TOKENS):
        count = min(_TOKENS, tokens - start)
        at, to = x[start].data_ptr(), out[start].data_ptr()
        few(
            (blocks, shares, 1), 256,
            *pointers, rows, cols, block, tile, tiles, at, x.stride(0), partial.data_ptr(), count, share,
        )  # fmt: skip
        total((-(-rows * count // 256), 1, 1), 256, partial.data_ptr(), shares, shift, to, rows, count, code)
    return out


def _processors(device: int) -> int:
    found = _shares.get(device)
    if found is None:
        found = _shares[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return found
