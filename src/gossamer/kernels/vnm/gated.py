"""Two packed weights of one shape whose results are multiplied, in one launch: the first half of a gated MLP.

``vnm_gated(gate, gate_meta, up, up_meta, shared, gate_scale, up_scale, x, rows, cols, m, activation)`` is
act(x @ A.T) * (x @ B.T) for the values and metadata of two ``PackedVNM("all", 2, m)`` of ``rows x cols``, with the same
shared columns where m > 4. With scales, the values are of 8 bits, and x is quantized first. The sums are rounded once,
after they are multiplied. Each weight has arrays of its own. It has no gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.product import activated, by_tokens
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import plan_many
from gossamer.kernels.vnm.eight import linear8
from gossamer.kernels.vnm.eight_cuda import WEIGHTS, quantize_launch, quantized_buffer
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import MANY, Sizes, compact_launch, compacted, compiled
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Argument, Box, Buffer, Call

#: Rows of each weight are a multiple of this.
ROWS = 64
#: With more tokens than the first, two products are faster for weights of more compacted columns than the second: their
#: tiles are larger, and the memory traffic that one kernel saves matters less. Measured with 2048 and 4096 columns.
_TOKENS, _COLUMNS = 128, 3072
_GATE, _GATE_META, _UP, _UP_META, _SHARED, _GATE_SCALE, _UP_SCALE, _X, _FIRST = range(9)  # the last: of the buffers
for _name in ("vnm_gated", "vnm_gated_slow"):
    _library.define(
        f"{_name}(Tensor gate, Tensor gate_meta, Tensor up, Tensor up_meta, Tensor shared, Tensor? gate_scale, "
        "Tensor? up_scale, Tensor x, int rows, int cols, int m, int activation) -> Tensor"
    )


def takes(values: Tensor, x: Tensor, rows: int, cols: int) -> str | None:
    """Return why the kernels can't multiply these weights and x [tokens, cols], which are on a GPU, or None."""
    capability = gpu.capability(x.get_device())
    if capability != (9, 0):
        return f"there are kernels for compute capability 9.0, not {gpu.named(capability)}"
    if x.dtype not in (torch.float16, torch.bfloat16) or values.dtype not in (x.dtype, *WEIGHTS):
        return f"activations are float16 or bfloat16, and weights too or of 8 bits, not {x.dtype} and {values.dtype}"
    if rows % ROWS or not rows or not cols:
        return f"weights of a multiple of {ROWS} rows, not {rows} x {cols}"
    return None


def pays(tokens: int, cols: int, m: int) -> bool:
    """Return whether one kernel is faster than two products for so wide weights.

    Examples
    --------
    >>> pays(128, 4096, 4), pays(2048, 4096, 4), pays(2048, 4096, 8)
    (True, False, True)
    """
    return tokens <= _TOKENS or 4 * cols <= _COLUMNS * m


class _Input(NamedTuple):
    """What the product reads: its launches before it, buffers, and where x is."""

    launches: tuple[calls.Launch, ...]
    buffers: tuple[Buffer, ...]
    source: int  # number of the tensor that the copy engine reads
    steps: int
    bytes: int  # of a line
    wide: int  # 16-bit elements of a line
    scales: Argument = 0


