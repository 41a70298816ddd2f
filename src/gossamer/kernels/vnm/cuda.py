"""Packed V:N:M on a GPU: checks, and the calls of what :mod:`gossamer.kernels.vnm.plan` chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels.gpu import ELEMENTS, MOST_LINE, capability, processors
from gossamer.kernels.transpose import transpose
from gossamer.kernels.vnm import operators as vnm_kernels
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import plan_many
from gossamer.kernels.vnm.operators import ACTIVATIONS, _library, empty_result, feature_major
from gossamer.native.cuda import Function, calls, function, usable
from gossamer.native.cuda.calls import Address, Box, Buffer, Call

_VNM = "PPPqqqqq"
FEW = "PPPPPPPPPiiiiiiii"  # what few takes: pointers, then sizes; lines are counted in bytes
MANY = "PPPPPPPPiiiiiiiiiii"  # some and many
_KERNELS = {  # source and parameters of the plain ones
    "vnm_any": ("vnm_any.cu", "PPPPPPqqqqqqqqqqq"),
    "vnm_decode": ("vnm_decode.cu", f"{_VNM} P q"),
    "vnm_sample": ("vnm_decode.cu", f"{_VNM} P q P"),
    "vnm_compact": ("vnm_compact.cu", "P q P P q q q q"),
}
_NO_MAP = bytes(128)
_VALUES, _SHARED, _META, _X, _BIAS = range(5)  # the tensors of a call; then its buffers
_HELD = (_VALUES, _SHARED, _META)
_MOST = 4096  # kinds of calls; a server sees every number of tokens: forget all when there are too many
_ready: dict[tuple[str, int, int], Function] = {}
_known: dict[tuple[Any, ...], Kind] = {}


class Kind(NamedTuple):
    """What is known of calls with operands of a kind."""

    plan: str
    call: Call | None  # None: operands must be brought into order first, or there is no kernel


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
        chained = capability(device) >= (9, 0)
        made = function(source, name, device, parameters, chained=chained, ELEMENT=element)
        found = _ready[name, device, element] = made
    return found


def linear(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int, turned: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return act(x @ A.T + bias), in the order of x; or, if ``turned`` is given, feature-major or token-major by it."""
    kind = _kind_of(values, x, bias, (rows, cols, v, m, activation, turned))
    if kind.call is not None:
        tensors = (values, shared, meta, x, bias)
        if kind.call.fits(tensors):
            return kind.call(*tensors)
    return _in_order(values, shared, meta, x, bias, Sizes(rows, cols, v, m, x.shape[0]), activation, turned, kind.plan)


def slow(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int,
) -> Tensor:  # fmt: skip
    """As :func:`linear`, for ``launch.cpp``, which goes without it when operands of the same kind come again."""
    try:
        out = linear(values, shared, meta, x, bias, rows, cols, v, m, activation)
        kind = _kind_of(values, x, bias, (rows, cols, v, m, activation, None))
        if kind.call is not None:
            calls.remember(kind.call, values.get_device())
    except Exception as error:
        if not calls.refuse(str(error)):
            raise
        return x.new_empty(0)
    return out


def _kind_of(values: Tensor, x: Tensor, bias: Tensor | None, rest: tuple[Any, ...]) -> Kind:
    """Return what is known of calls like this one; ``rest``: rows, cols, v, m, activation, turned."""
    added = None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.get_device())
    key = (x.shape, x.stride(), x.dtype, values.dtype, values.get_device(), x.get_device(), added, rest)
    kind = _known.get(key)
    if kind is None:
        if len(_known) >= _MOST:
            _known.clear()
        kind = _known[key] = _decide(values, x, bias, *rest)
    return kind


def _in_order(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, sizes: Sizes, activation: int,
    turned: bool | None, plan: str,
) -> Tensor:  # fmt: skip
    """Return the product where operands must be brought into order first, or where there is no kernel for it."""
    turned = feature_major(x) if turned is None else turned
    weight = (*sizes[:4], activation)
    if plan == "nothing":
        return empty_result(x, sizes.rows, turned)
    if plan == "dense":
        return _dense(values, shared, meta, x, bias, *weight, turned)
    if bias is not None and not bias.is_contiguous():
        return linear(values, shared, meta, x, bias.contiguous(), *weight, turned)
    if any(tensor.data_ptr() & 15 for tensor in (values, shared, meta)):  # bulk copies start at multiples of 16 bytes
        return linear(values.clone(), shared.clone(), meta.clone(), x, bias, *weight, turned)
    if plan in ("few", "some"):
        out = linear(values, shared, meta, _token_lines(x), bias, *weight, False)
        return empty_result(x, sizes.rows, turned).copy_(out) if turned and sizes.tokens > 1 else out
    x = _token_lines(x) if not feature_major(x) and sizes.v == 0 else _feature_lines(x)
    return linear(values, shared, meta, x, bias, *weight, turned)


