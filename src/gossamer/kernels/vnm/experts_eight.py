"""As :mod:`gossamer.kernels.vnm.experts`, with operands of 8 bits: a kernel quantizes the tokens, the next multiplies.

``vnm_experts_8bit(values, meta, scale, bias, x, ends, rows, cols)`` is for the values and metadata of experts of
``rows x cols`` in the order of ``PackedVNM("all", 2, 4, 8)``, one below the other, in e4m3 or int8; ``rows`` is a
multiple of 64. ``scale`` is float32, one for each row of all experts. Each token is rounded to the type of the values
with a scale of its own, as for ``vnm_8bit``. Where m > 4, ``cols`` counts the shared columns, which the caller has
gathered. The rest is as for ``vnm_experts``: also here nothing waits for the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.vnm import eight_cuda
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm.eight import LARGEST, decode8, quantize
from gossamer.kernels.vnm.eight_cuda import WEIGHTS, quantize_launch, quantized_buffer
from gossamer.kernels.vnm.experts import ROWS
from gossamer.kernels.vnm.operators import _library
from gossamer.kernels.vnm.products import MANY, compiled, complain_of_sizes
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Address, Box, Buffer, Call

_VALUES, _META, _SCALE, _BIAS, _X, _ENDS, _SMALL, _OUT = range(8)  # tensors of a call, then its buffers
_EXPERTS = "Pii"
#: Compacted columns of a step, and what a step has of 64 rows: values, and words of metadata.
STEP, TILE_VALUES, TILE_META = 128, 4096, 256
for _name in ("vnm_experts_8bit", "vnm_experts_8bit_slow"):
    _library.define(
        f"{_name}(Tensor values, Tensor meta, Tensor scale, Tensor? bias, Tensor x, Tensor ends, int rows, int cols) "
        "-> Tensor"
    )


def takes(values: Tensor, x: Tensor, cols: int) -> str | None:
    """Return why the kernels can't multiply these experts and tokens, which are on a GPU, or None."""
    return eight_cuda.takes(values, x, cols, 0)


def check(
    values: Tensor, meta: Tensor, scale: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, *size: int
) -> None:
    """Raise an error that names what operands don't agree: a kernel would read beyond them."""
    rows, cols = size
    experts, tiles = ends.numel(), ends.numel() * -(-rows // ROWS) * -(-cols // STEP)
    complain_of_sizes(values, x, None, rows, cols)
    if rows % ROWS or values.dtype not in LARGEST or scale.dtype is not torch.float32:
        raise RuntimeError(
            f"expected experts of a multiple of {ROWS} rows in float8_e4m3fn or int8 with scales of float32, got "
            f"{rows} x {cols} in {values.dtype} with scales of {scale.dtype}"
        )
    biases = experts * rows if bias is None else bias.numel()
    held = values.numel(), meta.numel(), scale.numel(), biases
    if held != (tiles * TILE_VALUES, tiles * TILE_META, experts * rows, experts * rows):
        raise RuntimeError(
            f"expected the values, metadata, scales and biases of {experts} experts of {rows} x {cols}, got {held[0]} "
            f"values, {held[1]} words of metadata, {held[2]} scales and {held[3]} biases"
        )


def decide(
    values: Tensor, meta: Tensor, scale: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, rows: int, cols: int
) -> Call:
    """Return what operands of a kind launch."""
    check(values, meta, scale, bias, x, ends, rows, cols)
    tokens, device, experts, weight = x.shape[0], x.get_device(), ends.numel(), WEIGHTS[values.dtype]
    steps, processors = -(-cols // STEP), gpu.processors(device)
    scales = Address(_SMALL, tokens * steps * STEP)
    places = Address(_X), Address(_META), Address(_SMALL), scales  # no columns are gathered: metadata stands for none
    first = quantize_launch(x, cols, 4, steps, weight, device, places)
    launch = vnm_plan.experts(tokens, experts, rows, steps, ELEMENTS[x.dtype], processors, weight)
    arguments = (
        Address(_VALUES), Address(_META), 0, Address(_SMALL), Address(_OUT), Address(_BIAS), Address(_SCALE), scales,
        experts * rows, steps * 64, 4, vnm_plan.sharing(0), tokens, steps, steps * STEP, 2 * rows, *launch.tiles,
        launch.lines, Box(_SMALL, steps * 64, tokens, steps * STEP, launch.lines), Address(_ENDS), experts,
        launch.tiles[0],
    )  # fmt: skip
    run = compiled(launch, device, f"{MANY} 128s {_EXPERTS}")
    result = Buffer((tokens, rows), (rows, 1), x.dtype)
    aligned = (_VALUES, _META, _X) if x.stride(0) % 8 == 0 else (_VALUES, _META)
    launches = first, calls.Launch(run, launch.grid, launch.threads, arguments)
    return Call((quantized_buffer(tokens, steps), result), launches, aligned)


def prepare(
    values: Tensor, meta: Tensor, scale: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, rows: int, cols: int
) -> tuple[Any, ...] | None:
    """Return the arguments in an order that the kernels take; None if they don't take them."""
    if not (x.shape[0] and rows and ends.numel()) or not usable() or takes(values, x, cols) is not None:
        return None
    x = x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    return values, meta, scale, bias, x, ends.to(torch.int32).contiguous(), rows, cols


def one_by_one(
    values: Tensor, meta: Tensor, scale: Tensor, bias: Tensor | None, x: Tensor, ends: Tensor, rows: int, cols: int
) -> Tensor:
    """Return the same by a dense product for each expert, on any device. This waits for a GPU."""
    check(values, meta, scale, bias, x, ends, rows, cols)
    small, tokens = quantize(x, None, cols, 4, values.dtype)
    none, count, begin = values.new_empty(0, dtype=torch.uint8), ends.numel(), 0  # 2:4 shares no columns
    out = x.new_zeros(x.shape[0], rows)
    for expert, end in enumerate(ends.clamp(0, x.shape[0]).tolist()):
        if end > begin:
            own = part_of(values, count, rows, expert), none, part_of(meta, count, rows, expert), (rows, cols, 0, 4)
            factor = tokens[begin:end, None] * scale.view(count, rows)[expert]
            exact = small[begin:end].float() @ decode8(*own).t() * factor
            shift = 0 if bias is None else bias.view(count, rows)[expert].float()
            out[begin:end] = (exact + shift).to(x.dtype)
        begin = max(begin, end)
    return out


def part_of(array: Tensor, count: int, rows: int, expert: int) -> Tensor:
    """Return the values or the metadata of one of ``count`` experts of ``rows`` rows: of each step, its tiles.

    Examples
    --------
    >>> import torch
    >>> steps = torch.arange(2 * 3 * 4096)  # two steps of three experts with 64 rows
    >>> part_of(steps, 3, 64, 1)[[0, 4096]]
    tensor([ 4096, 16384])
    """
    tile = TILE_META if array.dtype is torch.int32 else TILE_VALUES
    return array.view(-1, count, rows // ROWS * tile)[:, expert].reshape(-1)


@torch.library.register_fake("gossamer::vnm_experts_8bit", lib=_library)
def _(values: Any, meta: Any, scale: Any, bias: Any, x: Tensor, ends: Any, rows: int, cols: int) -> Tensor:
    return x.new_empty((x.shape[0], rows))


KINDS = Kinds(6, prepare, decide, one_by_one, None)
_library.impl("vnm_experts_8bit", one_by_one, "CPU")
_library.impl("vnm_experts_8bit", torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_experts_8bit_slow", torch.library.fallthrough_kernel, "Autograd")
gpu.register(_library, "vnm_experts_8bit", KINDS)
