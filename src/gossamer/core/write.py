"""Write to a sparse tensor, only at its stored positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.facts import WRITES
from gossamer.core.fallback import Copies
from gossamer.core.join import from_entries, gather
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format


class _Write(torch.autograd.Function):
    """Overwrite the values of a tensor; its gradient goes to what was written."""

    @staticmethod
    def forward(ctx: Any, target: SparseTensor, values: Tensor) -> SparseTensor:
        target._values.copy_(values)
        ctx.structure = target.structure
        ctx.mark_dirty(target)
        return target

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, gather(grad, ctx.structure)


class _Become(torch.autograd.Function):
    """Change a tensor into another one, of any shape."""

    @staticmethod
    def forward(ctx: Any, target: SparseTensor, result: SparseTensor) -> SparseTensor:
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.data.__set__(target, result)  # type: ignore[attr-defined]
        target._values = result._values
        target._set_structure(result.structure)
        ctx.mark_dirty(target)
        return target

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def write(target: SparseTensor, result: Tensor) -> SparseTensor:
    """Write a result to the stored positions of the target. A result with another shape also replaces the pattern."""
    if result.shape != target._dense_shape:
        return _Become.apply(target, _whole(result, target.format))
    if result.dtype != target._values.dtype and not torch.can_cast(result.dtype, target._values.dtype):
        raise RuntimeError(
            f"result type {str(result.dtype)[6:].capitalize()} can't be cast to the desired output type "
            f"{str(target._values.dtype)[6:].capitalize()}"
        )
    values = gather(result, target.structure)
    if torch.is_grad_enabled() and (target.requires_grad or values.requires_grad):
        return _Write.apply(target, values)
    target._values.copy_(values)
    return target


def _whole(result: Tensor, format: Format) -> Tensor:
    """Return a result in a format: a dense one with all its entries, since it has no pattern."""
    if isinstance(result, SparseTensor):
        return result.to_format(format)
    every = torch.arange(result.numel(), device=result.device)
    return from_entries(every, result.reshape(-1), result.shape, format)


def copy_(target: SparseTensor, source: Tensor, non_blocking: bool = False) -> SparseTensor:
    """Copy: a sparse source also replaces the pattern; a dense one fills the stored positions."""
    if source.shape != target._dense_shape:
        source = source.expand(target._dense_shape)
    if not isinstance(source, SparseTensor) or source.structure.same(target.structure) or torch.is_grad_enabled():
        return write(target, source.to(target._values.device))
    moved: SparseTensor = _whole(source.detach(), target.format)  # type: ignore[assignment]
    structure = moved.structure.to(target._values.device)
    target._values = moved._values.to(target._values, copy=True)
    target._set_structure(structure)
    return target


def write_back(name: str, out: Any, copies: Copies) -> Any:
    """Write what an operator wrote into dense copies of its arguments (running statistics, for instance) to them."""
    for tensor, copy in copies:
        written = not copy.is_inference() and copy._version > 0
        if not written and (name not in WRITES or copy.requires_grad):
            continue
        with torch.no_grad():
            if name == "__setitem__":
                _check_assigned(tensor, copy)
            if not torch.equal(gather(copy, tensor.structure), tensor._values):
                write(tensor, copy.detach())
        out = tensor if out is copy else out
    return out


def _check_assigned(tensor: SparseTensor, copy: Tensor) -> None:
    """Raise IndexError if an assignment put something other than 0 where nothing is stored."""
    if bool(((copy.detach() != 0) & ~tensor.mask()).any()):
        raise not_stored(tensor)


def not_stored(tensor: SparseTensor) -> IndexError:
    """Return the error of an assignment to a position that is not stored."""
    return IndexError(
        "the assignment needs a position that is not stored, and it writes stored positions only. Assign to a dense "
        f"copy instead: x = t.to_dense(); x[...] = value; t = gs.from_dense(x, {tensor.format})"
    )
