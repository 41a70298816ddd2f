"""t[...] = value: an assignment writes stored positions, and raises where it would have to store another one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import tracked
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.core.write import not_stored
from gossamer.formats import Format
from gossamer.formats.keys import ravel
from gossamer.ops.index import every_index, takes_getitem
from gossamer.ops.shape import coords_of


def _takes_setitem(input: Tensor, index: Any, value: Any) -> str | None:
    if not isinstance(input, SparseTensor):
        return "the target is dense"
    if isinstance(value, SparseTensor) or isinstance(index, (list, Tensor)):
        return "the value is sparse, or the index is a list or a tensor"
    if torch.compiler.is_compiling() or tracked(input) or (isinstance(value, Tensor) and tracked(value)):
        return "a gradient is recorded"
    if isinstance(index, tuple) and None in index:
        return "the index adds a dimension"
    return takes_getitem(input, index)


@implements("__setitem__", (Format, Format, Format), when=_takes_setitem)
def setitem(input: SparseTensor, index: Any, value: Any) -> None:
    """Assign to what numbers and slices select."""
    items = every_index(list(index) if isinstance(index, tuple) else [index], len(input._dense_shape))
    coords, entries = coords_of(input.detach())  # type: ignore[arg-type]
    keep = torch.ones(entries.numel(), dtype=torch.bool, device=entries.device)
    inside: list[Tensor] = []
    shape: list[int] = []
    for item, size, coord in zip(items, input._dense_shape, coords, strict=False):
        start, stop, step = (item % size, item % size + 1, 1) if isinstance(item, int) else item.indices(size)
        keep &= (coord >= start) & (coord < stop) & ((coord - start) % step == 0)
        inside.append((coord - start) // step)
        shape.append(len(range(start, stop, step)))
    given = torch.as_tensor(value, dtype=entries.dtype, device=entries.device)
    kept = [s for item, s in zip(items, shape, strict=True) if not isinstance(item, int)]
    given = given.expand(kept).reshape(-1)
    places = ravel([c[keep] for c in inside], shape) if inside else torch.zeros(int(keep.sum()), dtype=torch.int64)
    missing = given != 0
    missing[places] = False
    if bool(missing.any()):
        raise not_stored(input)
    where = input.structure.entries().where
    flat = keep.nonzero().squeeze(1) if where is None else where[keep]
    input._values.view(-1)[flat] = given[places]
