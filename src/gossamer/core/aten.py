"""What torch's own machinery calls below autograd: the same table, and a few operators only it uses."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from gossamer.core import copies, dispatch
from gossamer.core.fallback import densify
from gossamer.core.lists import PREFIXES
from gossamer.core.table import operator_of
from gossamer.core.tensor import SparseTensor

aten = torch.ops.aten


def torch_dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a call from below autograd."""
    special = _OWN.get(func)
    if special is not None:
        return special(func, args, kwargs)
    operator = operator_of(func)
    if "out" in kwargs or operator.name.startswith(PREFIXES) or not _mutates_dense(func, args):
        return dispatch.run(operator, func, args, kwargs)
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


_OWN = {
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.view_as.default: _alias,
    aten._to_copy.default: _to_copy,
    aten.clone.default: _clone,
}
