"""Malformed tensors, drawn from what a format says of itself: the names of its arrays, and nothing else.

A whole tensor shows the types, lengths and range of each array. What is drawn keeps some of them and draws the others:
types, lengths, numbers near the range and far from it, in order or not, arrays of another tensor, another shape.
There is no list of ways to be wrong.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

import gossamer as gs
from gossamer.formats import (
    Condensed,
    PackedBitmap,
    PackedCSR,
    PackedGroupedNM,
    PackedNear,
    PackedNM,
    PackedTiles,
    PackedVNM,
    Stacked,
)

#: Every exported format, and some stacks, with a pattern that it can hold.
FORMATS: dict[gs.Format, str] = {
    gs.CSR(): "60%", gs.CSC(): "60%", gs.COO(): "60%", gs.DCSR(): "60%", gs.CSF(): "60%", gs.ELL(): "60%",
    gs.BSR((2, 3)): "60%", gs.Masked(): "60%", PackedCSR(): "60%", PackedCSR(240): "60%", PackedNear(): "40%",
    Condensed(): "fan-in 75%", PackedNM(2, 4): "2:4", PackedGroupedNM(1, 4, 4): "1:4:g4",
    PackedVNM(16, 2, 8): "16:2:8", PackedBitmap(): "60%", PackedTiles(): "60%", PackedCSR(order=(1, 0)): "60%",
    gs.Format("compressed", "dense"): "60%", gs.Format("bitmap", "compressed", order=(1, 0)): "60%",
    gs.Format("dense", "compressed-nonunique", "singleton"): "60%", gs.Format("compressed-nonunique"): "60%",
    Stacked(gs.CSR()): "60%", Stacked(PackedCSR()): "60%",
}  # fmt: skip
_TYPES = (
    torch.int32, torch.int64, torch.int16, torch.uint8, torch.int8, torch.uint16, torch.uint32, torch.bool,
    torch.float32,
)  # fmt: skip


class Drawn(NamedTuple):
    """What a tensor is said to be made of."""

    format: gs.Format
    shape: tuple[int, ...]
    values: Tensor
    arrays: dict[str, Tensor]

    def build(self) -> gs.SparseTensor:
        return gs.SparseTensor.from_arrays(self.format, self.shape, self.values, self.arrays)


def whole(rng: random.Random, format: gs.Format) -> Drawn:
    """A tensor that keeps all promises of a format."""
    dims = {gs.Format("dense", "compressed-nonunique", "singleton"): 3, gs.Format("compressed-nonunique"): 1}
    several = format in (gs.CSF(), gs.COO(), gs.Masked()) and rng.random() < 0.3
    count = dims.get(format, 3 if several or isinstance(format, Stacked) else 2)
    shape = [rng.choice((1, 3, 5, 8, 16, 24)) for _ in range(count)]
    if isinstance(format, PackedVNM):
        shape = [16 * rng.randint(1, 2), 8 * rng.randint(1, 4)]
    elif isinstance(format, PackedNM | PackedGroupedNM):
        shape = [4 * rng.randint(1, 4), 4 * rng.randint(1, 6)]
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    dense = torch.randn(shape, generator=generator)
    tensor: Any = gs.sparsify(dense, FORMATS[format], format=format)
    return Drawn(
        format, tuple(shape), tensor._values.clone(), {k: a.clone() for k, a in tensor.structure.arrays.items()}
    )


def malformed(rng: random.Random, format: gs.Format) -> Drawn:
    """A tensor of which at least one part was drawn; it may keep all promises by luck."""
    good, other = whole(rng, format), whole(rng, format)
    arrays, values, shape = dict(good.arrays), good.values, good.shape
    parts = [*arrays, "values", "shape"]
    for part in rng.sample(parts, rng.choice((1, 1, 1, 2, len(parts)))):
        if part == "shape":
            shape = _shape(rng, good.shape)
        elif part == "values":
            values = _array(rng, values, other.values)
        else:
            arrays[part] = _array(rng, arrays[part], other.arrays.get(part, good.values))
    return Drawn(format, shape, values, arrays)


def _shape(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    out = [rng.choice((size, size + 1, size - 1, 0, -1, 2 * size, 2**31, 2**40, 2**62)) for size in shape]
    length = rng.choice((len(out), len(out), len(out), len(out) + 1, max(len(out) - 1, 0)))
    return tuple((out + [rng.randint(1, 9)])[:length])


def _array(rng: random.Random, good: Tensor, other: Tensor) -> Tensor:
    """Draw an array: of another tensor, or with a type, a length and numbers that are kept or drawn."""
    if rng.random() < 0.15:
        return other
    out = good if rng.random() < 0.7 else _resized(rng, good)
    out = _numbers(rng, out) if rng.random() < 0.8 else out
    if rng.random() < 0.15:
        out = out.to(rng.choice(_TYPES))
    if rng.random() < 0.05:
        out = out.unsqueeze(rng.randrange(2)) if rng.random() < 0.5 else out.reshape(-1)
    return out


def _resized(rng: random.Random, good: Tensor) -> Tensor:
    flat = good.reshape(-1)
    length = max(rng.choice((flat.numel() + rng.randint(-2, 2), 0, 2 * flat.numel(), rng.randint(0, 40))), 0)
    out = flat.new_zeros(length)
    out[: min(length, flat.numel())] = flat[:length]
    return (
        out
        if good.dim() == 1 or rng.random() < 0.5
        else out[: length - length % max(good.shape[-1], 1)].view(-1, max(good.shape[-1], 1))
    )


def _numbers(rng: random.Random, good: Tensor) -> Tensor:
    """Change one number or some, within the range or far from it; or draw all of them."""
    out = good.clone()
    flat = out.view(-1)
    if not flat.numel():
        return out
    if out.is_floating_point():
        flat[rng.randrange(flat.numel())] = rng.choice((0.0, 1.0, float("nan"), float("inf"), -3e38))
        return out
    if out.dtype == torch.bool:
        at = rng.randrange(flat.numel())
        flat[at] = not bool(flat[at])
        return out
    limits = torch.iinfo(out.dtype)
    top = int(flat.max())
    near = (top, top + 1, top - 1, 0, 1, -1, rng.randint(-2, top + 2), limits.max, limits.min, limits.max // 2, 2**15)
    if rng.random() < 0.2:
        flat.copy_(torch.tensor([rng.randint(0, max(top, 1)) for _ in range(flat.numel())]).clamp(max=limits.max))
        return out.sort(-1).values if rng.random() < 0.5 else out
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        flat[rng.randrange(flat.numel())] = max(min(rng.choice(near), limits.max), limits.min)
    return out