def _input(x: Tensor, values: Tensor, rows: int, cols: int, m: int) -> _Input:
    tokens, device = x.shape[0], x.get_device()
    if weight := WEIGHTS.get(values.dtype, 0):
        steps = -(-cols // (32 * m))
        buffer, scales = quantized_buffer(tokens, steps), Address(_FIRST, tokens * steps * 128)
        places = Address(_X), Address(_SHARED), Address(_FIRST), scales
        first = quantize_launch(x, cols, m, steps, weight, device, places)
        return _Input((first,), (buffer,), _FIRST, steps, steps * 128, steps * 64, scales)
    sizes = Sizes(rows, cols, 0, m, tokens)
    if m == 4:
        return _Input((), (), _X, sizes.steps, 2 * x.stride(0), cols)
    first = compact_launch(sizes, x, device, _FIRST, (_X, _SHARED))
    return _Input((first,), (compacted(sizes, x),), _FIRST, sizes.steps, sizes.steps * 128, sizes.steps * 64)


def decide(
    gate: Tensor, gate_meta: Tensor, up: Tensor, up_meta: Tensor, shared: Tensor, gate_scale: Tensor | None,
    up_scale: Tensor | None, x: Tensor, rows: int, cols: int, m: int, activation: int,
) -> Call:  # fmt: skip
    """Return what operands of a kind launch."""
    if x.shape[1] != cols or gate.dtype is not up.dtype or gate.shape != up.shape or gate_meta.shape != up_meta.shape:
        raise RuntimeError(f"expected two weights of one type and shape and an input of tokens x {cols}")
    tokens, device = x.shape[0], x.get_device()
    weight, element, processors = WEIGHTS.get(gate.dtype, 0), ELEMENTS[x.dtype], gpu.processors(device)
    given = _input(x, gate, rows, cols, m)
    out = _FIRST + len(given.buffers)
    some = tokens <= most_of_some(rows, processors)
    launch = vnm_plan.some(
        tokens, rows, given.steps, element, activation, processors, weight, bool(given.launches), gated=True
    ) if some else plan_many.many(
        tokens, rows, given.steps, 0, 4, (True, True), element, activation, processors, weight, gated=True
    )  # fmt: skip
    assert launch is not None  # there are no lists of columns that could be too long
    maps: list[Argument] = [Box(given.source, given.wide, tokens, given.bytes, launch.lines)]
    if not some:
        maps.insert(0, Box(out, rows, tokens, 2 * rows, launch.macros["BOX"]))
    arguments = (
        Address(_GATE), Address(_GATE_META), 0, Address(given.source), Address(out), 0, Address(_GATE_SCALE),
        given.scales, rows, given.wide, 4, vnm_plan.sharing(0), tokens, given.steps, given.bytes, 2 * rows,
        *launch.tiles, launch.lines, *maps, Address(_UP), Address(_UP_META), Address(_UP_SCALE),
    )  # fmt: skip
    run = compiled(launch, device, f"{MANY}{' 128s' * len(maps)} PPP")
    product = calls.Launch(run, launch.grid, launch.threads, arguments)
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    return Call((*given.buffers, result), (*given.launches, product), (*range(_SHARED), _X))


def most_of_some(rows: int, processors: int) -> int:
    """Return up to how many tokens the kernel for few is faster: its tiles are half as high.

    Examples
    --------
    >>> most_of_some(14336, 132), most_of_some(7168, 132), most_of_some(2048, 132)
    (64, 128, 512)
    """
    return max(vnm_plan.most_of_some(2 * rows, processors), 128 if -(-rows // 64) <= processors else 0)


def prepare(
    gate: Tensor, gate_meta: Tensor, up: Tensor, up_meta: Tensor, shared: Tensor, gate_scale: Tensor | None,
    up_scale: Tensor | None, x: Tensor, rows: int, cols: int, m: int, activation: int,
) -> tuple[Any, ...] | None:  # fmt: skip
    """Return the arguments in an order that the kernels take; None if they don't take them."""
    if not (x.shape[0] and usable()) or takes(gate, x, rows, cols) is not None:
        return None
    weights = gate, gate_meta, up, up_meta, shared, gate_scale, up_scale
    return *weights, gpu.token_lines(x), rows, cols, m, activation


def one_by_one(
    gate: Tensor, gate_meta: Tensor, up: Tensor, up_meta: Tensor, shared: Tensor, gate_scale: Tensor | None,
    up_scale: Tensor | None, x: Tensor, rows: int, cols: int, m: int, activation: int,
) -> Tensor:  # fmt: skip
    """Return the same by two products, on any device."""
    sizes = (rows, cols, 0, m)
    if gate_scale is not None and up_scale is not None:
        wide = x.float()  # products are rounded once, as in the kernel
        first = linear8(gate, shared, gate_meta, gate_scale, wide, None, *sizes, activation)
        second = linear8(up, shared, up_meta, up_scale, wide, None, *sizes, 0)
        return (first * second).to(x.dtype)
    linear = torch.ops.gossamer.vnm_linear.default
    first = linear(gate, shared, gate_meta, x, None, *sizes, 0)
    return activated(first, activation) * linear(up, shared, up_meta, x, None, *sizes, 0)


@torch.library.register_fake("gossamer::vnm_gated", lib=_library)
def _(*operands: Any) -> Tensor:
    x, rows = operands[_X], operands[_X + 1]
    return x.new_empty((*x.shape[:-1], rows))


KINDS = Kinds(8, prepare, decide, one_by_one, _X)
_library.impl("vnm_gated", by_tokens(one_by_one, _X), "CPU")
_library.impl("vnm_gated", torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_gated_slow", torch.library.fallthrough_kernel, "Autograd")
gpu.register(_library, "vnm_gated", KINDS)
