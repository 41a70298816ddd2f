"""A dense weight whose mask is 2:4 in rows and in columns, packed both ways: for products with it and its transpose.

What training with sparse tensor cores needs: metadata when a mask is chosen, values at every step. On a GPU values are
filled in by one kernel a way, from the dense weight as the optimizer has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.formats.levels.pairs import TILE, step_of
from gossamer.kernels.gpu import ELEMENTS, capability
from gossamer.kernels.vnm.operators import _library
from gossamer.native.cuda import function, usable

_GROUP = 4
_STEP = step_of(16)  # groups of a step


def _places() -> Tensor:
    """Return the indices of the two places for each of the 16 sets of columns; a set of fewer has free ones too."""
    out = []
    for kept in range(16):
        first = [i for i in range(_GROUP) if kept >> i & 1]
        both = sorted([*first, *(i for i in range(_GROUP) if i not in first)][:2])
        out.append(both[0] | both[1] << 2)
    return torch.tensor(out, dtype=torch.int32)


def meta_of(mask: Tensor) -> Tensor:
    """Return the metadata of packed 2:4 for a mask [rows, cols] that keeps at most 2 of each 4 columns.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> mask = gs.NM(2, 4).select(torch.randn(64, 64))
    >>> packed = gs.sparsify(torch.ones(64, 64) * mask, "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    >>> torch.equal(meta_of(mask), packed.structure.arrays["meta1"])
    True
    """
    rows, cols = mask.shape
    mask = pad(mask, (0, -cols % (_GROUP * _STEP), 0, -rows % TILE))
    tiles, steps = mask.shape[0] // TILE, mask.shape[1] // (_GROUP * _STEP)
    bits = torch.tensor([1, 2, 4, 8], dtype=torch.int32, device=mask.device)
    kept = (mask.view(mask.shape[0], -1, _GROUP) * bits).sum(2, dtype=torch.int32)
    places = _places().to(mask.device)[kept]
    # rows are (tile, strip, high, low), groups (step, half, upper, lane)
    places = places.view(tiles, 4, 2, 8, steps, 2, 2, 4).permute(4, 0, 1, 3, 5, 6, 2, 7)
    shifts = (torch.arange(2)[:, None] * 16 + torch.arange(4) * 4).to(mask.device)
    return (places.long() << shifts).sum((-2, -1)).to(torch.int32).reshape(-1)


def fill(dense: Tensor, meta: Tensor, transposed: bool, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Return the values of packed 2:4 at the places of its metadata: of a dense matrix, or of its transpose.

    Parameters
    ----------
    dense
        [rows, cols], with contiguous rows.
    meta
        Of the dense matrix, or, if ``transposed``, of its transpose.
    transposed
        Pack the transpose?
    dtype
        Of the values.
    out
        Memory for them.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> dense = torch.randn(64, 128)
    >>> mask = gs.TransposableNM(2, 4).select(dense.abs())
    >>> values = fill(dense, meta_of(mask.t()), True, torch.float32)
    >>> empty = torch.empty(0, dtype=torch.uint8)
    >>> back = torch.ops.gossamer.vnm_decode(values, empty, meta_of(mask.t()), 128, 64, 0, 4)
    >>> torch.equal(back, (dense * mask).t())
    True
    """
    halves = (torch.float16, torch.bfloat16)
    if out is None:
        out = torch.empty(meta.numel() * 16, dtype=dtype, device=dense.device)
    if dense.is_cuda and dtype in halves and dense.dtype in (dtype, torch.float32) and usable():
        return _launch(dense.detach(), meta, transposed, out)
    wanted = (dense.t() if transposed else dense).to(dtype).contiguous()
    empty = torch.empty(0, dtype=torch.uint8, device=dense.device)
    return out.copy_(torch.ops.gossamer.vnm_sample(wanted, empty, meta, *wanted.shape, 0, _GROUP))


def _launch(dense: Tensor, meta: Tensor, transposed: bool, out: Tensor) -> Tensor:
    dense = dense if dense.stride(1) == 1 else dense.contiguous()
    rows, cols = dense.shape[::-1] if transposed else dense.shape
    tiles = -(-rows // TILE)
    warps = meta.numel() // 16  # 2 words a thread of 8 rows and 4 lanes: 16 rows and 8 groups
    device = dense.get_device()
    run = function(
        "vnm_fill.cu", "vnm_fill", device, "P q P P q q q q", chained=dense.is_cuda and capability(device) >= (9, 0),
        ELEMENT=ELEMENTS[out.dtype], SOURCE=int(dense.dtype is torch.float32), TURNED=int(transposed),
    )  # fmt: skip
    arguments = dense.data_ptr(), dense.stride(0), meta.data_ptr(), out.data_ptr(), rows, cols, tiles, warps
    run((-(-warps // 8), 1, 1), 256, *arguments)
    return out


class TwoWays(NamedTuple):
    """A weight [rows, cols] packed both ways; arrays are written in place, so that graphs may hold them."""

    shape: tuple[int, int]
    values: Tensor
    meta: Tensor
    back_values: Tensor
    back_meta: Tensor

    @classmethod
    def of(cls, dense: Tensor, mask: Tensor, dtype: torch.dtype) -> TwoWays:
        """Pack a dense weight by its mask."""
        meta, back = meta_of(mask), meta_of(mask.t())
        empty = (torch.empty(each.numel() * 16, dtype=dtype, device=dense.device) for each in (meta, back))
        made = cls((dense.shape[0], dense.shape[1]), next(empty), meta, next(empty), back)
        made.fill(dense)
        return made

    def choose(self, mask: Tensor) -> None:
        """Choose another mask; values follow by :meth:`fill`."""
        self.meta.copy_(meta_of(mask))
        self.back_meta.copy_(meta_of(mask.t()))

    def fill(self, dense: Tensor) -> None:
        """Take other values."""
        fill(dense, self.meta, False, self.values.dtype, self.values)
        fill(dense, self.back_meta, True, self.back_values.dtype, self.back_values)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias for x [..., cols]; ``weight``, the dense one, gets a dense gradient."""
        out: Tensor = torch.ops.gossamer.two_ways_linear(x, weight, bias, *self[1:])
        return out


_library.define(
    "two_ways_linear(Tensor x, Tensor weight, Tensor? bias, Tensor values, Tensor meta, Tensor back_values, "
    "Tensor back_meta) -> Tensor"
)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, values: Tensor, meta: Tensor, *back: Tensor) -> Tensor:
    """Return x @ A.T + bias by the packed weight A, for x [..., cols]."""
    rows, cols = weight.shape
    empty, flat = meta.new_empty(0, dtype=torch.uint8), x.reshape(-1, cols)
    out = torch.ops.gossamer.vnm_forward(values, empty, meta, flat, bias, rows, cols, 0, _GROUP, 0)
    return out.reshape(*x.shape[:-1], rows)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _, _, back_values, back_meta = inputs
    ctx.shape, ctx.dtype, ctx.has_bias = weight.shape, weight.dtype, bias is not None
    ctx.save_for_backward(x, back_values, back_meta)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Multiply by the packed transpose for x; the gradient of the weight is a dense product."""
    x, values, meta = ctx.saved_tensors
    rows, cols = ctx.shape
    flat, empty = grad.reshape(-1, rows), meta.new_empty(0, dtype=torch.uint8)
    to_x, to_weight, to_bias = ctx.needs_input_grad[:3]
    grad_x = grad_weight = None
    if to_x:
        back = torch.ops.gossamer.vnm_forward(values, empty, meta, flat, None, cols, rows, 0, _GROUP, 0)
        grad_x = back.reshape(x.shape)
    if to_weight:
        grad_weight = (flat.t() @ x.reshape(-1, cols)).to(ctx.dtype)
    return grad_x, grad_weight, flat.sum(0) if ctx.has_bias and to_bias else None, *(None,) * 4


for _device in ("CPU", "CUDA"):
    _library.impl("two_ways_linear", _linear, _device)
torch.library.register_autograd("gossamer::two_ways_linear", _backward, setup_context=_save, lib=_library)


@torch.library.register_fake("gossamer::two_ways_linear", lib=_library)
def _(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
