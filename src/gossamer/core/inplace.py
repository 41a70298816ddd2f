"""In-place operators write only to the stored positions of their target.

This keeps a model sparse while it trains: ``weight.add_(update)`` gives torch's dense result at every stored position
and leaves all others zero, for an update in any format. Operators that are not in place never drop a value.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.core.decide import Decision, after_refusal, by_table
from gossamer.core.facts import FILLS, INPLACE, RESHAPING
from gossamer.core.fallback import densify, outside, sparse_leaves
from gossamer.core.join import build, gather
from gossamer.core.lists import keeps_zeros
from gossamer.core.perform import compute
from gossamer.core.table import Operator
from gossamer.core.tensor import SparseTensor
from gossamer.core.write import copy_, write
from gossamer.formats.values import mask_padding


def decide(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
    """Decide an in-place call: on the values alone if that is enough, else by writing the operator's result."""
    target, name = args[0], operator.name
    kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
    if not isinstance(target, SparseTensor):
        how = "native" if name in INPLACE or name == "copy" else "fallback"
        words = "the target is dense, so sparse operands are made dense"
        return Decision(name, func, how, args, kwargs, words=words, call=partial(_on_dense_target, func))
    if name == "copy":
        words = "a sparse source brings its pattern along, a dense one fills the stored positions"
        return Decision(name, copy_, "native", args, kwargs, words=words)
    if name in FILLS:
        words = "the stored positions are filled, and no others"
        return Decision(name, _fill, "native", args, kwargs, words=words, call=partial(_fill, func))
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in _tensors(args))
    if not tracked and name in INPLACE and operator.inplace and (name != "addcdiv" or _one_pattern(args)):
        words = "operands are read, and the result is written, at the stored positions"
        return Decision(name, _on_values, "native", args, kwargs, words=words, call=partial(_on_values, name, func))
    # float_power always returns float64, so it can't be in place: torch raises the error
    plain = Operator(f"{name}_") if name == "float_power" else Operator(name)
    inner = by_table(plain, func, args, kwargs)
    return inner.inside(partial(_written, inner, target, tracked))


def _written(inner: Decision, target: SparseTensor, tracked: bool, *args: Any, **kwargs: Any) -> SparseTensor:
    """Write the result of a decision to the stored positions of a tensor."""
    _tell_lost(inner.name, target, args)
    if tracked:
        _check_leaf(target)
        before = target.clone()  # backward needs the old values
        inner.args = tuple(before if a is target else a for a in inner.args)
    return write(target, _result(inner))


def _result(inner: Decision) -> Tensor:
    """Out-of-place result of an in-place operator."""
    if inner.dense:
        args, kwargs = densify((inner.args, inner.kwargs))
        return inner.function(args[0].clone() if args[0].requires_grad else args[0], *args[1:], **kwargs)
    result = inner.run()
    if result is NotImplemented:
        return _result(after_refusal(inner))
    have, want = list(inner.args[0].shape), list(result.shape)
    if have != want and inner.name not in RESHAPING:
        raise RuntimeError(f"output with shape {have} doesn't match the broadcast shape {want}")
    return result


def _on_dense_target(func: Any, target: Tensor, *args: Any, **kwargs: Any) -> Any:
    return func(target, *densify(args), **densify(kwargs))


def _one_pattern(args: tuple[Any, ...]) -> bool:
    """Have all sparse arguments the pattern of the first? (Else 0 / 0 could come up where nothing is stored.)"""
    return all(a.structure.same(args[0].structure) for a in args if isinstance(a, SparseTensor))


def _check_leaf(target: SparseTensor) -> None:
    if target.requires_grad and target.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")


def _fill(func: Any, target: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    if torch.is_grad_enabled() and (target.requires_grad or any(t.requires_grad for t in _tensors(args))):
        _check_leaf(target)
        filled = func(target._values.clone(), *densify(args), **kwargs)
        return write(target, build(mask_padding(filled, target.structure), target.structure))
    func(target._values, *args, **kwargs)
    mask_padding(target._values, target.structure, inplace=True)
    return target


def _on_values(name: str, func: Any, target: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    structure = target.structure

    def operand(value: Any) -> Any:
        if isinstance(value, SparseTensor):
            return gather(value if value._dense_shape == structure.shape else value.expand(structure.shape), structure)
        if isinstance(value, Tensor) and value.dim() > 0:
            return gather(value.expand(structure.shape), structure)
        return value

    _tell_lost(name, target, args)
    func(target._values, *(operand(a) for a in args), **{k: operand(v) for k, v in kwargs.items()})
    if not keeps_zeros(name, (*args, *kwargs.values())):
        mask_padding(target._values, structure, inplace=True)
    return target


def _tell_lost(name: str, target: SparseTensor, args: tuple[Any, ...]) -> None:
    if name in ("add", "sub"):
        tell_lost(target, next((a for a in args if isinstance(a, Tensor) and not isinstance(a, SparseTensor)), None))


def tell_lost(target: SparseTensor, given: Tensor | None) -> None:
    """Warn if a dense tensor that is written to a module's weight, or a copy of it, has values where it stores none."""
    if not target._is_weight or given is None or given.shape != target._dense_shape or given.is_meta:
        return
    given = given.detach()
    if int(torch.count_nonzero(given)) > int(torch.count_nonzero(gather(given, target.structure))):
        warnings.warn(
            "values outside the pattern of a sparse weight were dropped: call gs.densify_ first to keep "
            "them (merging an adapter into a sparse weight does this)",
            stacklevel=outside(),
        )


def decide_out(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
    """Decide a call with ``out=``: compute, then write."""
    out = kwargs["out"]
    if next(sparse_leaves(out), None) is None:
        words = "out= is dense, so sparse operands are made dense"
        return Decision(operator.name, func, "fallback", args, kwargs, words=words, call=partial(_into_dense, func))
    inner = by_table(operator, func, args, {k: v for k, v in kwargs.items() if k != "out"})
    return inner.inside(partial(_into, inner, out))


def _into_dense(func: Any, *args: Any, out: Any, **kwargs: Any) -> Any:
    return func(*densify(args), **densify(kwargs), out=out)


def _into(inner: Decision, out: Any, *args: Any, **kwargs: Any) -> Any:
    """Write the result of a decision to ``out``."""
    result = compute(inner)
    with torch.no_grad():
        if isinstance(out, SparseTensor):
            return write(out, result)
        for one, value in zip(out, result, strict=True):
            one.copy_(value)
    return out


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]
