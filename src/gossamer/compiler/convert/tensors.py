"""Conversions of values and structures, compiled: between any formats, from entries in any order, to and from dense.

Each answers None where torch does it instead: in a trace, on another device, below a few thousand entries, without a
compiler, and for level kinds that the compiler doesn't know (``convert.restack``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.compiler.convert.moves import moved
from gossamer.compiler.convert.restack import enough, plain, restack, target_of
from gossamer.compiler.convert.writing import Restacked
from gossamer.formats import Dense, Format, Structure
from gossamer.formats.structure import Entries
from gossamer.formats.values import summed

Stored = tuple[Tensor, Structure]


def convert(values: Tensor, structure: Structure, format: Format) -> Stored | None:
    """Return the same tensor in another format; None where that is left to torch.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.sparsify(torch.randn(200, 300), "80%", format=gs.CSR())
    >>> made = convert(a.values(), a.structure, gs.CSC())
    >>> made is None or made[1].format
    CSC()
    """
    if not enough(values.numel()) or not plain(values):
        return None
    carried = None if torch.is_grad_enabled() and values.requires_grad else values.contiguous()
    made = restack(structure, target_of(format, tuple(structure.shape)), values=carried)
    return None if made is None else _stored(values, made, structure.shape, format)


def from_entries(keys: Tensor, values: Tensor, shape: Sequence[int], format: Format) -> Stored | None:
    """Build a tensor from entries in any order, by their row-major numbers; those of the same number are summed.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> keys, values = torch.arange(6000, 0, -1), torch.ones(6000)
    >>> made = from_entries(keys, values, (100, 100), gs.CSR())
    >>> 6000 if made is None else made[1].nnz
    6000
    """
    if not enough(keys.numel()) or not plain(keys, values) or keys.dtype != torch.int64:
        return None
    made = restack(keys, target_of(format, tuple(shape)), numbers=True)
    return None if made is None else _stored(values, made, shape, format)


def from_dense(x: Tensor, format: Format) -> Stored | None:
    """Store what is not zero in a dense tensor.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> made = from_dense(torch.eye(100), gs.CSR())
    >>> 100 if made is None else made[1].nnz
    100
    """
    if not enough(x.numel()) or not plain(x):
        return None
    made = restack(x.detach(), target_of(format, tuple(x.shape)))
    if made is None:
        return None
    if format.any_pattern or not x.requires_grad:
        return _stored(x, made, x.shape, format)
    # the zeros of a block are stored too, so they have gradients
    structure = Structure(format, x.shape, made.arrays, x.device)
    values = gather(x, structure)
    return None if values is None else (values, structure)


def scatter(values: Tensor, structure: Structure) -> Tensor | None:
    """Return the dense tensor with these values of a structure.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.sparsify(torch.randn(200, 300), "80%", format=gs.CSR())
    >>> made = scatter(a.values(), a.structure)
    >>> made is None or torch.equal(made, a.to_dense())
    True
    """
    shape, taught = structure.shape, torch.is_grad_enabled() and values.requires_grad
    if not taught and enough(values.numel()) and plain(values):
        carried = restack(structure, target_of(Dense(), tuple(shape)), values=values.reshape(-1))
        if carried is not None and carried.values is not None:
            return carried.values.view(shape)
    made = _places(structure) if plain(values) else None
    if made is None:
        return None
    return moved(values.reshape(-1), made.where, made.place, made.entries, shape.numel()).view(shape)


def gather(x: Tensor, structure: Structure) -> Tensor | None:
    """Return the values of a structure, read from a dense tensor."""
    made = _places(structure) if plain(x) else None
    if made is None:
        return None
    shape = torch.Size(structure.value_shape)
    return moved(x.reshape(-1), made.place, made.where, made.entries, shape.numel()).view(shape)


def entries(structure: Structure) -> Entries | None:
    """Return the row-major number of each entry, and its place in the values, in storage order.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(5000), gs.CSR())
    >>> made = entries(a.structure)
    >>> 5001 if made is None else int(made.keys[1])
    5001
    """
    stack = structure.format.stack(len(structure.shape))
    if any(level.walk is None or not level.walk.ordered for level in stack) or not plain(*structure.arrays.values()):
        return None  # it would be visited in another order
    made = _places(structure)
    if made is None or made.place is None:
        return None
    keys = made.place.long()
    return Entries(keys, None if made.where is None else made.where[: made.entries].long())


def _places(structure: Structure) -> Restacked | None:
    """The number of each entry in the dense tensor; kept with the structure."""
    if not enough(torch.Size(structure.value_shape).numel()) or structure.device.type != "cpu":
        return None
    found: Restacked | None = structure.cached(
        "places", lambda: restack(structure, target_of(Dense(), tuple(structure.shape)))
    )
    return found


def _stored(values: Tensor, made: Restacked, shape: Sequence[int], format: Format) -> Stored:
    structure = Structure(format, shape, made.arrays, values.device)
    if made.values is not None:
        return made.values.view(structure.value_shape), structure
    where, flat = made.where, values.reshape(-1)
    if made.group is not None:
        ordered = moved(flat, where, None, made.group.numel(), made.group.numel())
        flat, where = summed(ordered, made.group.long(), made.entries), None
    places = torch.Size(structure.value_shape)
    return moved(flat, where, made.place, made.entries, places.numel()).view(places), structure
