"""Packed V:N:M weights of several experts, each multiplied by the tokens that are for it, in one launch.

``vnm_experts(values, meta, bias, x, ends, rows, cols)`` is for the values and metadata of experts of ``rows x cols``,
one below the other, as ``Stacked(PackedVNM(...))`` stores them; where m > 4, ``cols`` counts the shared columns. The
tokens x are sorted by their expert: those of expert e are x[ends[e - 1] : ends[e]], as for ``torch._grouped_mm``.
The result has a row for each token; rows behind the last expert's are not written. It has no gradient.

How many tokens an expert has is known on the GPU only: nothing waits for it, so the call can be captured in a graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import MANY, compiled, complain_of_sizes
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Box, Buffer, Call

#: Rows of an expert are a multiple of this.
ROWS = 64
_VALUES, _META, _BIAS, _X, _ENDS, _OUT = range(6)
_EXPERTS = "Pii"
for _name in ("vnm_experts", "vnm_experts_slow"):
    _library.define(
        f"{_name}(Tensor values, Tensor meta, Tensor? bias, Tensor x, Tensor ends, int rows, int cols) -> Tensor"
    )


def takes(values: Tensor, x: Tensor, rows: int, cols: int) -> str | None:
    """Return why the kernel can't multiply these experts and tokens, which are on a GPU, or None."""
    capability = gpu.capability(x.get_device())
    if capability != (9, 0):
        return f"there is a kernel for compute capability 9.0, not {gpu.named(capability)}"
    if x.dtype not in (torch.float16, torch.bfloat16) or values.dtype is not x.dtype:
        return f"weights and activations are both float16 or both bfloat16, not {values.dtype} and {x.dtype}"
    if rows % ROWS or not rows or not cols:
        return f"experts of a multiple of {ROWS} rows, not {rows} x {cols}"
    return None


def decide(values: Tensor, meta: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, rows: int, cols: int) -> Call:
    """Return what operands of a kind launch."""
    complain_of_sizes(values, x, None, rows, cols)
    tokens, device, experts, line = x.shape[0], x.get_device(), ends.numel(), x.stride(0)
    steps = -(-cols // 64)
    held = values.numel(), meta.numel(), experts * rows if bias is None else bias.numel()
    if held != (experts * rows * steps * 32, experts * rows * steps * 2, experts * rows):
        raise RuntimeError(
            f"expected the values, metadata and biases of {experts} experts of {rows} x {cols}, got {held[0]} values, "
            f"{held[1]} words of metadata and {held[2]} biases"
        )
    launch = vnm_plan.experts(tokens, experts, rows, steps, ELEMENTS[x.dtype], gpu.processors(device))
    arguments = (
        Address(_VALUES), Address(_META), 0, Address(_X), Address(_OUT), Address(_BIAS), 0, 0, experts * rows, cols, 4,
        vnm_plan.sharing(0), tokens, steps, 2 * line, 2 * rows, *launch.tiles, launch.lines,
        Box(_X, cols, tokens, 2 * line, launch.lines), Address(_ENDS), experts, launch.tiles[0],
    )  # fmt: skip
    run = compiled(launch, device, f"{MANY} 128s {_EXPERTS}")
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    return Call((result,), (calls.Launch(run, launch.grid, launch.threads, arguments),), (_VALUES, _META, _X))


def prepare(
    values: Tensor, meta: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, rows: int, cols: int
) -> tuple[Any, ...] | None:
    """Return the arguments in an order that the kernel takes; None if it doesn't take them."""
    if not x.shape[0] or not usable() or takes(values, x, rows, cols) is not None:
        return None
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    return values, meta, bias, gpu.token_lines(x), ends.to(torch.int32).contiguous(), rows, cols


def one_by_one(
    values: Tensor, meta: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, rows: int, cols: int
) -> Tensor:
    """Return the same by a dense product for each expert, on any device. This waits for a GPU."""
    none, count = values.new_empty(0, dtype=torch.uint8), ends.numel()  # 2:4 shares no columns
    dense = torch.ops.gossamer.vnm_decode(values, none, meta, count * rows, cols, 0, 4).view(count, rows, cols)
    out, begin = x.new_zeros(x.shape[0], rows), 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            own = None if bias is None else bias.view(count, rows)[expert]
            out[begin:end] = F.linear(x[begin:end], dense[expert].to(x.dtype), own)
        begin = max(begin, end)
    return out


@torch.library.register_fake("gossamer::vnm_experts", lib=_library)
def _(values: Any, meta: Any, bias: Any, x: Tensor, ends: Any, rows: int, cols: int) -> Tensor:
    return x.new_empty((x.shape[0], rows))


KINDS = Kinds(5, prepare, decide, one_by_one, None)
_library.impl("vnm_experts", one_by_one, "CPU")
_library.impl("vnm_experts", torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_experts_slow", torch.library.fallthrough_kernel, "Autograd")
gpu.register(_library, "vnm_experts", KINDS)
