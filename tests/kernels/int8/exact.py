"""Weights and products of int8 by plain integer arithmetic, for the tests here and for isa_worker.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels.int8 import operators
from gossamer.kernels.int8.convolution import int8_conv2d, weight_of
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.weight import Range, Rounded, with_range

LAYOUTS = [
    Layout("dense"),
    Layout("bitmap"),
    Layout("lookup"),
    Layout("lookup", 1, 4),
    Layout("lookup", 4, 1),
    Layout("lookup", 4, 4),
    Layout("lines", 1, 4),
]
SHAPES = [(1, 1), (3, 5), (16, 64), (17, 67), (50, 131), (64, 0), (0, 8), (130, 1000)]
TOKENS = [0, 1, 2, 3, 4, 5, 8, 9, 17, 33, 50]
_EIGHTH = 2.0**-8


def a_mask(rows: int, cols: int, layout: Layout, keep: float = 0.3) -> Tensor:
    """A random mask of the layout's blocks."""
    blocks = torch.rand(-(-rows // layout.tall), -(-cols // layout.wide)) < keep
    return blocks.repeat_interleave(layout.tall, 0).repeat_interleave(layout.wide, 1)[:rows, :cols]


def a_weight(rows: int, cols: int, mask: Tensor) -> Rounded:
    """Random int8 and scales that are powers of two: products with them are exact in float32."""
    values = torch.randint(-127, 128, (rows, cols)).to(torch.int8) * mask
    return Rounded(values, 2.0 ** torch.randint(-8, 1, (rows,)).float())


def levels(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What int8_quantize must give, written down again with torch: the levels, the scale and the zero of each token."""
    low = x.amin(1).clamp(max=0) if x.shape[1] else x.new_zeros(x.shape[0])
    high = x.amax(1).clamp(min=0) if x.shape[1] else x.new_zeros(x.shape[0])
    scale = (high / 254 - low / 254).clamp(min=torch.finfo(torch.float32).tiny)
    inverse = 1 / scale
    zero = (-low * inverse).round().int()
    q = ((x * inverse[:, None]).round().int() + zero[:, None]).clamp(0, 254)
    return q.to(torch.uint8), scale, zero


def sums(weight: Rounded, q: Tensor, zero: Tensor) -> Tensor:
    """The integer that each output is made of."""
    return (q.long() - zero.long()[:, None]) @ weight.values.long().t()


def check_bits(layout: Layout, rows: int, cols: int, tokens: int) -> None:
    """Assert that a product whose scales are powers of two is exact to the last bit."""
    mask = a_mask(rows, cols, layout)
    weight = a_weight(rows, cols, mask)
    packed = pack_as(weight, mask, layout)
    q, zero = torch.randint(0, 255, (tokens, cols)).to(torch.uint8), torch.tensor([100], dtype=torch.int32)
    x = (q.float() - 100) * _EIGHTH
    bias = torch.randint(-9, 9, (rows,)).float()
    given = operators.Range(torch.tensor([_EIGHTH]), zero)
    exact = (sums(weight, q, zero.expand(tokens)) * weight.scale.double() * _EIGHTH + bias).float()
    for tensor in (x, q):
        out = operators.linear(packed, tensor, bias, rows, x_range=given)
        assert torch.equal(out, exact), (layout, rows, cols, tokens, tensor.dtype)


def check_convolution() -> None:
    """Assert that a convolution whose scales are powers of two is exact to the last bit, in both orders of images."""
    for layout in LAYOUTS:
        mask = a_mask(35, 17 * 6, layout)
        weight = a_weight(35, 17 * 6, mask)
        packed = with_range(pack_as(weight, mask, layout), Range(_EIGHTH, 100))
        q = torch.randint(0, 255, (2, 17, 9, 11)).double()
        dense = weight_of(weight.values, (3, 2)).double()
        sums = F.conv2d(F.pad(q - 100, (1, 0, 1, 2)), dense, None, (2, 1))
        exact = (sums * weight.scale.double()[:, None, None] * _EIGHTH).float()
        x = ((q - 100) * _EIGHTH).float()
        for images in (x, x.contiguous(memory_format=torch.channels_last)):
            out = int8_conv2d(images, packed, 35, (3, 2, 2, 1, 1, 1, 1, 0, 1, 2))
            assert torch.equal(out, exact), (layout, images.stride())
        add = torch.randint(-9, 9, exact.shape).float().contiguous(memory_format=torch.channels_last)
        out = torch.ops.gossamer.int8_conv2d(packed, x, None, add, None, None, 35, 3, 2, 2, 1, 1, 1, 1, 0, 1, 2, 0)
        assert torch.equal(out, exact + add), layout
