"""Weights that are not a stack of levels: quantized, low rank plus sparse, or anything else that represents a tensor.

An :class:`Opaque` is a module that can be used where torch expects a tensor. Its parts are parameters, buffers and
modules, so optimizers, checkpoints, ``.to`` and ``copy.deepcopy`` work as for any model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.facts import METADATA
from gossamer.formats import Dense


class Opaque(nn.Module):
    """Base class of weights that compute the tensor that they represent.

    A subclass stores its parts like any module, and implements :meth:`to_dense` with differentiable torch operators.
    Torch's functions then accept it as a tensor. They use a function that is registered for its class
    (:func:`gossamer.implements`), or else the dense tensor, with the usual warning. :func:`gossamer.nn.hold_` makes it
    the weight of a layer.

    Parameters
    ----------
    shape
        Of the tensor.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> import torch.nn.functional as F
    >>> class LowRank(gs.Opaque):
    ...     def __init__(self, dense, rank):
    ...         super().__init__(dense.shape)
    ...         u, s, v = torch.linalg.svd(dense.detach(), full_matrices=False)
    ...         self.left, self.right = torch.nn.Parameter(u[:, :rank] * s[:rank]), torch.nn.Parameter(v[:rank])
    ...
    ...     def to_dense(self):
    ...         return self.left @ self.right
    >>> @gs.implements(F.linear, (gs.Dense, LowRank, gs.Dense))
    ... def linear_low_rank(x, weight, bias=None):
    ...     return F.linear(F.linear(x, weight.right), weight.left, bias)
    >>> layer = torch.nn.Linear(32, 16)
    >>> layer = gs.nn.hold_(layer, LowRank(layer.weight, rank=4))
    >>> layer(torch.randn(5, 32)).shape, [name for name, _ in layer.named_parameters()]
    (torch.Size([5, 16]), ['bias', 'weight.left', 'weight.right'])
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = torch.Size(shape)

    def to_dense(self) -> Tensor:
        """Return the tensor that this represents, computed by differentiable torch operators."""
        raise NotImplementedError(f"{type(self).__name__} needs a method to_dense() that returns a tensor")

    def forward(self) -> Tensor:
        """Return the dense tensor, as torch's parametrizations do."""
        return self.to_dense()

    # -- the attributes of a weight

    def _parts(self) -> Iterator[Tensor]:
        return chain(self.parameters(), self.buffers())

    def _first(self) -> Tensor:
        """A part that has the type and the device of the tensor: the first with floating-point numbers."""
        found = next((part for part in self._parts() if part.is_floating_point()), None)
        return self.to_dense() if found is None else found

    @property
    def dtype(self) -> torch.dtype:
        """Type of the tensor."""
        return self._first().dtype

    @property
    def device(self) -> torch.device:
        """Where the parts are."""
        return self._first().device

    @property
    def requires_grad(self) -> bool:
        """Is a part trained?"""
        return any(part.requires_grad for part in self._parts())

    @property
    def density(self) -> float:
        """Share of the tensor that is not zero."""
        with torch.no_grad():
            return int(torch.count_nonzero(self.to_dense())) / max(self.shape.numel(), 1)

    @property
    def sparsity(self) -> float:
        """1 - density."""
        return 1.0 - self.density

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.numel() * part.element_size() for part in self._parts())

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one size."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return the number of elements of the tensor."""
        return self.shape.numel()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return the dense tensor on another device or with another type. To move the weight itself, use the model's
        ``.to``."""
        return self.to_dense().to(*args, **kwargs)

    def extra_repr(self) -> str:
        """The shape, type and density."""
        return f"shape={tuple(self.shape)}"

    # -- what makes torch treat it as a tensor

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            known = None if name.startswith("_") else getattr(torch.Tensor, name, None)
            if known is None:
                raise
        if callable(known):
            return partial(_call, known, self)
        return _call(known.__get__, self)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operator = table.operator_of(func)
        if operator.inplace and isinstance(args[0], Opaque):
            raise TypeError(
                f"{operator.name}_ would write to a {type(args[0]).__name__}, whose values are computed from its "
                "parts: change these, or call gs.densify_ first"
            )
        if torch.compiler.is_compiling():
            return _traced(operator.name, func, args, kwargs or {})
        if operator.name in METADATA:
            return func(*fallback.densify(args), **fallback.densify(kwargs or {}))
        return dispatch.torch_function(func, args, kwargs)


def _traced(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a call inside a trace, which can't follow a decision: the best entry of the table, or the dense tensor."""
    kinds = tuple(type(a) if isinstance(a, Opaque) else Dense if isinstance(a, Tensor) else None for a in args)
    line = _line(name, kinds, tuple(kwargs))
    if line is not None:
        return table._TABLE[name][line].function(*args, **kwargs)
    dense = [a.to_dense() if isinstance(a, Opaque) else a for a in args]
    return func(*dense, **{key: a.to_dense() if isinstance(a, Opaque) else a for key, a in kwargs.items()})


def _line(name: str, kinds: Any, keywords: tuple[str, ...]) -> int | None:
    """Return the number of the entry that takes every call with these kinds of arguments, if there is one."""
    found = decide.candidates(name, kinds, keywords).candidates
    return table.entries(name).index(found[0].entry) if found and found[0].when is None else None


_line._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _call(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of torch's tensors for what is none."""
    return Opaque.__torch_function__(func, (), args, kwargs)


def _method(name: str) -> Callable[..., Any]:
    known = getattr(torch.Tensor, name)
    return lambda self, *args: _call(known, self, *args)


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow"):
    setattr(Opaque, f"__{_name}__", _method(f"__{_name}__"))
    setattr(Opaque, f"__r{_name}__", _method(f"__r{_name}__"))
for _name in ("neg", "abs", "getitem"):
    setattr(Opaque, f"__{_name}__", _method(f"__{_name}__"))

# At the end because of an import cycle: dispatch uses this class, and this class calls dispatch.
from gossamer.core import decide, dispatch, fallback, table  # noqa: E402
