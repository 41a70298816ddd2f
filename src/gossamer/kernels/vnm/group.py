"""Several 2:4 weights that are multiplied by the same activations, in one launch.

``vnm_group(first, first_meta, second, second_meta, third, third_meta, x, one, two, three, cols)`` is x @ [A; B; C].T
for the values and metadata of ``PackedVNM("all", 2, 4)``; ``one``, ``two`` and ``three`` are their rows. There may be
no third weight. Each has arrays of its own: nothing is copied to group them. It has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.product import by_tokens
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import MANY, compiled
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Box, Buffer, Call

#: Rows of each weight of a group are a multiple of this.
ROWS = 128
_FIRST, _FIRST_META, _SECOND, _SECOND_META, _THIRD, _THIRD_META, _X, _OUT = range(8)
_OTHERS = "PPPPii"
for _name in ("vnm_group", "vnm_group_slow"):
    _library.define(
        f"{_name}(Tensor first, Tensor first_meta, Tensor second, Tensor second_meta, Tensor? third, "
        "Tensor? third_meta, Tensor x, int one, int two, int three, int cols) -> Tensor"
    )


def takes(rows: tuple[int, ...], cols: int, x: Tensor) -> str | None:
    """Return why these weights and activations [tokens, cols] on a GPU are better multiplied one by one, or None."""
    capability = gpu.capability(x.get_device())
    if capability != (9, 0):
        return f"there is a kernel for compute capability 9.0, not {gpu.named(capability)}"
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"activations are float16 or bfloat16, not {x.dtype}"
    if len(rows) not in (2, 3) or any(count % ROWS for count in rows) or not cols or cols % 64:
        return f"two or three weights of multiples of {ROWS} rows and 64 columns"
    most = vnm_plan.most_of_some(sum(rows), gpu.processors(x.get_device()))
    return None if 0 < x.shape[0] <= most else f"1 to {most} tokens, not {x.shape[0]}"


def decide(
    first: Tensor, first_meta: Tensor, second: Tensor, second_meta: Tensor, third: Tensor | None,
    third_meta: Tensor | None, x: Tensor, one: int, two: int, three: int, cols: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch."""
    if any(t is not None and t.dtype is not x.dtype for t in (first, second, third)) or x.shape[1] != cols:
        raise RuntimeError(f"expected values of {x.dtype} and an input of tokens x {cols}, got {tuple(x.shape)}")
    tokens, device, rows, line = x.shape[0], x.get_device(), one + two + three, x.stride(0)
    steps = cols // 64
    launch = vnm_plan.some(tokens, rows, steps, ELEMENTS[x.dtype], 0, gpu.processors(device), group=True)
    high = 64 * launch.macros["WM"]
    arguments = (
        Address(_FIRST), Address(_FIRST_META), 0, Address(_X), Address(_OUT), 0, 0, 0, rows, cols, 4,
        vnm_plan.sharing(0), tokens, steps, 2 * line, 2 * rows, *launch.tiles, launch.lines,
        Box(_X, cols, tokens, 2 * line, launch.lines), Address(_SECOND), Address(_THIRD), Address(_SECOND_META),
        Address(_THIRD_META), one // high, (one + two) // high,
    )  # fmt: skip
    product = calls.Launch(
        compiled(launch, device, f"{MANY} 128s {_OTHERS}"), launch.grid, launch.threads, arguments
    )  # fmt: skip
    return Call((Buffer((tokens, rows), (rows, 1), x.dtype),), (product,), tuple(range(7)))


def prepare(
    first: Tensor, first_meta: Tensor, second: Tensor, second_meta: Tensor, third: Tensor | None,
    third_meta: Tensor | None, x: Tensor, one: int, two: int, three: int, cols: int,
) -> tuple[Any, ...] | None:  # fmt: skip
    """Return the arguments in an order that the kernel takes; None if it doesn't take them."""
    rows = (one, two, three) if third is not None else (one, two)
    if not usable() or takes(rows, cols, x):
        return None
    weights = first, first_meta, second, second_meta, third, third_meta
    return *weights, gpu.token_lines(x), one, two, three, cols


def one_by_one(
    first: Tensor, first_meta: Tensor, second: Tensor, second_meta: Tensor, third: Tensor | None,
    third_meta: Tensor | None, x: Tensor, one: int, two: int, three: int, cols: int,
) -> Tensor:  # fmt: skip
    """Return the products side by side, on any device."""
    weights = [(first, first_meta, one), (second, second_meta, two)]
    if third is not None and third_meta is not None:
        weights.append((third, third_meta, three))
    none = first.new_empty(0, dtype=torch.uint8)  # 2:4 shares no columns
    linear = torch.ops.gossamer.vnm_linear.default
    return torch.cat([linear(values, none, meta, x, None, rows, cols, 0, 4, 0) for values, meta, rows in weights], 1)


@torch.library.register_fake("gossamer::vnm_group", lib=_library)
def _(*operands: Any) -> Tensor:
    x, rows = operands[_X], sum(operands[7:10])
    return x.new_empty((*x.shape[:-1], rows))


KINDS = Kinds(7, prepare, decide, one_by_one, _X)
_library.impl("vnm_group", by_tokens(one_by_one, _X), "CPU")
_library.impl("vnm_group", torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_group_slow", torch.library.fallthrough_kernel, "Autograd")
gpu.register(_library, "vnm_group", KINDS)
