"""Packed V:N:M on a GPU: checks, and the launches of what :mod:`gossamer.kernels.vnm.plan` chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels.transpose import transpose
from gossamer.kernels.vnm import operators as vnm_kernels
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm.operators import ACTIVATIONS, _library, empty_result, feature_major
from gossamer.native.cuda import Function, function, tensor_map, usable

ELEMENTS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_VNM = "PPPqqqqq"
_PROBLEM = "PPPPPPiiiiiiiiii"  # what few and many take: pointers, then sizes; lines are counted in bytes
_MAPPED = f"{_PROBLEM} 128s 128s"  # many: and how the copy engine finds the result and x
_UNMAPPED = bytes(128)
_KERNELS = {  # source and parameters of the plain ones
    "vnm_any": ("vnm_any.cu", "PPPPPPqqqqqqqqqqq"),
    "vnm_decode": ("vnm_decode.cu", f"{_VNM} P q"),
    "vnm_sample": ("vnm_decode.cu", f"{_VNM} P q P"),
    "vnm_compact": ("vnm_compact.cu", "P q P P q q q q"),
}
_LINE = 2**31  # bytes from one line to the next that the kernels can count
_ready: dict[tuple[str, int, int], Function] = {}
_capability: dict[int, tuple[int, int]] = {}
_processors: dict[int, int] = {}


class Chosen(NamedTuple):
    """The plan of a call, and what is known of its launches; kept for calls with operands of the same kind."""

    plan: str
    run: Function | None = None
    launch: vnm_plan.Launch | None = None
    sizes: tuple[int, ...] = ()  # rows, cols, m, v, tokens, steps of the kernel's problem
    direct: bool = False  # x can be read as it lies, so that all else is known: one launch of
    rest: tuple[int, ...] = ()  # sizes, lines, tiles; into a result of
    shape: tuple[int, int] = (0, 0)
    strides: tuple[int, int] = (0, 0)
    place: tuple[int, int, int, int] | None = None  # of the result's tensor map
    source: tuple[int, int, int, int] | None = None  # of that of x, where the copy engine brings it
    compact: Function | None = None  # a launch before that one, for the shared columns of x
    compacted: tuple[int, ...] = ()  # what it takes: tokens, cols, m, steps
    align: int = 15  # bits of addresses that must be zero


_chosen: dict[tuple[Any, ...], Chosen] = {}
_MOST_CHOSEN = 4096  # a server sees every number of tokens: forget all when there are too many


def kernel(name: str, device: int, element: int) -> Function:
    """Return a plain kernel for elements of a type, on a device."""
    found = _ready.get((name, device, element))
    if found is None:
        source, parameters = _KERNELS[name]
        chained = capability(device) >= (9, 0)
        made = function(source, name, device, parameters, chained=chained, ELEMENT=element)
        found = _ready[name, device, element] = made
    return found


def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a device, as torch says it."""
    found = _capability.get(device)
    if found is None:
        found = _capability[device] = torch.cuda.get_device_capability(device)
    return found


