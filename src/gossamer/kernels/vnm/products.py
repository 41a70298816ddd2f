"""What a product of packed V:N:M launches: kernels, buffers and arguments, for operands of a kind."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, MOST_LINE
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import plan_many
from gossamer.native.cuda import Function, calls, function
from gossamer.native.cuda.calls import Address, Argument, Box, Buffer, Call

_VNM = "PPPqqqqq"
FEW = "PPPPPPPPPiiiiiiii"  # what few takes: pointers, then sizes; lines are counted in bytes
MANY = "PPPPPPPPiiiiiiiiiii"  # some and many
_KERNELS = {  # source and parameters of the plain ones
    "vnm_any": ("vnm_any.cu", "PPPPPPqqqqqqqqqqq"),
    "vnm_decode": ("vnm_decode.cu", f"{_VNM} P q"),
    "vnm_sample": ("vnm_decode.cu", f"{_VNM} P q P"),
    "bitmap_dense": ("bitmap_dense.cu", "P P P P q q q"),
    "bitmap_planes_dense": ("bitmap_planes_dense.cu", "P P P P q q q"),
    "vnm_compact": ("vnm_compact.cu", "P q P P q q q q"),
}
_NO_MAP = bytes(128)
_VALUES, _SHARED, _META, _X, _BIAS = range(5)  # the tensors of a call; then its buffers
_HELD = (_VALUES, _SHARED, _META)
_ready: dict[tuple[str, int, int], Function] = {}


class Sizes(NamedTuple):
    """Of a weight and of activations."""

    rows: int
    cols: int
    v: int  # 0: all rows share columns
    m: int
    tokens: int

    @property
    def steps(self) -> int:
        return -(-self.cols // (16 * self.m))


def kernel(name: str, device: int, element: int) -> Function:
    """Return a plain kernel for elements of a type, on a device."""
    found = _ready.get((name, device, element))
    if found is None:
        source, parameters = _KERNELS[name]
        chained = gpu.capability(device) >= (9, 0)
        made = function(source, name, device, parameters, chained=chained, ELEMENT=element)
        found = _ready[name, device, element] = made
    return found


def complain_of_sizes(values: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int) -> None:
    """Say what is wrong with the devices and sizes of operands, if anything is."""
    tensors = (x, values) if bias is None else (x, values, bias)
    if any(t.device != values.device for t in tensors):
        given = ", ".join(str(t.device) for t in tensors)
        raise RuntimeError(f"expected input, weight and bias on one device, got {given}")
    if x.dim() != 2 or x.shape[1] != cols or (bias is not None and bias.shape != (rows,)):
        raise RuntimeError(
            f"a weight of {rows} x {cols} takes an input of tokens x {cols} and a bias of {rows}, not an input of "
            f"{tuple(x.shape)}" + ("" if bias is None else f" and a bias of {tuple(bias.shape)}")
        )


def lines_of(x: Tensor, given: bool) -> int | None:
    """Elements from one line of x to the next, if a kernel can read it as it is stored; ``given``: feature-major."""
    line, long = (x.stride(1), x.shape[0]) if given else (x.stride(0), x.shape[1])
    if x.shape[1 if given else 0] == 1:  # there is no next line
        line = -(-long // 8) * 8
    fits = x.stride(0 if given else 1) == 1 and line % 8 == 0 and line >= long and 2 * line < MOST_LINE
    return line if fits else None


def compiled(launch: vnm_plan.Launch, device: int, parameters: str) -> Function:
    """Return the kernel of a launch."""
    return function(
        launch.source, launch.name, device, parameters, shared=launch.shared, chained=launch.chained, **launch.macros
    )


def any_call(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call:
    """Return what a product by plain threads launches."""
    rows, cols, v, m, tokens = sizes
    launch = vnm_plan.plain(tokens, rows)
    out = result_of(x, rows, turned)
    arguments: tuple[Argument, ...] = (
        Address(_VALUES), Address(_META), Address(_SHARED), Address(_X), Address(5), Address(_BIAS), rows, cols, m, v,
        tokens, sizes.steps, *x.stride(), *out.strides, activation,
    )  # fmt: skip
    run = kernel(launch.name, device, ELEMENTS[x.dtype])
    return Call((out,), (calls.Launch(run, launch.grid, launch.threads, arguments),))


def result_of(x: Tensor, rows: int, turned: bool) -> Buffer:
    """Return the memory of a result: token-major, or feature-major if ``turned``."""
    tokens = x.shape[0]
    lead = -(-tokens // 8) * 8 if turned else rows
    return Buffer((tokens, rows), (1, lead) if turned else (lead, 1), x.dtype)


def few_call(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call | None:
    """Return what a product with few tokens launches; None if x must be brought into order first."""
    rows, cols, v, m, tokens = sizes
    line = lines_of(x, given)
    if given or turned or line is None:
        return None
    launch = vnm_plan.few(
        min(tokens, vnm_plan.FEW_LAUNCH), rows, cols, v, m, gpu.capability(device), ELEMENTS[x.dtype], activation,
        gpu.processors(device),
    )  # fmt: skip
    run = compiled(launch, device, FEW)
    launches = []
    for start in range(0, tokens, vnm_plan.FEW_LAUNCH):
        count = min(tokens - start, vnm_plan.FEW_LAUNCH)
        arguments = (
            Address(_VALUES), Address(_META), Address(_SHARED), Address(_X, start * 2 * line),
            Address(5, start * 2 * rows), Address(_BIAS), 0, 0, 0, rows, cols, m, vnm_plan.sharing(v), count,
            sizes.steps, 2 * line, 2 * rows,
        )  # fmt: skip
        launches.append(calls.Launch(run, launch.grid, launch.threads, arguments))
    return Call((result_of(x, rows, False),), tuple(launches), (*_HELD, _X))


def compact_launch(
    sizes: Sizes, x: Tensor, device: int, to: int, given: tuple[int, int] = (_X, _SHARED)
) -> calls.Launch:
    """Shared columns side by side: the launch before a product, into tensor number ``to``, of x and shared columns."""
    run = kernel("vnm_compact", device, ELEMENTS[x.dtype])
    arguments = (
        Address(given[0]), x.stride(0), Address(given[1]), Address(to), sizes.tokens, sizes.cols, sizes.m, sizes.steps
    )  # fmt: skip
    return calls.Launch(run, (-(-sizes.tokens * sizes.steps * 8 // 256), 1, 1), 256, arguments)


def some_call(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call | None:
    """Return what a product with some tokens launches; None if x must be brought into order first."""
    rows, cols, _, m, tokens = sizes
    gathers = m != 4
    line = 64 * sizes.steps if gathers else lines_of(x, given)
    if line is None or (gathers and x.stride(1) != 1):
        return None
    launch = vnm_plan.some(
        tokens, rows, sizes.steps, ELEMENTS[x.dtype], activation, gpu.processors(device), ahead=gathers
    )
    source, wide = (5, line) if gathers else (_X, cols)
    out = 6 if gathers else 5
    arguments = (
        Address(_VALUES), Address(_META), 0, Address(source), Address(out), Address(_BIAS), 0, 0, rows, wide, 4,
        vnm_plan.sharing(0), tokens, sizes.steps, 2 * line, 2 * rows, *launch.tiles, launch.lines,
        Box(source, wide, tokens, 2 * line, launch.lines),
    )  # fmt: skip
    product = calls.Launch(compiled(launch, device, f"{MANY} 128s"), launch.grid, launch.threads, arguments)
    result = result_of(x, rows, False)
    if not gathers:
        return Call((result,), (product,), (*_HELD, _X))
    return Call((compacted(sizes, x), result), (compact_launch(sizes, x, device, 5), product), _HELD)


def compacted(sizes: Sizes, x: Tensor) -> Buffer:
    """Return the memory of the shared columns, side by side."""
    return Buffer((sizes.tokens, sizes.steps * 64), (sizes.steps * 64, 1), x.dtype)


def compacts(sizes: Sizes, given: bool) -> bool:
    """Does the product with many tokens gather the shared columns by a kernel of their own?"""
    return sizes.m != 4 and not given and sizes.v == 0


def many_launch(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int) -> vnm_plan.Launch | None:
    """Return the launch for many tokens; None if its lists of columns don't fit into shared memory."""
    group = 4 if compacts(sizes, given) else sizes.m
    order = (not given and group == 4, not turned)
    device = x.get_device()
    return plan_many.many(
        sizes.tokens,
        sizes.rows,
        sizes.steps,
        sizes.v,
        group,
        order,
        ELEMENTS[x.dtype],
        activation,
        gpu.processors(device),
    )


