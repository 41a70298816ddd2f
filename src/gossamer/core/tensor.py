"""SparseTensor: a ``torch.Tensor`` that consists of a format, index arrays and values.

It is a wrapper subclass around plain tensors, so autograd, optimizers, ``torch.compile`` and serialization treat it as
one tensor with its dense shape. What an operator does with it is decided in :mod:`gossamer.core.dispatch`.

:mod:`gossamer.core.join` connects it to autograd.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.compiler.convert import tensors as compiled
from gossamer.core.values import scatter
from gossamer.formats import Dense, Format, Structure, as_format, checks


class SparseTensor(torch.Tensor):
    """A sparse tensor, which works wherever torch expects a tensor.

    Create one with :func:`gossamer.sparsify`, :func:`gossamer.from_dense`, :func:`gossamer.from_torch` or
    :func:`gossamer.from_scipy`, or from raw arrays with :meth:`from_arrays`, which checks them.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR())
    >>> t
    SparseTensor(shape=(2, 2), format=CSR(), dtype=float32, nnz=2, density=50.0 %, bytes=28 of 16)
    >>> (t @ torch.ones(2)).tolist()
    [3.0, 4.0]
    """

    _values: Tensor  # type: ignore[assignment]
    format: Format
    #: Format in which the gradient of this tensor is wanted: None for its own pattern, ``Dense()`` for all positions.
    grad_format: Format | None
    #: The owner of the values and the structure, if not the tensor itself: a module with a sparse weight.
    _owner: Owner | None = None
    _is_weight: bool = False  # of a module, or a copy of one

    @staticmethod
    def __new__(
        cls, values: Tensor, structure: Structure, *, requires_grad: bool = False, grad_format: Format | None = None
    ) -> SparseTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, structure.shape, dtype=values.dtype, device=values.device, requires_grad=requires_grad
        )

    def __init__(
        self, values: Tensor, structure: Structure, *, requires_grad: bool = False, grad_format: Format | None = None
    ) -> None:
        real = type(values) is Tensor and not torch.compiler.is_compiling() and not values.is_meta
        if real and values.shape != structure.value_shape:
            raise ValueError(  # a kernel would read beyond them
                f"{structure.format} of shape {tuple(structure.shape)}: the values are {tuple(values.shape)}, "
                f"must be {structure.value_shape}"
            )
        self._values = values
        self.grad_format = grad_format
        self._set_structure(structure)

    def _set_structure(self, structure: Structure) -> None:
        if self._owner is not None:  # it was given another pattern in place
            self._owner.store(self._values, structure)
        self._structure = structure
        self.format = structure.format
        self._dense_shape = structure.shape
        self._arrays = tuple(structure.arrays)
        self._inner = ["_values", *(f"_{name}" for name in self._arrays)]
        for name, array in structure.arrays.items():
            setattr(self, f"_{name}", array)

    @classmethod
    def from_arrays(
        cls, format: Format, shape: Sequence[int], values: Tensor, arrays: Mapping[str, Tensor]
    ) -> SparseTensor:
        """Create a tensor from raw arrays. They are checked: if a rule of the format is broken, a ValueError names it.

        The arrays are shared, not copied: don't change them afterwards.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> pos, crd = torch.tensor([0, 1, 1]), torch.tensor([5])
        >>> gs.SparseTensor.from_arrays(gs.CSR(), (2, 2), torch.ones(1), {"pos1": pos, "crd1": crd})
        Traceback (most recent call last):
            ...
        ValueError: CSR() of shape (2, 2), level 1: crd has coordinates 5 .. 5, must lie in 0 .. 1
        """
        format = as_format(format)
        if isinstance(format, Dense):
            raise ValueError("a dense tensor is a plain torch.Tensor; choose a sparse format such as gs.CSR()")
        shape, values, arrays = checks.outside(format, shape, values, arrays)
        structure = Structure(format, shape, arrays, values.device)
        structure.check(values)
        return join.build(values, structure)

    # -- what it is

    @property
    def structure(self) -> Structure:
        """The index arrays, shared by all tensors with the same pattern."""
        if not torch.compiler.is_compiling():
            return self._structure
        # a trace has its own tensors for the arrays, so it reads them from there
        arrays = {name: self._component(f"_{name}") for name in self._arrays}
        return Structure(self.format, self._dense_shape, arrays, self._values.device)

    def _component(self, name: str) -> Tensor:
        if torch.compiler.is_exporting():
            importlib.import_module("torch.export.custom_ops")
            return torch.ops.export.access_subclass_inner_tensor(self, name)
        return getattr(self, name)

    def values(self) -> Tensor:
        """Return the values as the format stores them; gradients flow to the stored positions."""
        return join.Values.apply(self) if join.tracked(self) else self._component("_values")

    @property
    def nnz(self) -> int:
        """Number of stored entries (explicit zeros count, padding doesn't)."""
        return self._structure.nnz

    @property
    def density(self) -> float:
        """Number of stored entries divided by the number of elements."""
        return self.nnz / max(self._dense_shape.numel(), 1)

    @property
    def sparsity(self) -> float:
        """1 - density."""
        return 1.0 - self.density

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of values and index arrays."""
        return self._values.numel() * self._values.element_size() + self._structure.nbytes()

    @property
    def grad(self) -> Tensor | None:
        """The gradient; for the weight of a module, that of its values."""
        return _GRAD.__get__(self) if self._owner is None else self._owner.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        _GRAD.__set__(self, value)

    def mask(self) -> Tensor:
        """Return a dense bool tensor, True where a value is stored.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> gs.from_dense(torch.tensor([0., 3.]), gs.COO()).mask()
        tensor([False,  True])
        """
        flat = torch.zeros(self._dense_shape.numel(), dtype=torch.bool, device=self._values.device)
        flat[self.structure.entries().keys] = True
        return flat.view(self._dense_shape)

    def to_dense(self, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None) -> Tensor:
        """Return an ordinary tensor with the same values; the gradient flows to the stored positions."""
        if self.grad_format is not None and join.tracked(self):
            dense = join.ToDense.apply(self)
        else:
            dense = scatter(join.values_of(self), self.structure)
        return dense if dtype is None else dense.to(dtype)

    def to_format(self, format: Format) -> Any:
        """Return the same tensor in another format. Blocked formats store complete blocks; Dense returns a plain
        tensor.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> gs.from_dense(torch.eye(3), gs.CSR()).to_format(gs.COO()).format
        COO()
        """
        format = as_format(format)
        if format == self.format:
            return self
        if isinstance(format, Dense):
            return self.to_dense()
        if not torch.compiler.is_compiling():
            made = compiled.convert(join.values_of(self), self._structure, format)
            if made is not None:
                return join.build(*made)
        keys, values = join.entries_of(self)
        return join.from_entries(keys, values, self._dense_shape, format)

    def to_torch(self) -> Tensor:
        """Return the ``torch.sparse`` tensor with the same layout (COO, CSR, CSC, BSR); other formats become COO.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> gs.from_dense(torch.eye(3), gs.CSR()).to_torch().layout
        torch.sparse_csr
        """
        return interop.to_torch(self)

    def to_scipy(self) -> Any:
        """Return the scipy array with the same layout (CSR, CSC, BSR); other formats become COO.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> gs.from_dense(torch.eye(3), gs.CSC()).to_scipy().format
        'csc'
        """
        return interop.to_scipy(self)

    def share_memory_(self) -> SparseTensor:
        """Move values and index arrays to shared memory, in place."""
        for name in self._inner:
            getattr(self, name).share_memory_()
        return self

    def is_shared(self) -> bool:
        """Are values and index arrays in shared memory?"""
        return all(getattr(self, name).is_shared() for name in self._inner)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape = tuple(self._dense_shape)
        dense = self._dense_shape.numel() * self._values.element_size()
        grad = ", requires_grad=True" if self.requires_grad else ""
        if type(self._values) is not Tensor:  # a fake tensor of a trace has no data to count
            return f"SparseTensor(shape={shape}, format={self.format}, dtype={str(self._values.dtype)[6:]}{grad})"
        return (
            f"SparseTensor(shape={shape}, format={self.format}, dtype={str(self._values.dtype)[6:]}, nnz={self.nnz:,}, "
            f"density={self.density:.1%}, bytes={_bytes(self.nbytes)} of {_bytes(dense)}{grad})"
        ).replace("%,", " %,")

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    # -- the interface of a wrapper subclass

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        return self._inner, (self.format, self._dense_shape, self.grad_format)

    @classmethod
    def __tensor_unflatten__(
        cls, inner: Mapping[str, Tensor], context: tuple[Any, ...], size: Any, stride: Any
    ) -> SparseTensor:
        format, shape, grad_format = context
        arrays = {name[1:]: array for name, array in inner.items() if name != "_values"}
        values = inner["_values"]
        return cls(values, Structure(format, shape, arrays, values.device), grad_format=grad_format)

    def _stable_hash_for_caching(self) -> str:
        return f"gossamer-1 {self.format} {tuple(self._dense_shape)} {self._values.dtype} {self.grad_format}"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatch.torch_function(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatch.torch_dispatch(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        arrays = {name: getattr(self, f"_{name}").contiguous() for name in self._arrays}
        state = (repr(self.format), tuple(self._dense_shape), self._values.contiguous(), arrays, self.requires_grad)
        return (rebuild, (*state, isinstance(self, torch.nn.Parameter), repr(self.grad_format)))

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf and self._owner is None:  # a module's weight is a leaf there, and a module may keep it
            raise RuntimeError("only leaves can be deep-copied: call .detach() first, as for any torch tensor")
        copy = SparseTensor(self._values.detach().clone(), self._structure, requires_grad=self.requires_grad)
        copy.grad_format = self.grad_format
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)  # type: ignore[assignment]
        if self.grad is not None:
            copy.grad = self.grad.clone()
        memo[id(self)] = copy
        return copy


_GRAD: Any = torch.Tensor.grad


class Owner(Protocol):
    """The object that stores the values and the structure of a module's weight."""

    @property
    def grad(self) -> Tensor | None:
        """Gradient of the values, as a SparseTensor."""

    def store(self, values: Tensor, structure: Structure) -> None:
        """Take other values and another structure."""


def rebuild(
    format: str,
    shape: tuple[int, ...],
    values: Tensor,
    arrays: dict[str, Tensor],
    requires_grad: bool,
    is_parameter: bool,
    grad_format: str = "None",
) -> SparseTensor:
    """Create a tensor from a file; it is checked like all other input."""
    for name, flag in (("requires_grad", requires_grad), ("is_parameter", is_parameter)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} of a saved tensor must be True or False, not {flag!r}")
    values = values.detach() if isinstance(values, Tensor) else values
    tensor = SparseTensor.from_arrays(as_format(format), shape, values, arrays)
    # a file may let index arrays share memory with values or other tensors, which training changes
    own = {name: array.clone() for name, array in tensor._structure.arrays.items()}
    tensor = join.build(values, Structure(tensor.format, tensor._dense_shape, own, values.device))
    tensor.grad_format = None if grad_format == "None" else as_format(grad_format)
    if requires_grad and not (values.is_floating_point() or values.is_complex()):
        raise ValueError(f"{format}: values of {values.dtype} can't require a gradient; only real or complex ones can")
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)  # type: ignore[return-value]
    return tensor.requires_grad_(requires_grad)  # type: ignore[return-value]


def _bytes(n: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return str(n)


# Not SparseTensor itself: an unpickler that may use the class could also set its attributes, without any checks.
torch.serialization.add_safe_globals([rebuild])

# At the end because of an import cycle: operators and conversions use SparseTensor, and its methods call them.
from gossamer.core import join  # noqa: E402, I001 - first: dispatch uses it
from gossamer.core import dispatch, interop  # noqa: E402