def processors(device: int) -> int:
    """Return how many multiprocessors a device has."""
    found = _processors.get(device)
    if found is None:
        found = _processors[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return found


def linear(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int, turned: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return act(x @ A.T + bias), in the order of x; or, if ``turned`` is given, feature-major or token-major by it."""
    device = values.get_device()
    added = None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.get_device())
    key = (
        rows, cols, v, m, x.shape, x.stride(), x.dtype, values.dtype, device, x.get_device(), added, activation, turned,
    )  # fmt: skip
    chosen = _chosen.get(key) or _choose(key, values, x, bias)
    if chosen.direct:  # all Python that such a call needs: 15 us are little
        held = values.data_ptr(), meta.data_ptr(), shared.data_ptr(), x.data_ptr()
        if not (held[0] | held[1] | held[2] | held[3]) & chosen.align:
            run, launch = chosen.run, chosen.launch
            assert run is not None and launch is not None
            out = x.new_empty_strided(chosen.shape, chosen.strides)
            to, shift = out.data_ptr(), 0 if bias is None else bias.data_ptr()
            if chosen.compact is not None:
                x = _compacted(chosen.compact, x, held[2], *chosen.compacted)
                held = (held[0], held[1], held[2], x.data_ptr())
            if chosen.place is None:
                run(launch.grid, launch.threads, *held, to, shift, *chosen.rest)
            else:
                source = _UNMAPPED if chosen.source is None else tensor_map(held[3], *chosen.source)
                run(launch.grid, launch.threads, *held, to, shift, *chosen.rest, tensor_map(to, *chosen.place), source)
            return out
    return _prepared(values, shared, meta, x, bias, rows, cols, v, m, activation, turned, chosen)


def _prepared(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int, turned: bool | None, chosen: Chosen,
) -> Tensor:  # fmt: skip
    """Return the product where operands must be brought into order first, or where there is no kernel for it."""
    turned = feature_major(x) if turned is None else turned
    bias = None if bias is None else bias.contiguous()
    if chosen.plan == "nothing":
        return empty_result(x, rows, turned)
    if chosen.plan == "any":  # with a bias that had to be brought into order
        return linear(values, shared, meta, x, bias, rows, cols, v, m, activation, turned)
    if chosen.launch is not None:
        held = (values.data_ptr(), meta.data_ptr(), shared.data_ptr())
        if (held[0] | held[1] | held[2]) & 15:  # bulk copies start at multiples of 16 bytes
            values, shared, meta = values.clone(), shared.clone(), meta.clone()
            held = (values.data_ptr(), meta.data_ptr(), shared.data_ptr())
        if chosen.plan == "few":
            return _few(held, x, bias, turned, chosen)
        return _many(held, shared, x, bias, turned, m, chosen)
    return _dense(values, shared, meta, x, bias, rows, cols, v, m, activation, turned)


def _complain(values: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int) -> None:
    """Say what is wrong with the operands, if anything is."""
    tensors = (x, values) if bias is None else (x, values, bias)
    if any(t.dtype is not values.dtype for t in tensors):
        given = ", ".join(str(t.dtype) for t in tensors)
        raise RuntimeError(f"expected input, weight and bias of one dtype, got {given}")
    if any(t.device != values.device for t in tensors):
        given = ", ".join(str(t.device) for t in tensors)
        raise RuntimeError(f"expected input, weight and bias on one device, got {given}")
    if x.dim() != 2 or x.shape[1] != cols or (bias is not None and bias.shape != (rows,)):
        raise RuntimeError(
            f"a weight of {rows} x {cols} takes an input of tokens x {cols} and a bias of {rows}, not an input of "
            f"{tuple(x.shape)}" + ("" if bias is None else f" and a bias of {tuple(bias.shape)}")
        )


def _choose(key: tuple[Any, ...], values: Tensor, x: Tensor, bias: Tensor | None) -> Chosen:
    """Choose a plan for operands of a kind that was not seen before, and compile what it needs."""
    rows, cols, v, m, *_, activation, asked = key
    _complain(values, x, bias, rows, cols)
    given = feature_major(x)
    turned = given if asked is None else asked
    tokens, dtype, device = x.shape[0], x.dtype, values.get_device()
    half, steps = dtype in (torch.float16, torch.bfloat16), -(-cols // (16 * m))
    plan = vnm_plan.choose(tokens, half, v, capability(device)) if usable() else "dense"
    if dtype not in ELEMENTS or 2 * max(tokens, rows, cols) >= _LINE or not (steps or plan == "any"):
        plan = "dense"
    if not (tokens and rows):
        plan = "nothing"
    if plan == "few":
        count = min(tokens, vnm_plan.FEW_LAUNCH)
        launch: vnm_plan.Launch | None = vnm_plan.few(
            count, rows, cols, v, m, capability(device), ELEMENTS[dtype], activation, processors(device)
        )
        sizes = (rows, cols, m, vnm_plan.sharing(v), tokens, steps)
    elif plan == "many":
        inside = (4, steps * 64) if m != 4 and not given and v == 0 else (m, cols)  # of compacted activations
        order = (not given and inside[0] == 4, not turned)
        launch = vnm_plan.many(
            tokens, rows, steps, v, inside[0], order, ELEMENTS[dtype], activation, processors(device)
        )
        sizes = (rows, inside[1], inside[0], vnm_plan.sharing(v), tokens, steps)
        plan = plan if launch is not None else "dense"
    elif plan == "any":
        launch = vnm_plan.plain(tokens, rows)
        sizes = (rows, cols, m, v, tokens, steps)
    else:
        launch = None
    chosen = Chosen(plan)
    if launch is not None:
        chosen = Chosen(plan, _function(plan, launch, device, ELEMENTS[dtype]), launch, sizes)
        chosen = _known(chosen, x, bias, m, given, turned, activation)
    if len(_chosen) >= _MOST_CHOSEN:
        _chosen.clear()
    _chosen[key] = chosen
    return chosen


def _function(plan: str, launch: vnm_plan.Launch, device: int, element: int) -> Function:
    if plan == "any":
        return kernel(launch.name, device, element)
    parameters = _MAPPED if plan == "many" else _PROBLEM
    return function(
        launch.source, launch.name, device, parameters, shared=launch.shared, chained=launch.chained, **launch.macros
    )


def _known(
    chosen: Chosen, x: Tensor, bias: Tensor | None, m: int, given: bool, turned: bool, activation: int
) -> Chosen:
    """Return a plan with all that is known of its calls, if x can be read as it lies."""
    (rows, wide, group, _, tokens, steps), launch = chosen.sizes, chosen.launch
    assert launch is not None
    compacts = group != m
    lead = -(-tokens // 8) * 8 if turned else rows
    strides = (1, lead) if turned else (lead, 1)
    line, long = (x.stride(1), tokens) if given else (x.stride(0), x.shape[1])
    fits = x.stride(0 if given else 1) == 1 and (compacts or (line % 8 == 0 and line >= long and 2 * line < _LINE))
    if chosen.plan == "any":
        fits = True
    elif chosen.plan == "few":
        fits = fits and not given and not turned and tokens <= vnm_plan.FEW_LAUNCH
    else:
        fits = fits and given != launch.macros["X_TOKENS"] and launch.macros["OUT"] > 0
    if not fits or (bias is not None and not bias.is_contiguous()):
        return chosen
    if compacts:
        line = wide
        run = kernel("vnm_compact", x.get_device(), ELEMENTS[x.dtype])
        chosen = chosen._replace(compact=run, compacted=(tokens, x.shape[1], m, steps))
    chosen = chosen._replace(direct=True, shape=(tokens, rows), strides=strides)
    if chosen.plan == "any":
        return chosen._replace(rest=(*chosen.sizes, *x.stride(), *strides, activation), align=0)
    return chosen._replace(
        rest=(*chosen.sizes, 2 * line, 2 * lead, *launch.tiles),
        place=_place(launch, tokens, rows, 2 * lead, turned) if chosen.plan == "many" else None,
        source=_source(chosen, 2 * line),
    )


def _place(launch: vnm_plan.Launch, tokens: int, rows: int, line: int, turned: bool) -> tuple[int, int, int, int]:
    """Return what the tensor map of the result is made of, beside its address; ``line`` in bytes."""
    return (*((tokens, rows) if turned else (rows, tokens)), line, launch.macros["BOX"])


def _source(chosen: Chosen, line: int) -> tuple[int, int, int, int] | None:
    """Return what the tensor map of x is made of, beside its address, if there is one; ``line`` in bytes."""
    (_, cols, _, _, tokens, _), launch = chosen.sizes, chosen.launch
    if chosen.plan != "many" or launch is None or launch.macros["GATHER"]:
        return None
    if launch.macros["X_TOKENS"]:
        return cols, tokens, line, launch.broad
    return tokens, cols, line, 64


def _aligned(x: Tensor, line: int) -> bool:
    """Can a kernel read x by 16 bytes? ``line``: elements from one line to the next."""
    return x.data_ptr() % 16 == 0 and line % 8 == 0 and line * 2 < _LINE


def _token_lines(x: Tensor) -> Tensor:
    """Return x token-major, lines at multiples of 16 bytes."""
    if x.stride(1) == 1 and _aligned(x, x.stride(0)) and (x.stride(0) >= x.shape[1] or x.shape[0] == 1):
        return x
    padded = x.new_empty((x.shape[0], -(-x.shape[1] // 8) * 8))
    return padded[:, : x.shape[1]].copy_(x)


def _feature_lines(x: Tensor) -> Tensor:
    """Return x feature-major, lines at multiples of 16 bytes."""
    if feature_major(x) and _aligned(x, x.stride(1)) and x.stride(1) >= x.shape[0]:
        return x
    if x.stride(1) == 1:
        return transpose(x).t()
    padded = x.new_empty((x.shape[1], -(-x.shape[0] // 8) * 8))
    return padded[:, : x.shape[0]].copy_(x.t()).t()


def _few(held: tuple[int, ...], x: Tensor, bias: Tensor | None, turned: bool, chosen: Chosen) -> Tensor:
    (rows, cols, *sizes, tokens, steps), launch, run = chosen.sizes, chosen.launch, chosen.run
    assert launch is not None and run is not None
    line, result, at = 2 * cols, 2 * rows, x.data_ptr()
    if line & 15 or at & 15 or not x.is_contiguous():
        x = _token_lines(x)
        line, at = 2 * x.stride(0), x.data_ptr()
    out = x.new_empty((tokens, rows))
    shift, to = 0 if bias is None else bias.data_ptr(), out.data_ptr()
    for start in range(0, tokens, vnm_plan.FEW_LAUNCH):
        count = min(tokens - start, vnm_plan.FEW_LAUNCH)
        ends = (at + start * line, to + start * result, shift)
        run(launch.grid, launch.threads, *held, *ends, rows, cols, *sizes, count, steps, line, result, 0, 0)
    return empty_result(x, rows, turned).copy_(out) if turned and tokens > 1 else out


def _many(
    held: tuple[int, ...], shared: Tensor, x: Tensor, bias: Tensor | None, turned: bool, m: int, chosen: Chosen
) -> Tensor:
    (rows, _, group, *_), launch, run = chosen.sizes, chosen.launch, chosen.run
    assert launch is not None and run is not None
    out = empty_result(x, rows, turned)
    result = out.stride(1) if turned else out.stride(0)
    if launch.macros["X_TOKENS"]:
        x = _token_lines(x if group == m else compact(x, shared, m))
        line = x.stride(0)
    else:
        x = _feature_lines(x)
        line = x.stride(1)
    to, tokens = out.data_ptr(), x.shape[0]
    ends = (x.data_ptr(), to, 0 if bias is None else bias.data_ptr())
    place = _UNMAPPED
    if launch.macros["OUT"]:
        place = tensor_map(to, *_place(launch, tokens, rows, 2 * result, turned))
    source = _source(chosen, 2 * line)
    where = _UNMAPPED if source is None else tensor_map(ends[0], *source)
    run(launch.grid, launch.threads, *held, *ends, *chosen.sizes, 2 * line, 2 * result, *launch.tiles, place, where)
    return out


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


def compact(x: Tensor, shared: Tensor, m: int) -> Tensor:
    """Return the shared columns of activations side by side, token-major, for v = "all"."""
    x = x if x.stride(1) == 1 else x.contiguous()
    run = kernel("vnm_compact", x.get_device(), ELEMENTS[x.dtype])
    tokens, cols = x.shape
    return _compacted(run, x, shared.data_ptr(), tokens, cols, m, shared.numel() // 64)


def _compacted(run: Function, x: Tensor, shared: int, tokens: int, cols: int, m: int, steps: int) -> Tensor:
    out = x.new_empty_strided((tokens, steps * 64), (steps * 64, 1))
    grid = (-(-tokens * steps * 8 // 256), 1, 1)
    run(grid, 256, x.data_ptr(), x.stride(0), shared, out.data_ptr(), tokens, cols, m, steps)
    return out


def _arguments(values: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> tuple[Any, ...]:
    steps = -(-cols // (16 * m))
    return values.data_ptr(), meta.data_ptr(), shared.data_ptr(), rows, cols, steps, v, m


_library.impl("vnm_linear", linear, "CUDA")
_library.impl("vnm_decode", decode, "CUDA")
_library.impl("vnm_sample", sample, "CUDA")