def many_call(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call | None:
    """Return what a product with many tokens launches; None if x must be brought into order first."""
    rows, cols, v, m, tokens = sizes
    gathers, launch = compacts(sizes, given), many_launch(sizes, x, given, turned, activation)
    assert launch is not None
    group, wide = (4, sizes.steps * 64) if gathers else (m, cols)
    line = wide if gathers else lines_of(x, given)
    if line is None or given == launch.macros["X_TOKENS"] or (gathers and x.stride(1) != 1):
        return None
    result, source, out = result_of(x, rows, turned), 5 if gathers else _X, 6 if gathers else 5
    lead = max(result.strides)
    place: Box | bytes = _NO_MAP
    if launch.macros["OUT"]:
        place = Box(out, *((tokens, rows) if turned else (rows, tokens)), 2 * lead, launch.macros["BOX"])
    arguments = (
        Address(_VALUES), Address(_META), Address(_SHARED), Address(source), Address(out), Address(_BIAS), 0, 0, rows,
        wide, group, vnm_plan.sharing(v), tokens, sizes.steps, 2 * line, 2 * lead, *launch.tiles, launch.lines, place,
        _source(launch, source, wide, tokens, 2 * line),
    )  # fmt: skip
    product = calls.Launch(compiled(launch, device, f"{MANY} 128s 128s"), launch.grid, launch.threads, arguments)
    if not gathers:
        return Call((result,), (product,), (*_HELD, _X))
    return Call((compacted(sizes, x), result), (compact_launch(sizes, x, device, 5), product), _HELD)


def _source(launch: vnm_plan.Launch, source: int, wide: int, tokens: int, line: int) -> Box | bytes:
    """How the copy engine finds x, where it brings it; ``line`` in bytes."""
    if launch.macros["GATHER"]:
        return _NO_MAP
    if launch.macros["X_TOKENS"]:
        return Box(source, wide, tokens, line, launch.lines)
    return Box(source, tokens, wide, line, 64)
