"""The stored entries along one dimension, ordered by value as torch orders them: zeros that are not stored count too.

A fibre has the values of one index of each other dimension. In sorted order the stored values before zero take
the first places of a fibre, those that come after zero the last ones, and all zeros, stored or not, the places between,
in the order of their coordinates. So the place of each stored entry follows from a sort of the stored entries alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.core.join import entries_of, from_entries
from gossamer.core.tensor import SparseTensor


class Fibres:
    """The entries of a tensor along a dimension (None: of all values in a row), with their places in sorted order.

    NaN is the greatest value, as for ``torch.sort``; with ``nan_first`` it comes first in ascending order too, as for
    ``torch.min``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> fibres = Fibres(gs.from_dense(torch.tensor([[0., 3., -4., 0.]]), gs.CSR()), 1, descending=True)
    >>> fibres.place
    tensor([0, 3])
    >>> fibres.first(3, torch.tensor([0]))
    (tensor([[3., 0., 0.]]), tensor([[1, 0, 3]]))
    """

    def __init__(self, tensor: SparseTensor, dim: int | None, descending: bool, nan_first: bool = False) -> None:
        shape = tuple(tensor._dense_shape)
        shape, dim = ((math.prod(shape),), 0) if dim is None else (shape, dim)
        self.shape, self.dim, self.size = shape, dim, shape[dim]
        self.inner = math.prod(shape[dim + 1 :])
        keys, values = entries_of(tensor)
        coord = keys // max(self.inner, 1) % max(self.size, 1)
        fibre = keys // max(self.inner * self.size, 1) * self.inner + keys % max(self.inner, 1)
        order = torch.argsort(fibre * self.size + coord)
        self.fibre, self.coord, self.values = fibre[order], coord[order], values[order]
        found = self.values.detach()
        self._other = found != 0  # NaN too
        self._others, self._coords = self.fibre[self._other], self.coord[self._other]
        rank = _count(self._others.numel(), keys) - torch.searchsorted(self._others, self._others)
        self._gaps = self._others * (self.size + 1) + self._coords - rank  # zeros before each, in one ascending row
        self.place = self._places(found, descending, nan_first or descending)

    def _places(self, values: Tensor, descending: bool, nan_first: bool) -> Tensor:
        """Place of each entry in its fibre once that is sorted; ties keep their order."""
        values = values[self._other]
        order = torch.argsort(values, stable=True, descending=descending)
        if nan_first and not descending:
            order = order[torch.argsort(~values[order].isnan(), stable=True)]
        order = order[torch.argsort(self._others[order], stable=True)]
        fibre, values = self._others[order], values[order]
        start = torch.searchsorted(fibre, fibre)
        rank, number = _count(fibre.numel(), fibre) - start, torch.searchsorted(fibre, fibre, right=True) - start
        early = (values > 0 if descending else values < 0) | (values.isnan() & nan_first)
        self._early = fibre[early]
        place = self.coord.clone()
        place[self._other] = torch.empty_like(rank).index_copy_(
            0, order, torch.where(early, rank, self.size - number + rank)
        )
        zero = ~self._other
        fibre, coord = self.fibre[zero], self.coord[zero]
        before = torch.searchsorted(self._others * self.size + self._coords, fibre * self.size + coord)
        place[zero] = self._ahead(fibre) + coord - (before - torch.searchsorted(self._others, fibre))
        return place

    def _ahead(self, fibre: Tensor) -> Tensor:
        """How many entries of a fibre come before its zeros?"""
        return torch.searchsorted(self._early, fibre, right=True) - torch.searchsorted(self._early, fibre)

    def coordinates(self, fibre: Tensor, place: Tensor) -> Tensor:
        """Coordinates of zeros at places that no stored entry has, one after the other."""
        zero = (place - self._ahead(fibre)).clamp(0, self.size)
        return (
            zero
            + torch.searchsorted(self._gaps, fibre * (self.size + 1) + zero, right=True)
            - torch.searchsorted(self._others, fibre)
        )

    def first(self, k: int, fibres: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and coordinates at the first k places of some fibres, given in ascending order.

        Fibres that have entries must all be among them.
        """
        place = torch.arange(k, device=fibres.device)
        index = self.coordinates(fibres.unsqueeze(1), place.unsqueeze(0)).reshape(-1)
        kept = self.place < k
        at = torch.searchsorted(fibres, self.fibre[kept]) * k + self.place[kept]
        values = self.values.new_zeros(index.numel()).index_put((at,), self.values[kept])
        index = index.index_copy(0, at, self.coord[kept])
        return values.view(-1, k), index.view(-1, k)

    def every(self) -> Tensor:
        """Return the numbers of all fibres, with entries and without."""
        return torch.arange(math.prod(self.shape) // max(self.size, 1), device=self.fibre.device)

    def laid_out(self, rows: Tensor) -> Tensor:
        """Give (fibres, k) the shape of the tensor, with k in place of its dimension."""
        k = rows.shape[1]
        shape = (*self.shape[: self.dim], k, *self.shape[self.dim + 1 :])
        return rows.view(-1, self.inner, k).transpose(1, 2).reshape(shape)

    def sorted(self, tensor: SparseTensor) -> Tensor:
        """Return the tensor with its values in order along the dimension."""
        outer, inner = self.fibre // max(self.inner, 1), self.fibre % max(self.inner, 1)
        keys = (outer * self.size + self.place) * self.inner + inner
        return from_entries(keys, self.values, tensor._dense_shape, tensor.format.general())


def _count(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, dtype=torch.int64, device=like.device)
