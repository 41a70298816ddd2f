"""To and from dense tensors, torch.sparse and scipy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.formats import BSR, COO, CSC, CSR, Dense, Format, as_format
from gossamer.tensor import SparseTensor, from_entries

if TYPE_CHECKING:
    import scipy.sparse

_TORCH = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def from_dense(x: Tensor, format: Format) -> Tensor:
    """Store a dense tensor in a format, keeping exactly its nonzeros (in a blocked format, the blocks that hold one).

    Parameters
    ----------
    x
        A tensor; a sparse one is converted.
    format
        Such as ``gs.CSR()``; ``gs.Dense()`` gives the tensor back.

    Returns
    -------
    SparseTensor
        Gradients flow back to ``x`` at the stored positions.

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
        raise TypeError(f"from_dense needs a dense torch.Tensor, not {_describe(x)}; gs.from_torch takes torch.sparse")
    if isinstance(format, Dense):
        return x
    flat = x.reshape(-1)
    keys = torch.nonzero(flat.detach()).squeeze(1)
    return from_entries(keys, flat[keys], x.shape, format)


def from_torch(t: Tensor) -> SparseTensor:
    """Take a ``torch.sparse`` tensor (COO, CSR, CSC, BSR). Its indices are checked; duplicates in COO are summed.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_torch(torch.eye(3).to_sparse()).format
    COO()
    """
    if t.layout == torch.strided:
        raise TypeError("from_torch needs a torch.sparse tensor; gs.from_dense(x, gs.CSR()) takes a dense one")
    if t.layout not in _TORCH or t.layout == torch.sparse_bsc:
        raise NotImplementedError(f"{t.layout} has no counterpart; convert it to CSR first with t.to_sparse_csr()")
    if t.layout == torch.sparse_coo:
        return _from_coo(t)
    if t.dim() != 2 or t.values().dim() != (3 if t.layout == torch.sparse_bsr else 1):
        raise NotImplementedError(f"{t.layout} with batch or dense dimensions: convert it with t.to_sparse_coo() first")
    if t.layout == torch.sparse_csc:
        return _checked(CSC(), t, t.ccol_indices(), t.row_indices())
    if t.layout == torch.sparse_csr:
        return _checked(CSR(), t, t.crow_indices(), t.col_indices())
    return _checked(BSR(tuple(t.values().shape[1:])), t, t.crow_indices(), t.col_indices())


def _from_coo(t: Tensor) -> SparseTensor:
    indices, shape = t._indices(), t.shape
    if t.dense_dim():
        raise NotImplementedError("torch COO with dense dimensions: use gs.from_dense(t.to_dense(), format)")
    sizes = torch.tensor(shape[: indices.shape[0]], device=indices.device)[:, None]
    if indices.shape[1] and (int(indices.min()) < 0 or bool((indices >= sizes).any())):
        raise ValueError(f"torch COO of shape {tuple(shape)} has indices outside it")
    t = t.coalesce()
    indices = t.indices().int() if max(shape, default=0) < 2**31 else t.indices()
    pos = torch.tensor([0, indices.shape[1]], dtype=indices.dtype, device=indices.device)
    arrays = {"pos0": pos, **{f"crd{d}": i.contiguous() for d, i in enumerate(indices)}}
    return SparseTensor.from_arrays(COO(), shape, t.values(), arrays)


def _checked(format: Format, t: Tensor, pos: Tensor, crd: Tensor) -> SparseTensor:
    return SparseTensor.from_arrays(format, t.shape, t.values(), {"pos1": pos, "crd1": crd})


def to_torch(t: SparseTensor) -> Tensor:
    """Return the ``torch.sparse`` tensor of the same layout (COO, CSR, CSC, BSR); other formats go to COO."""
    arrays, values, shape = t.structure.arrays, t._values, tuple(t._dense_shape)
    whole = len(shape) == 2 and (not isinstance(t.format, BSR) or t.format.order is None)
    if isinstance(t.format, BSR) and any(s % b for s, b in zip(shape, t.format.block, strict=False)):
        whole = False
    makers = {CSR: torch.sparse_csr_tensor, CSC: torch.sparse_csc_tensor, BSR: torch.sparse_bsr_tensor}
    maker: Any = makers.get(type(t.format))
    if maker is not None and whole:
        return maker(arrays["pos1"], arrays["crd1"], values, shape, check_invariants=False)  # type: ignore[no-any-return]
    coo = t.detach().to_format(COO())
    indices = torch.stack([a.long() for name, a in coo.structure.arrays.items() if name.startswith("crd")])
    return torch.sparse_coo_tensor(
        indices, coo._values, shape, is_coalesced=True, check_invariants=False
    )


def from_scipy(matrix: scipy.sparse.sparray | scipy.sparse.spmatrix) -> SparseTensor:
    """Take a scipy sparse matrix or array: CSR, CSC and BSR keep their format, all others come as COO.

    Examples
    --------
    >>> import scipy.sparse, gossamer as gs
    >>> gs.from_scipy(scipy.sparse.eye_array(3, format="csr")).format
    CSR()
    """
    if not hasattr(matrix, "format") or not hasattr(matrix, "tocoo"):
        raise TypeError(f"from_scipy needs a scipy.sparse matrix, not {_describe(matrix)}")
    if matrix.format in ("csr", "csc", "bsr"):
        matrix = matrix.copy()
        matrix.sum_duplicates()
        format: Format = {"csr": CSR, "csc": CSC}[matrix.format]() if matrix.format != "bsr" else BSR(matrix.blocksize)
        arrays = {"pos1": torch.from_numpy(matrix.indptr), "crd1": torch.from_numpy(matrix.indices)}
        return SparseTensor.from_arrays(format, matrix.shape, torch.from_numpy(matrix.data), arrays)
    coo = matrix.tocoo()
    indices = torch.stack([torch.from_numpy(c).long() for c in (coo.row, coo.col)])
    return _from_coo(torch.sparse_coo_tensor(indices, torch.from_numpy(coo.data), coo.shape, check_invariants=False))


def to_scipy(t: SparseTensor) -> Any:
    """Return the scipy array of the same layout (CSR, CSC, BSR); other matrices go to COO."""
    import scipy.sparse

    if t.dim() != 2:
        raise ValueError(f"scipy holds matrices; this tensor has shape {tuple(t._dense_shape)}")
    plain = t.detach().cpu()
    makers = {CSR: scipy.sparse.csr_array, CSC: scipy.sparse.csc_array}
    arrays = plain.structure.arrays
    if type(t.format) in makers:
        parts = (plain._values.numpy(), arrays["crd1"].numpy(), arrays["pos1"].numpy())
        return makers[type(t.format)](parts, shape=tuple(t._dense_shape))
    as_torch = to_torch(plain)
    if as_torch.layout == torch.sparse_bsr:
        parts = (plain._values.numpy(), arrays["crd1"].numpy(), arrays["pos1"].numpy())
        return scipy.sparse.bsr_array(parts, shape=tuple(t._dense_shape))
    return scipy.sparse.coo_array(
        (as_torch.values().numpy(), tuple(as_torch.indices().numpy())), shape=tuple(t._dense_shape)
    )


def _describe(value: Any) -> str:
    return f"a {value.layout} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
