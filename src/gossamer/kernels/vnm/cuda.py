"""Packed V:N:M on a GPU: checks, and the calls of what :mod:`gossamer.kernels.vnm.plan` chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, MOST_LINE
from gossamer.kernels.product import activated, matrix_of_tokens
from gossamer.kernels.transpose import transpose
from gossamer.kernels.vnm import operators as vnm_kernels
from gossamer.kernels.vnm import plan as vnm_plan
from gossamer.kernels.vnm import products
from gossamer.kernels.vnm.operators import _library, empty_result, feature_major
from gossamer.kernels.vnm.products import Sizes, complain_of_sizes, kernel
from gossamer.native.cuda import calls, usable
from gossamer.native.cuda.calls import Call

_without_python = calls.library() is not None
_MOST = 4096  # kinds of calls; a server sees every number of tokens: forget all when there are too many
_known: dict[tuple[Any, ...], Kind] = {}


class Kind(NamedTuple):
    """What is known of calls with operands of a kind."""

    plan: str
    call: Call | None  # None: operands must be brought into order first, or there is no kernel


def linear(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int, turned: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return act(x @ A.T + bias) for x [..., cols].

    In the order of x; or, if ``turned`` is given, feature-major or token-major by it.
    """
    if turned is None and _without_python:  # half of the CPU time
        out: Tensor = torch.ops.gossamer.vnm_forward.default(
            values, shared, meta, x, bias, rows, cols, v, m, activation
        )
        return out
    out = product(values, shared, meta, matrix_of_tokens(x), bias, rows, cols, v, m, activation, turned)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], rows)


def product(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int, v: int, m: int,
    activation: int, turned: bool | None = None,
) -> Tensor:  # fmt: skip
    """As :func:`linear`, by Python, for a matrix x."""
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
        tokens = matrix_of_tokens(x)
        out = product(values, shared, meta, tokens, bias, rows, cols, v, m, activation)
        kind = _kind_of(values, tokens, bias, (rows, cols, v, m, activation, None))
        if kind.call is not None:
            call = kind.call if x.dim() == 2 else gpu.for_more_dimensions(kind.call, x, tokens)
            if call is not None:
                calls.remember(call, values.get_device())
    except Exception as error:
        if not calls.refuse(str(error)):
            raise
        return x.new_empty(0)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], rows)


def _kind_of(values: Tensor, x: Tensor, bias: Tensor | None, rest: tuple[Any, ...]) -> Kind:
    """Return what is known of calls like this one; ``rest``: rows, cols, v, m, activation, feature-major."""
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
        return product(values, shared, meta, x, bias.contiguous(), *weight, turned)
    if any(tensor.data_ptr() & 15 for tensor in (values, shared, meta)):  # bulk copies start at multiples of 16 bytes
        return product(values.clone(), shared.clone(), meta.clone(), x, bias, *weight, turned)
    if plan in ("few", "some"):
        out = product(values, shared, meta, _token_lines(x), bias, *weight, False)
        return empty_result(x, sizes.rows, turned).copy_(out) if turned and sizes.tokens > 1 else out
    x = _token_lines(x) if not feature_major(x) and sizes.v == 0 else _feature_lines(x)
    return product(values, shared, meta, x, bias, *weight, turned)


def _complain(values: Tensor, x: Tensor, bias: Tensor | None, rows: int, cols: int) -> None:
    """Say what is wrong with the operands, if anything is."""
    tensors = (x, values) if bias is None else (x, values, bias)
    if any(t.dtype is not values.dtype for t in tensors):
        given = ", ".join(str(t.dtype) for t in tensors)
        raise RuntimeError(f"expected input, weight and bias of one dtype, got {given}")
    complain_of_sizes(values, x, bias, rows, cols)


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
            sizes.tokens, rows, half, v, m, gpu.capability(device), gpu.processors(device), token_major
        )
    if not (sizes.steps or plan == "any") or (
        plan == "many" and products.many_launch(sizes, x, given, turned, activation) is None
    ):
        plan = "dense"
    make = {
        "few": products.few_call,
        "some": products.some_call,
        "many": products.many_call,
        "any": products.any_call,
    }.get(plan)
    if make is None or not (bias is None or bias.is_contiguous()):
        return Kind(plan, None)
    return Kind(plan, make(sizes, x, given, turned, activation, device))


def _token_lines(x: Tensor) -> Tensor:
    """Return x token-major, lines at multiples of 16 bytes."""
    if not feature_major(x) and products.lines_of(x, False) is not None and x.data_ptr() % 16 == 0:
        return x
    padded = x.new_empty((x.shape[0], -(-x.shape[1] // 8) * 8))
    return padded[:, : x.shape[1]].copy_(x)


def _feature_lines(x: Tensor) -> Tensor:
    """Return x feature-major, lines at multiples of 16 bytes."""
    if feature_major(x) and products.lines_of(x, True) is not None and x.data_ptr() % 16 == 0:
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
        return activated(F.linear(x, dense, bias), activation)
    out = dense @ x.t() if bias is None else torch.addmm(bias[:, None], dense, x.t())
    return empty_result(x, rows, turned).copy_(activated(out, activation).t())


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
if not _without_python:
    _library.impl("vnm_linear", product, "CUDA")
    _library.impl("vnm_forward", product, "CUDA")
_library.impl("vnm_decode", decode, "CUDA")
_library.impl("vnm_sample", sample, "CUDA")