def _complain(values: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int) -> None:
    """Say what is wrong with the operands, if anything is."""
    tensors = (x, values) if bias is None else (x, values, bias)
    if any(t.dtype is not values.dtype for t in tensors):
        given = ", ".join(str(t.dtype) for t in tensors)
        raise RuntimeError(f"expected input, weight and bias of one dtype, got {given}")
    complain_of_sizes(values, x, bias, rows, cols)


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


def _decide(
    values: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int, activation: int,
    asked: bool | None,
) -> Kind:  # fmt: skip
    """Decide what calls with operands of a kind that was not seen before launch, and compile what that needs."""
    _complain(values, x, bias, rows, cols)
    given = feature_major(x)
    turned = given if asked is None else asked
    sizes, dtype, device = Sizes(rows, cols, v, m, x.shape[0]), x.dtype, values.get_device()
    if not (sizes.tokens and rows):
        return Kind("nothing", None)
    plan = "dense"
    if usable() and dtype in ELEMENTS and 2 * max(sizes.tokens, rows, cols) < MOST_LINE:
        half, token_major = dtype in (torch.float16, torch.bfloat16), not given and not turned
        plan = vnm_plan.choose(
            sizes.tokens, rows, half, v, capability(device), processors(device), token_major
        )
    if not (sizes.steps or plan == "any") or (plan == "many" and _tiles(sizes, x, given, turned, activation) is None):
        plan = "dense"
    make = {"few": _few, "some": _some, "many": _many, "any": _any}.get(plan)
    if make is None or not (bias is None or bias.is_contiguous()):
        return Kind(plan, None)
    return Kind(plan, make(sizes, x, given, turned, activation, device))


def _lines(x: Tensor, given: bool) -> int | None:
    """Elements from one line of x to the next, if a kernel can read it as it lies; ``given``: feature-major."""
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


