"""gs.sparsify: a sparsifier selects the values to keep, a format stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import build, from_entries, gather
from gossamer.core.tensor import SparseTensor
from gossamer.formats import BSR, COO, CSR, Dense, Format, as_format
from gossamer.patterns import Blocks, Pattern
from gossamer.sparsifiers import Sparsifier, as_sparsifier

How = Pattern | Sparsifier | str | SparseTensor
_SPARSIFIERS: list[tuple[type, type[Format], type[Format], Callable[..., Tensor]]] = []


def sparsify(x: Tensor, how: How, format: Format | None = None, **context: Any) -> Tensor:
    """Keep the most important values of a tensor, and store them in a format.

    Parameters
    ----------
    x
        A float tensor. Gradients flow to the kept values.
    how
        A pattern (``gs.NM(2, 4)``), its short form (``"90%"``, ``"2:4"``), a :class:`~gossamer.Sparsifier`, or another
        SparseTensor, to keep the same positions in its format.
    format
        The format of the result; by default BSR for block patterns, COO for vectors, and CSR for all others.
    **context
        What the score needs, such as ``grad=``.

    Returns
    -------
    SparseTensor
        With ``format=gs.Dense()``, a dense tensor with zeros.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.sparsify(torch.randn(768, 3072), "90%")
    SparseTensor(shape=(768, 3072), format=CSR(), dtype=float32, nnz=235,930, density=10.0 %, bytes=1.9 MB of 9.4 MB)
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"sparsify needs a torch.Tensor, not {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"sparsify needs a float tensor, not {x.dtype}: cast it, or use gs.from_dense for its nonzeros")
    if x.layout != torch.strided:
        raise TypeError(f"sparsify needs a dense tensor, not {x.layout}: use gs.from_torch, or x.to_dense()")
    if isinstance(how, SparseTensor):
        return _like(x, how, format)
    sparsifier = as_sparsifier(how)
    format = default_format(sparsifier.pattern, x) if format is None else as_format(format)
    own = _implementation(sparsifier, x, format)
    if own is not None:
        return own(sparsifier, x, format)
    dense = x.to_dense() if isinstance(x, SparseTensor) else x
    return apply_mask(dense, sparsifier.mask(dense, **context), format)


def apply_mask(x: Tensor, mask: Tensor, format: Format) -> Tensor:
    """Store the values of a dense tensor where the mask is True."""
    if isinstance(format, Dense):
        return x.masked_fill(~mask, 0)
    keys = torch.nonzero(mask.reshape(-1)).squeeze(1)
    return from_entries(keys, x.reshape(-1)[keys], x.shape, format)


def _like(x: Tensor, other: SparseTensor, format: Format | None) -> Tensor:
    if x.shape != other._dense_shape:
        raise ValueError(f"x has shape {tuple(x.shape)}, the tensor to follow has {tuple(other._dense_shape)}")
    out = build(gather(x, other.structure), other.structure)
    return out if format is None else out.to_format(as_format(format))


def default_format(pattern: Pattern, x: Tensor) -> Format:
    """Return the default format for a pattern."""
    if isinstance(pattern, Blocks):
        return BSR(pattern.block)
    return CSR() if x.dim() > 1 else COO()


def implements_sparsifier(
    sparsifier: type, format: type[Format], out: type[Format]
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a faster implementation of a sparsifier, for certain formats of its input and output.

    The function gets ``(sparsifier, x, out_format)``. Without one, the mask is computed on a dense copy.

    Parameters
    ----------
    sparsifier
        A class of sparsifier or pattern.
    format, out
        Format classes of the input and the output.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> @gs.implements_sparsifier(gs.KeepAll, gs.CSR, gs.CSR)
    ... def keep_all_csr(sparsifier, x, out):
    ...     return x
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _SPARSIFIERS.append((sparsifier, format, out, function))
        return function

    return register


def _implementation(sparsifier: Sparsifier, x: Tensor, out: Format) -> Callable[..., Tensor] | None:
    kind = type(x.format) if isinstance(x, SparseTensor) else Dense
    for wanted, have, target, function in reversed(_SPARSIFIERS):
        fits = isinstance(sparsifier, wanted) or isinstance(sparsifier.pattern, wanted)
        if fits and issubclass(kind, have) and isinstance(out, target):
            return function
    return None
