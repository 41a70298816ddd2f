"""gs.mask: the pattern of a tensor, as a tensor of ones."""

from __future__ import annotations

import torch

from gossamer.core.tensor import SparseTensor


def mask(tensor: SparseTensor, dtype: torch.dtype | None = None) -> SparseTensor:
    """Return a sparse tensor with the same pattern, whose stored values are 1: a structural mask.

    In an expression it selects the stored entries, including stored zeros. It has no gradient.

    Parameters
    ----------
    tensor
        A sparse tensor of any format.
    dtype
        Type of the ones; that of the tensor by default.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR())
    >>> q, k = torch.ones(2, 5), torch.ones(2, 5)
    >>> gs.einsum("ij,id,jd->ij", gs.mask(a), q, k).to_dense()
    tensor([[0., 5.],
            [5., 0.]])
    """
    if not isinstance(tensor, SparseTensor):
        raise TypeError(f"a mask is that of a sparse tensor, not of {type(tensor).__name__}: use gs.from_dense first")
    kind = tensor.dtype if dtype is None else dtype
    structure = tensor.structure
    real = structure.valid()
    if real is None:
        return SparseTensor(torch.ones(structure.value_shape, dtype=kind, device=structure.device), structure)
    return SparseTensor(real.to(kind), structure)