def _any(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call:
    rows, cols, v, m, tokens = sizes
    launch = vnm_plan.plain(tokens, rows)
    out = _result(x, rows, turned)
    arguments = (
        Address(_VALUES), Address(_META), Address(_SHARED), Address(_X), Address(5), Address(_BIAS), rows, cols, m, v,
        tokens, sizes.steps, *x.stride(), *out.strides, activation,
    )  # fmt: skip
    run = kernel(launch.name, device, ELEMENTS[x.dtype])
    return Call((out,), (calls.Launch(run, launch.grid, launch.threads, arguments),))


def _result(x: Tensor, rows: int, turned: bool) -> Buffer:
    tokens = x.shape[0]
    lead = -(-tokens // 8) * 8 if turned else rows
    return Buffer((tokens, rows), (1, lead) if turned else (lead, 1), x.dtype)


def _few(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call | None:
    rows, cols, v, m, tokens = sizes
    line = _lines(x, given)
    if given or turned or line is None:
        return None
    launch = vnm_plan.few(
        min(tokens, vnm_plan.FEW_LAUNCH), rows, cols, v, m, capability(device), ELEMENTS[x.dtype], activation,
        processors(device),
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
    return Call((_result(x, rows, False),), tuple(launches), (*_HELD, _X))


def _compact(sizes: Sizes, x: Tensor, device: int, to: int) -> calls.Launch:
    """Shared columns side by side: the launch before a product, into tensor number ``to``."""
    run = kernel("vnm_compact", device, ELEMENTS[x.dtype])
    arguments = (
        Address(_X), x.stride(0), Address(_SHARED), Address(to), sizes.tokens, sizes.cols, sizes.m, sizes.steps
    )  # fmt: skip
    return calls.Launch(run, (-(-sizes.tokens * sizes.steps * 8 // 256), 1, 1), 256, arguments)


def _some(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call | None:
    rows, cols, _, m, tokens = sizes
    compacts = m != 4
    line = 64 * sizes.steps if compacts else _lines(x, given)
    if line is None or (compacts and x.stride(1) != 1):
        return None
    launch = vnm_plan.some(
        tokens, rows, sizes.steps, ELEMENTS[x.dtype], activation, processors(device), ahead=compacts
    )
    source, wide = (5, line) if compacts else (_X, cols)
    out = 6 if compacts else 5
    arguments = (
        Address(_VALUES), Address(_META), 0, Address(source), Address(out), Address(_BIAS), 0, 0, rows, wide, 4,
        vnm_plan.sharing(0), tokens, sizes.steps, 2 * line, 2 * rows, *launch.tiles, launch.lines,
        Box(source, wide, tokens, 2 * line, launch.lines),
    )  # fmt: skip
    product = calls.Launch(compiled(launch, device, f"{MANY} 128s"), launch.grid, launch.threads, arguments)
    result = _result(x, rows, False)
    if not compacts:
        return Call((result,), (product,), (*_HELD, _X))
    return Call((_compacted(sizes, x), result), (_compact(sizes, x, device, 5), product), _HELD)


def _compacted(sizes: Sizes, x: Tensor) -> Buffer:
    return Buffer((sizes.tokens, sizes.steps * 64), (sizes.steps * 64, 1), x.dtype)


def _compacts(sizes: Sizes, given: bool) -> bool:
    """Does the product with many tokens gather the shared columns by a kernel of their own?"""
    return sizes.m != 4 and not given and sizes.v == 0


def _tiles(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int) -> vnm_plan.Launch | None:
    """Return the launch for many tokens; None if its lists of columns don't fit into shared memory."""
    group = 4 if _compacts(sizes, given) else sizes.m
    order = (not given and group == 4, not turned)
    device = x.get_device()
    return plan_many.many(
        sizes.tokens, sizes.rows, sizes.steps, sizes.v, group, order, ELEMENTS[x.dtype], activation, processors(device)
    )


def _many(sizes: Sizes, x: Tensor, given: bool, turned: bool, activation: int, device: int) -> Call | None:
    rows, cols, v, m, tokens = sizes
    compacts, launch = _compacts(sizes, given), _tiles(sizes, x, given, turned, activation)
    assert launch is not None
    group, wide = (4, sizes.steps * 64) if compacts else (m, cols)
    line = wide if compacts else _lines(x, given)
    if line is None or given == launch.macros["X_TOKENS"] or (compacts and x.stride(1) != 1):
        return None
    result, source, out = _result(x, rows, turned), 5 if compacts else _X, 6 if compacts else 5
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
    if not compacts:
        return Call((result,), (product,), (*_HELD, _X))
    return Call((_compacted(sizes, x), result), (_compact(sizes, x, device, 5), product), _HELD)


def _source(launch: vnm_plan.Launch, source: int, wide: int, tokens: int, line: int) -> Box | bytes:
    """How the copy engine finds x, where it brings it; ``line`` in bytes."""
    if launch.macros["GATHER"]:
        return _NO_MAP
    if launch.macros["X_TOKENS"]:
        return Box(source, wide, tokens, line, launch.lines)
    return Box(source, tokens, wide, line, 64)


def _token_lines(x: Tensor) -> Tensor:
    """Return x token-major, lines at multiples of 16 bytes."""
    if not feature_major(x) and _lines(x, False) is not None and x.data_ptr() % 16 == 0:
        return x
    padded = x.new_empty((x.shape[0], -(-x.shape[1] // 8) * 8))
    return padded[:, : x.shape[1]].copy_(x)


def _feature_lines(x: Tensor) -> Tensor:
    """Return x feature-major, lines at multiples of 16 bytes."""
    if feature_major(x) and _lines(x, True) is not None and x.data_ptr() % 16 == 0:
        return x
    if x.stride(1) == 1:
        return transpose(x).t()
    padded = x.new_empty((x.shape[1], -(-x.shape[0] // 8) * 8))
    return padded[:, : x.shape[0]].copy_(x.t()).t()


def _dense(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int, turned: bool,
) -> Tensor:  # fmt: skip
    dense = decode(values, shared, meta, rows, cols, v, m)
    if not turned:
        return ACTIVATIONS[activation](F.linear(x, dense, bias))
    out = dense @ x.t() if bias is None else torch.addmm(bias[:, None], dense, x.t())
    return empty_result(x, rows, turned).copy_(ACTIVATIONS[activation](out).t())


def decode(values: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> Tensor:
    """Return the dense matrix."""
    if values.dtype not in ELEMENTS or not usable():
        return vnm_kernels.decode(values, shared, meta, rows, cols, v, m)
    dense = values.new_zeros((rows, cols))
    groups = -(-cols // m)
    if dense.numel():
        arguments = _arguments(values.contiguous(), shared, meta, rows, cols, v, m)
        run = kernel("vnm_decode", values.get_device(), ELEMENTS[values.dtype])
        run((-(-rows * groups // 256), 1, 1), 256, *arguments, dense.data_ptr(), groups)
    return dense


def sample(dense: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> Tensor:
    """Return the values at the places of a packed matrix."""
    if dense.dtype not in ELEMENTS or not usable():
        return vnm_kernels.sample(dense, shared, meta, rows, cols, v, m)
    dense = dense.contiguous()
    values = dense.new_zeros(meta.numel() * 16)
    groups = -(-cols // m)
    if dense.numel():
        arguments = _arguments(values, shared, meta, rows, cols, v, m)
        run = kernel("vnm_sample", dense.get_device(), ELEMENTS[dense.dtype])
        run((-(-rows * groups // 256), 1, 1), 256, *arguments, dense.data_ptr(), groups, values.data_ptr())
    return values


def _arguments(values: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> tuple[Any, ...]:
    steps = -(-cols // (16 * m))
    return values.data_ptr(), meta.data_ptr(), shared.data_ptr(), rows, cols, steps, v, m


_library.impl("vnm_linear_slow", slow, "CUDA")
if calls.library() is None:
    _library.impl("vnm_linear", linear, "CUDA")
    _library.impl("vnm_forward", linear, "CUDA")
_library.impl("vnm_decode", decode, "CUDA")
_library.impl("vnm_sample", sample, "CUDA")
