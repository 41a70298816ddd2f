"""gs.from_dense: the nonzeros of a dense tensor, in any format."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.compiler.convert import tensors as compiled
from gossamer.core.interop import describe
from gossamer.core.join import build, from_entries, gather
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Structure, as_format


def from_dense(x: Tensor, format: Format) -> Tensor:
    """Store a dense tensor in a format, keeping exactly its nonzeros (in a blocked format, the blocks that contain
    one).

    Parameters
    ----------
    x
        A tensor; a sparse one is converted.
    format
        Such as ``gs.CSR()``; with ``gs.Dense()`` the tensor is returned.

    Returns
    -------
    SparseTensor
        Gradients flow to ``x`` at the stored positions.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR()).nnz
    2
    """
    format = as_format(format)
    if isinstance(x, SparseTensor):
        return x.to_format(format)
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        raise TypeError(f"from_dense needs a dense torch.Tensor, not {describe(x)}; gs.from_torch takes torch.sparse")
    if isinstance(format, Dense):
        return x
    if (made := compiled.from_dense(x, format)) is not None:
        return build(*made)
    flat = x.reshape(-1)
    keys = torch.nonzero(flat.detach() != 0).squeeze(1)
    if not format.any_pattern and x.requires_grad:  # the zeros of a block are stored too, so they have gradients
        structure, _ = Structure.from_keys(format, keys, x.shape)
        return build(gather(x, structure), structure)
    return from_entries(keys, flat.index_select(0, keys), x.shape, format)
