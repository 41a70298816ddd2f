"""From a call of torch to the function that computes it: :func:`choose` decides, :mod:`~gossamer.core.perform` runs it.

``torch_function`` intercepts every call from Python, above autograd. Functions of the table are made of differentiable
operations, so autograd derives the gradients. ``torch_dispatch`` intercepts what torch itself calls below autograd
(accumulation of gradients, DDP, tracing), and uses the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

from gossamer.core import copies, fallback, inplace, lists
from gossamer.core.decide import Decision, by_table
from gossamer.core.facts import LISTS, LOWERED, METADATA
from gossamer.core.fallback import densify, sparse_leaves
from gossamer.core.perform import perform
from gossamer.core.table import Operator, operator_of
from gossamer.core.tensor import SparseTensor

aten = torch.ops.aten
_LINEAR, _autocasts, _is_traced = F.linear, torch._C._is_any_autocast_enabled, torch.compiler.is_dynamo_compiling


def torch_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """Answer a call from Python."""
    if func is _LINEAR and not kwargs:
        weight = args[1]
        if type(weight) is SparseTensor and not _is_traced() and not fallback._watchers and not _autocasts():
            ready = weight._structure.ready  # the last decision for a weight of this structure, as a function
            out = None if ready is None else ready(*args)
            return _linear(args) if out is None else out
    return perform(choose(func, args, kwargs))


def _linear(args: tuple[Any, ...]) -> Any:
    """Answer F.linear, and keep the decision with the structure of the weight, ready to be called."""
    decision = choose(_LINEAR, args)
    out = perform(decision)
    bind = getattr(decision.function, "bind", None)
    if bind is not None and not decision.refused and not torch.compiler.is_compiling():
        args[1]._structure.ready = bind(*decision.args)
    return out


def choose(func: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Decision:
    """Decide what runs for a call from Python. Nothing is computed, except that autocast casts the arguments.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> choose(torch.cumsum, (gs.from_dense(torch.eye(2), gs.COO()), 0)).how
    'fallback'
    """
    known = _FORMS.get(func)
    if known is None:
        operator = operator_of(func)
        known = _FORMS[func] = operator, _form(operator, func)
    operator, form = known
    return decide(operator, form, func, args, kwargs or {})


def decide(operator: Operator, form: Form, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
    """Decide a call of an operator, by the form in which it is called."""
    if kwargs:
        if kwargs.get("inplace") and form is by_table:
            form = inplace.decide
        elif kwargs.get("out") is not None and form is not lists.decide:
            form = inplace.decide_out
        elif "out" in kwargs or "inplace" in kwargs:
            kwargs = {k: v for k, v in kwargs.items() if k not in ("out", "inplace")}
    return form(operator, func, args, kwargs)


Form = Callable[[Operator, Any, tuple[Any, ...], dict[str, Any]], Decision]
_FORMS: dict[Any, tuple[Operator, Form]] = {}


def _form(operator: Operator, func: Any) -> Form:
    """Return what decides the calls of an operator."""
    if operator.name in METADATA or getattr(func, "__module__", None) == "torch.nn.init":  # which fill step by step
        return _metadata
    if operator.name.startswith(LISTS):
        return lists.decide
    if operator.inplace:
        return inplace.decide
    return _lowered if operator.name in LOWERED else by_table


def _metadata(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
    words = "no value of a sparse tensor is needed"
    return Decision(operator.name, func, "torch", args, kwargs, words=words, call=partial(_on_wrapper, func))


def _on_wrapper(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a torch function that takes a SparseTensor for the wrapper that it is."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _lowered(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
    """Decide a product: under autocast it runs in the lower precision, as torch's own do."""
    if torch._C._is_any_autocast_enabled():
        args = _cast(args)
        if next(sparse_leaves((args, kwargs)), None) is None:  # if it requests a dense gradient, it was cast to dense
            words = "autocast made every operand dense"
            return Decision(operator.name, func, "torch", args, kwargs, words=words)
    return by_table(operator, func, args, kwargs)


def _cast(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with float tensors in autocast's type, if it is on for their device."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    if not torch.is_autocast_enabled(device):
        return args
    dtype = torch.get_autocast_dtype(device)
    return tuple(a.to(dtype) if isinstance(a, Tensor) and a.dtype == torch.float32 else a for a in args)


# -- below autograd


def torch_dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a call from below autograd."""
    special = _ALIASES.get(func)
    if special is not None:
        return special(func, args, kwargs)
    operator = operator_of(func)
    form: Form = lists.decide if operator.name.startswith(LISTS) else inplace.decide if operator.inplace else by_table
    if "out" in kwargs or form is lists.decide or not _mutates_dense(func, args):
        return perform(decide(operator, form, func, args, kwargs))
    return func(*densify(args), **densify(kwargs))


def _mutates_dense(func: Any, args: tuple[Any, ...]) -> bool:
    first = func._schema.arguments[0] if func._schema.arguments else None
    written = first is not None and first.alias_info is not None and first.alias_info.is_write
    return written and not isinstance(args[0], SparseTensor)


def _alias(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return return_and_correct_aliasing(func, args, kwargs, copies.detached(args[0]))


def _to_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return copies.moved(args[0], kwargs.get("dtype"), kwargs.get("device"))


def _clone(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return copies.cloned(args[0])


_ALIASES = {
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.view_as.default: _alias,
    aten._to_copy.default: _to_copy,
    aten.clone.default: _clone,
}
