"""The products of compressed rows of blocks (BSR), as torch operators: schemas and fake functions.

As those of packed rows (``kernels.rows``). ``A`` are rows of blocks, their values ``[blocks, height, width]``; the
gradients are in :mod:`gossamer.kernels.blocks.product`:

- ``blocks_linear``: act(x @ A.T + bias); ``blocks_forward`` is the same for calls that autograd has no part in,
- ``blocks_linear_t``: g @ A, by the kernel of blocks_linear and the blocks of A.T,
- ``blocks_sample``: sum over tokens of left[:, row] * right[:, col] at every place of the stored blocks;
  ``blocks_sample_forward`` likewise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.formats import BSR, Structure
from gossamer.kernels.csr.operators import transpose_of

_library = torch.library.Library("gossamer", "FRAGMENT")
_A = "Tensor pos, Tensor crd"
for _name in ("blocks_linear", "blocks_forward"):
    _library.define(
        f"{_name}({_A}, Tensor values, Tensor x, Tensor? bias, int rows, int cols, int activation) -> Tensor"
    )
_library.define(f"blocks_linear_t({_A}, Tensor values, Tensor grad, int rows, int cols) -> Tensor")
for _name in ("blocks_sample", "blocks_sample_forward"):
    _library.define(f"{_name}({_A}, Tensor left, Tensor right, int rows, int cols, int height, int width) -> Tensor")


class Blocks(NamedTuple):
    """The arrays and sizes of rows of blocks, in the order of the operators' arguments."""

    arrays: tuple[Tensor, Tensor]  # pos, crd
    sizes: tuple[int, int]  # rows, cols


def blocks_of(structure: Structure) -> Blocks:
    """Return what the operators take, of a structure in BSR; with ``order=(1, 0)``, of its transpose.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> blocks_of(gs.from_dense(torch.eye(4, 6), gs.BSR((2, 2))).structure).sizes
    (4, 6)
    """
    format = structure.format
    assert isinstance(format, BSR)
    sizes = format.group_sizes(structure.shape)
    i, j = format.order or (0, 1)
    pos, crd = (structure.arrays[name] for name in ("pos1", "crd1"))
    return Blocks((pos.int(), crd.int()), (sizes[i], sizes[j]))


def linear_t(pos: Tensor, crd: Tensor, values: Tensor, grad: Tensor, rows: int, cols: int) -> Tensor:
    """Return grad @ A; autograd takes no notice of it."""
    if not (values.numel() and grad.numel()):
        return grad.new_zeros((*grad.shape[:-1], cols))
    pos_t, crd_t, order = transpose_of(pos, crd, pos.numel() - 1, -(-cols // values.shape[2]))
    turned = values.index_select(0, order).transpose(1, 2).contiguous()
    return _forward(pos_t, crd_t, turned, grad, None, cols, rows, 0)


_library.impl("blocks_linear_t", linear_t, "CPU")
_forward = torch.ops.gossamer.blocks_forward.default
for _name in ("blocks_forward", "blocks_sample_forward"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


@torch.library.register_fake("gossamer::blocks_linear", lib=_library)
@torch.library.register_fake("gossamer::blocks_forward", lib=_library)
def _(pos: Any, crd: Any, values: Any, x: Tensor, bias: Any, rows: int, cols: int, activation: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("gossamer::blocks_linear_t", lib=_library)
def _(pos: Any, crd: Any, values: Any, grad: Tensor, rows: int, cols: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], cols))


@torch.library.register_fake("gossamer::blocks_sample", lib=_library)
@torch.library.register_fake("gossamer::blocks_sample_forward", lib=_library)
def _(pos: Any, crd: Tensor, left: Tensor, right: Any, rows: int, cols: int, height: int, width: int) -> Tensor:
    return left.new_empty((crd.shape[0], height, width))
