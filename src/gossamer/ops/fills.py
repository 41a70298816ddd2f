"""einsum with a value other than 0 at positions that are not stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.compiler import Statement, interpret, parse
from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.design import NoKernelError
from gossamer.compiler.language.semiring import semiring
from gossamer.compiler.run.calls import plan_for
from gossamer.core.join import tracked
from gossamer.core.tensor import SparseTensor
from gossamer.formats import COO, Dense, Format
from gossamer.native import BuildError
from gossamer.ops import operands
from gossamer.ops.forms import is_traced, tell_dense

_HALF = (torch.float16, torch.bfloat16)


def filled(expression: str, tensors: Sequence[Tensor], out: Format | None, fill: float) -> Tensor:
    """Compute an expression over operands whose values are ``fill`` where nothing is stored; the result is dense.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR())
    >>> with gs.fallback("silent"):  # 1 has no loops: dense copies
    ...     filled("ij -> i", [a], None, 1.0)
    tensor([4., 5.])
    """
    if out is not None and not isinstance(out, Dense):
        raise ValueError(f"{expression!r}: a result with fill={fill} is dense, so it can't be in {out}")
    operands.check(expression, tensors)
    statement = parse(expression, [t.dim() for t in tensors])
    sizes = operands.sizes_of(expression, statement, tensors)
    dtype = tensors[0].dtype
    if not dtype.is_floating_point:
        raise TypeError(f"{expression!r}: fill={fill} needs floating-point operands, not {str(dtype)[6:]}")
    inner = semiring(statement, fill)
    sparse = [t for t in tensors if isinstance(t, SparseTensor)]
    walks = bool(sparse) and not any(t.structure.plain for t in sparse)  # a plain one has zeros where nothing is stored
    device = tensors[0].device
    why = _without_loops(inner, tensors, fill)
    if inner is not None and walks and why is None:
        compute = torch.float32 if dtype in _HALF else dtype
        inner, prepared = operands.prepare(inner, [_walked(t) for t in tensors], sizes, compute)
        try:
            plan = plan_for(inner, [p.arg() for p in prepared], sizes, compute, "dense", device)
            return plan([p.values for p in prepared])[0].to(dtype)
        except (BuildError, NoKernelError) as error:
            why = f"its kernel can't be built: {error}" if isinstance(error, BuildError) else str(error)
    if why is not None:
        tell_dense(tensors, why)
    return interpret(statement, [_dense(t, fill) for t in tensors])


def _without_loops(inner: Statement | None, tensors: Sequence[Tensor], fill: float) -> str | None:
    """Why an expression is not computed by loops over stored entries; None if it is."""
    device = tensors[0].device
    if inner is None:
        return f"fill={fill} has no loops in this expression: only inf with min: and -inf with max: have"
    if any(tracked(t) for t in tensors):
        return f"the gradient of an expression with fill={fill} has no kernel"
    if is_traced(tensors):
        return f"an expression with fill={fill} has no kernel in a trace or a transform"
    return None if device.type == "cpu" or gpu.on_gpu(device) else f"there are no kernels for {device.type}"


def _walked(tensor: Tensor) -> Tensor:
    """Return an operand whose loops visit what is stored alone: a place of a bitmap without an entry holds 0."""
    if isinstance(tensor, SparseTensor) and any(x.full and x.arrays for x in tensor.format.stack(tensor.dim())):
        return tensor.to_format(COO())
    return tensor


def _dense(tensor: Tensor, fill: float) -> Tensor:
    """A dense copy, with a gradient at what is stored."""
    return torch.where(tensor.mask(), tensor.to_dense(), fill) if isinstance(tensor, SparseTensor) else tensor
