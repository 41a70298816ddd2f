"""Values of a structure, to and from dense, and its entries: with compiled kernels if possible, else with torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.compiler.convert import tensors as compiled
from gossamer.formats import Structure, values
from gossamer.formats.structure import Entries


def scatter(stored: Tensor, structure: Structure) -> Tensor:
    """Return the dense tensor with these values.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(2), gs.CSR())
    >>> scatter(a.values(), a.structure)
    tensor([[1., 0.],
            [0., 1.]])
    """
    made = None if structure.plain else compiled.scatter(stored, structure)
    return values.scatter(stored, structure) if made is None else made


def read(tensor: Tensor, structure: Structure) -> Tensor:
    """Read an ordinary tensor at the stored positions: values of that structure.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(2), gs.CSR())
    >>> read(torch.tensor([[5., 6.], [7., 8.]]), a.structure)
    tensor([5., 8.])
    """
    made = None if structure.plain or torch.compiler.is_compiling() else compiled.gather(tensor, structure)
    return values.read(tensor, structure) if made is None else made


def entries(structure: Structure) -> Entries:
    """Return the stored entries in storage order, without padding.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> entries(gs.from_dense(torch.eye(2), gs.CSR()).structure).keys
    tensor([0, 3])
    """
    if torch.compiler.is_compiling():
        return structure.entries()
    found: Entries | None = structure.cached("entries", lambda: compiled.entries(structure))
    return structure.entries() if found is None else found
