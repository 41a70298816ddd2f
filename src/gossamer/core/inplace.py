"""In place: an operator writes to the stored positions of its target, and only there.

This is what keeps a model sparse while it trains: ``weight.add_(update)`` gives torch's dense result at every stored
position and leaves the others zero, whatever the format of the update. Operators that are not in place never drop a
value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core import dispatch
from gossamer.core.facts import INPLACE
from gossamer.core.fallback import Copies, announce, densify, sparse_leaves
from gossamer.core.lists import keeps_zeros
from gossamer.core.table import Operator
from gossamer.core.tensor import SparseTensor, build, from_entries, gather, mask_padding
from gossamer.formats import Format

#: In-place operators that fill a tensor, whatever it held.
FILLS = {"zero", "fill", "normal", "uniform", "exponential", "random", "bernoulli", "cauchy", "geometric", "log_normal"}


#: In-place operators whose result may have another shape.
RESHAPING = {"t", "transpose", "squeeze", "unsqueeze", "as_strided", "resize", "resize_as"}
#: Operators that write into their arguments without saying so.
_SECRETIVE = {
    "batch_norm", "native_batch_norm", "instance_norm", "_batch_norm_with_update", "_native_batch_norm_legit",
}  # fmt: skip


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


def call_inplace(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an in-place operator."""
    target, name = args[0], operator.name
    kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
    if not isinstance(target, SparseTensor):
        if name not in INPLACE and name != "copy":  # those are dense by nature
            announce(name, tuple(k.__name__ for k in dispatch.kinds_of((*args, *kwargs.values())) if k is not None))
        return func(target, *densify(args[1:]), **densify(kwargs))
    if name == "copy":
        return copy_(target, *args[1:], **kwargs)
    if name in FILLS:
        return _fill(target, func, args[1:], kwargs)
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(args))
    if tracked:
        _check_leaf(target)
        before = target.clone()  # what backward needs stays as it was
        args = tuple(before if a is target else a for a in args)
    elif name in INPLACE and operator.inplace and (name != "addcdiv" or _one_pattern(args)):
        return _on_values(name, target, func, args[1:], kwargs)
    return write(target, _result(name, func, operator, args, kwargs))


def _one_pattern(args: tuple[Any, ...]) -> bool:
    """Have all sparse arguments the pattern of the first? (Else 0 / 0 could come up where nothing is stored.)"""
    return all(a.structure.same(args[0].structure) for a in args if isinstance(a, SparseTensor))


def _check_leaf(target: SparseTensor) -> None:
    if target.requires_grad and target.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")


def write(target: SparseTensor, result: Tensor) -> SparseTensor:
    """Write a result to the stored positions of the target; one of another shape brings its own pattern."""
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
    """Copy: a sparse source brings its pattern along, a dense one fills the stored positions."""
    if source.shape != target._dense_shape:
        source = source.expand(target._dense_shape)
    if not isinstance(source, SparseTensor) or source.structure.same(target.structure) or torch.is_grad_enabled():
        return write(target, source.to(target._values.device))
    moved: SparseTensor = _whole(source.detach(), target.format)  # type: ignore[assignment]
    structure = moved.structure.to(target._values.device)
    target._values = moved._values.to(target._values, copy=True)
    target._set_structure(structure)
    return target


def _fill(target: SparseTensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SparseTensor:
    if torch.is_grad_enabled() and (target.requires_grad or any(t.requires_grad for t in _tensors(args))):
        _check_leaf(target)
        filled = func(target._values.clone(), *densify(args), **kwargs)
        return write(target, build(mask_padding(filled, target.structure), target.structure))
    func(target._values, *args, **kwargs)
    mask_padding(target._values, target.structure, inplace=True)
    return target


def _on_values(
    name: str, target: SparseTensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SparseTensor:
    structure = target.structure

    def operand(value: Any) -> Any:
        if isinstance(value, SparseTensor):
            return gather(value if value._dense_shape == structure.shape else value.expand(structure.shape), structure)
        if isinstance(value, Tensor) and value.dim() > 0:
            return gather(value.expand(structure.shape), structure)
        return value

    func(target._values, *(operand(a) for a in args), **{k: operand(v) for k, v in kwargs.items()})
    if not keeps_zeros(name, (*args, *kwargs.values())):
        mask_padding(target._values, structure, inplace=True)
    return target


def _result(name: str, func: Any, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Out-of-place result of an in-place operator."""
    # float_power always gives float64 and so refuses to be in place: that is for torch to say
    found = () if name == "float_power" else dispatch.find(name, dispatch.kinds_of(args), tuple(kwargs))
    for function in found:
        result = function(*args, **kwargs)
        if result is not NotImplemented:
            have, want = list(args[0].shape), list(result.shape)
            if have != want and name not in RESHAPING:
                raise RuntimeError(f"output with shape {have} doesn't match the broadcast shape {want}")
            return result
    announce(name, tuple(k.__name__ for k in dispatch.kinds_of((*args, *kwargs.values())) if k is not None))
    args, kwargs = densify((args, kwargs))
    return func(args[0].clone() if args[0].requires_grad else args[0], *args[1:], **kwargs)


def write_back(name: str, out: Any, copies: Copies) -> Any:
    """Bring home what an operator wrote into the dense copies of its arguments (running statistics, for instance)."""
    for tensor, copy in copies:
        written = not copy.is_inference() and copy._version > 0
        if not written and (name not in _SECRETIVE or copy.requires_grad):
            continue
        with torch.no_grad():
            if not torch.equal(gather(copy, tensor.structure), tensor._values):
                write(tensor, copy.detach())
        out = tensor if out is copy else out
    return out


def call_out(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator with ``out=``: compute, then write."""
    rest = {k: v for k, v in kwargs.items() if k != "out"}
    out = kwargs["out"]
    if not list(sparse_leaves(out)):
        return func(*densify(args), **densify(rest), out=out)
    result = dispatch.run(operator, func, args, rest)
    if isinstance(out, SparseTensor):
        with torch.no_grad():
            return write(out, result)
    with torch.no_grad():
        for one, value in zip(out, result, strict=True):
            one.copy_(value)
    return out


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]
