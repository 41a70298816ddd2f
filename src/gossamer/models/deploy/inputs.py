"""The inputs of a deployed model: compiled code doesn't check them, so they are checked before each call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


class Call(NamedTuple):
    """Positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def as_call(example: Any) -> Call:
    """Return the arguments that an example stands for: a tensor, a tuple of positional or a dict of keyword ones.

    Examples
    --------
    >>> import torch
    >>> as_call({"ids": torch.tensor([1])})
    Call(args=(), kwargs={'ids': tensor([1])})
    """
    if isinstance(example, Mapping):
        call = Call((), dict(example))
    else:
        call = Call(tuple(example) if isinstance(example, (tuple, list)) else (example,), {})
    for path, value in pytree.tree_leaves_with_path(tuple(call)):
        if not isinstance(value, Tensor):
            where, kind = _name(path), type(value).__name__
            raise TypeError(f"the inputs of a deployed model must be tensors, but {where} of the example is {kind}")
        if value.device.type != "cpu":
            raise NotImplementedError(f"gs.deploy is for models on a CPU, and {_name(path)} is on {value.device}")
    return Call(*pytree.tree_map(lambda x: x.detach().contiguous(memory_format=_order(x)), tuple(call)))


def _order(x: Tensor) -> torch.memory_format:
    """The memory format that a model is deployed for: that of the example, if it has one."""
    images = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if images else torch.contiguous_format


@dataclass(frozen=True)
class Input:
    """One tensor that the model takes; a size of None is free. Others than in its memory format are copied."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    order: torch.memory_format = torch.contiguous_format

    def check(self, given: Any) -> Tensor:
        """Return it in this memory format; raise TypeError or ValueError if it is another kind of tensor."""
        if not isinstance(given, Tensor):
            raise TypeError(f"{self.name} must be a tensor, not {type(given).__name__}")
        if given.dtype is not self.dtype or given.device.type != "cpu":
            raise TypeError(f"{self.name} must be {self.dtype} on a CPU, not {given.dtype} on {given.device}")
        fits = given.dim() == len(self.sizes)
        if not fits or any(w not in (None, n) for w, n in zip(self.sizes, given.shape, strict=True)):
            sizes = ", ".join("any" if n is None else str(n) for n in self.sizes)
            raise ValueError(f"{self.name} must be [{sizes}], as it was deployed for, not {[*given.shape]}")
        return given.detach().contiguous(memory_format=self.order)

    def to_json(self) -> list[Any]:
        """Return what :meth:`from_json` reads."""
        return [self.name, *(str(each).removeprefix("torch.") for each in (self.dtype, self.order)), [*self.sizes]]

    @classmethod
    def from_json(cls, kept: Sequence[Any]) -> Input:
        """Return the input that was written so."""
        name, dtype, *order, sizes = kept  # files of version 1.0.0rc1 have no order
        return cls(name, getattr(torch, dtype), tuple(sizes), *(getattr(torch, each) for each in order))


def inputs_of(call: Call, dynamic: Sequence[int]) -> list[Input]:
    """Return what the tensors of a call are like; dimensions in ``dynamic`` are free.

    Examples
    --------
    >>> import torch
    >>> inputs_of(as_call({"ids": torch.zeros(2, 3)}), dynamic=(0,))
    [Input(name='ids', dtype=torch.float32, sizes=(None, 3), order=torch.contiguous_format)]
    """
    found = []
    for path, x in pytree.tree_leaves_with_path(tuple(call)):
        sizes = tuple(None if d in dynamic else n for d, n in enumerate(x.shape))
        found.append(Input(_name(path), x.dtype, sizes, _order(x)))
    return found


def check_free(call: Call, dynamic: Sequence[int]) -> None:
    """Raise ValueError if an example has fewer than 2 in a dimension that must be free: torch.export would fix it."""
    for item, x in zip(inputs_of(call, ()), pytree.tree_leaves(tuple(call)), strict=True):
        for d in dynamic:
            if d < x.dim() and x.shape[d] < 2:
                raise ValueError(f"dimension {d} of {item.name} must be free: give an example with 2 or more there")


def free(module: nn.Module, call: Call, dynamic: Sequence[int]) -> Any:
    """Return ``dynamic_shapes`` of torch.export for a module whose inputs are free in the dimensions of ``dynamic``."""

    def sizes(x: Tensor) -> dict[int, Any]:
        return {d: torch.export.Dim.DYNAMIC for d in dynamic if d < x.dim()}

    named = inspect.signature(module.forward).bind(*call.args, **call.kwargs).arguments
    return pytree.tree_map(sizes, dict(named)) if dynamic else None


def _name(path: Any) -> str:
    """The argument at a path: its name, or its position."""
    top, *rest = path[1:]
    first = str(top.key) if hasattr(top, "key") else f"argument {top.idx}"
    return first + pytree.keystr(tuple(rest))
