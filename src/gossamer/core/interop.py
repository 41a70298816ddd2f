"""To and from torch.sparse and scipy.

Index arrays are checked first, because the routines of scipy and torch don't check them and could read out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.core.join import build, from_entries, values_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import BSR, COO, CSC, CSR, Format, Structure, checks, levels
from gossamer.formats.base import check_size
from gossamer.formats.keys import ascending, ravel
from gossamer.formats.values import summed

if TYPE_CHECKING:
    import scipy.sparse

_TORCH = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr)
_INT32 = 2**31 - 1


def from_torch(t: Tensor) -> SparseTensor:
    """Convert a ``torch.sparse`` tensor (COO, CSR, CSC, BSR). Its indices are checked; duplicates in COO are summed.

    The arrays are copied, so later changes of the torch tensor have no effect.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_torch(torch.eye(3).to_sparse()).format
    COO()
    """
    if not isinstance(t, Tensor):
        raise TypeError(f"from_torch needs a torch.sparse tensor, not {describe(t)}")
    if isinstance(t, SparseTensor):
        return t
    if t.layout == torch.strided:
        raise TypeError("from_torch needs a torch.sparse tensor; gs.from_dense(x, gs.CSR()) takes a dense one")
    if t.layout not in _TORCH:
        raise NotImplementedError(f"{t.layout} has no counterpart; convert it to CSR first with t.to_sparse_csr()")
    return _from_coo(t) if t.layout == torch.sparse_coo else _from_compressed(t)


def _from_coo(t: Tensor) -> SparseTensor:
    if t.dense_dim():
        raise NotImplementedError("torch COO with dense dimensions: use gs.from_dense(t.to_dense(), format)")
    shape = tuple(t.shape)
    _check_coordinates(list(t._indices()), t._values(), shape, "torch COO")
    if shape and not t.is_coalesced() and not t.requires_grad:
        return from_entries(ravel(list(t._indices()), shape), t._values(), shape, COO())  # type: ignore[return-value]
    t = t.coalesce()  # differentiable
    small = max(*shape, t._nnz(), 0) <= _INT32
    indices = t.indices().int() if small else t.indices()
    pos = torch.tensor([0, indices.shape[1]], dtype=indices.dtype, device=indices.device)
    crds = list(indices) if shape else [indices.new_zeros(indices.shape[1])]
    arrays = {"pos0": pos, **{f"crd{d}": c for d, c in enumerate(crds)}}
    return _copied(SparseTensor.from_arrays(COO(), shape, t.values(), arrays))


def _copied(tensor: SparseTensor) -> SparseTensor:
    """Return a tensor with arrays of its own, once they were found right.

    Torch's are views of its tensor, which traces can't take as parts of another one, and others may write to.
    """
    structure = tensor.structure
    arrays = {name: array.clone() for name, array in structure.arrays.items()}
    return build(values_of(tensor).clone(), Structure(structure.format, structure.shape, arrays, structure.device))


def _check_coordinates(coords: Sequence[Tensor], values: Tensor, shape: Sequence[int], what: str) -> None:
    """Raise ValueError unless there is one coordinate a value and a dimension, inside the shape."""
    what = f"{what} of shape {tuple(shape)}"
    check_size(shape, f"{what}: the shape")
    if len(coords) != len(shape):
        raise ValueError(f"{what} has indices of {len(coords)} dimensions, must have {len(shape)}")
    for d, (coord, size) in enumerate(zip(coords, shape, strict=True)):
        if coord.device.type == "meta" or coord.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{what} has indices of {coord.dtype} on {coord.device}, must be int32 or int64 with data")
        if coord.shape != values.shape:
            raise ValueError(
                f"{what} has {tuple(coord.shape)} indices in dimension {d} for {tuple(values.shape)} values"
            )
        if coord.numel() and (int(coord.min()) < 0 or int(coord.max()) >= size):
            raise ValueError(f"{what} has indices in dimension {d} outside 0 .. {size - 1}")


def _from_compressed(t: Tensor) -> SparseTensor:
    columns, values, shape = t.layout == torch.sparse_csc, t.values(), tuple(t.shape)
    pos, crd = (t.ccol_indices(), t.row_indices()) if columns else (t.crow_indices(), t.col_indices())
    batch, inner = pos.dim() - 1, 3 if t.layout == torch.sparse_bsr else 1
    dense = values.dim() - batch - inner
    if batch < 0 or dense < 0 or batch + 2 + dense != len(shape):
        raise ValueError(
            f"{t.layout} of shape {shape}: the values are {tuple(values.shape)}, pointers {tuple(pos.shape)}"
        )
    if batch or dense:
        raise NotImplementedError(f"{t.layout} with batch or dense dimensions: convert it with t.to_sparse_coo() first")
    format = CSC() if columns else CSR() if inner == 1 else BSR(tuple(values.shape[1:]))
    if isinstance(format, BSR) and format.pads(shape):
        raise ValueError(f"{t.layout} of shape {shape}: blocks of {format.block} don't divide it")
    return _copied(SparseTensor.from_arrays(format, shape, values, {"pos1": pos, "crd1": crd}))


def to_torch(t: SparseTensor) -> Tensor:
    """Return the ``torch.sparse`` tensor with the same layout (COO, CSR, CSC, BSR); other formats become COO."""
    arrays, values, shape = t.structure.arrays, t._values, tuple(t._dense_shape)
    whole = len(shape) == 2 and (not isinstance(t.format, BSR) or t.format.order is None)
    if isinstance(t.format, BSR) and any(s % b for s, b in zip(shape, t.format.block, strict=False)):
        whole = False
    makers = {CSR: torch.sparse_csr_tensor, CSC: torch.sparse_csc_tensor, BSR: torch.sparse_bsr_tensor}
    maker: Any = makers.get(type(t.format))
    if maker is not None and whole:
        return maker(arrays["pos1"], arrays["crd1"], values, shape, check_invariants=False)
    plain: Any = t.detach()
    coo = plain.to_format(COO())
    indices = torch.stack([coo.structure.arrays[f"crd{d}"].long() for d in range(max(len(shape), 1))])[: len(shape)]
    return torch.sparse_coo_tensor(indices, coo._values, shape, is_coalesced=True, check_invariants=False)


def from_scipy(matrix: scipy.sparse.sparray | scipy.sparse.spmatrix) -> SparseTensor:
    """Convert a scipy sparse matrix or array. CSR, CSC and BSR keep their format; all others become COO.

    Examples
    --------
    >>> import scipy.sparse, gossamer as gs
    >>> gs.from_scipy(scipy.sparse.eye_array(3, format="csr")).format
    CSR()
    """
    if not hasattr(matrix, "format") or not hasattr(matrix, "tocoo"):
        raise TypeError(f"from_scipy needs a scipy.sparse matrix, not {describe(matrix)}")
    kind, shape = str(matrix.format), tuple(matrix.shape)
    if kind in ("csr", "csc", "bsr"):
        pos, crd, values = (_array(matrix, name) for name in ("indptr", "indices", "data"))
        format: Format = CSR() if kind == "csr" else CSC()
        if kind == "bsr":
            format = BSR(tuple(values.shape[1:]) if values.dim() == 3 else (0, 0))
        return _canonical(format, shape, values, pos, crd)
    try:
        coo = matrix.tocoo()
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"scipy can't read its own {kind} matrix of shape {shape}: {error}") from error
    coords = coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)
    tensors = [_tensor(c, "coords") for c in coords]
    values = _array(coo, "data")
    _check_coordinates(tensors, values, shape, f"scipy {kind}")
    indices = torch.stack([c.long() for c in tensors])
    return _from_coo(torch.sparse_coo_tensor(indices, values, shape, check_invariants=False))


def _array(matrix: Any, name: str) -> Tensor:
    return _tensor(getattr(matrix, name, None), name)


def _tensor(array: Any, name: str) -> Tensor:
    """Copy a numpy array: scipy changes its own in place."""
    if not hasattr(array, "__array_interface__"):
        raise TypeError(f"{name} of a scipy matrix must be a numpy array, not {describe(array)}")
    try:
        return torch.from_numpy(array.copy())
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} of a scipy matrix can't become a tensor: {error}") from None


def _canonical(format: Format, shape: tuple[int, ...], values: Tensor, pos: Tensor, crd: Tensor) -> SparseTensor:
    """Build from compressed arrays as scipy has them: unsorted, with duplicates and with space left at the end."""
    if {pos.dtype, crd.dtype} == {torch.int32, torch.int64}:
        pos, crd = pos.long(), crd.long()
    if crd.shape == values.shape[:1] and pos.dim() == 1 and pos.numel() and 0 <= int(pos[-1]) < crd.numel():
        crd, values = crd[: int(pos[-1])], values[: int(pos[-1])]
    checks.outside(format, shape, values, {"pos1": pos, "crd1": crd})
    parents, size = format.level_sizes(shape)[:2]
    try:
        levels.check(levels.Compressed(), {"pos": pos, "crd": crd}, parents, size, sorted=False)
    except ValueError as error:
        raise ValueError(f"{format} of shape {shape} from scipy: {error}") from None
    if values.shape[:1] != crd.shape:
        raise ValueError(
            f"{format} of shape {shape} from scipy: values are {tuple(values.shape)} for {crd.numel()} indices"
        )
    row, col, _ = levels.Compressed().unpack({"pos": pos, "crd": crd}, parents, size, crd.device)
    keys = ravel([row, col], (parents, size))
    if not ascending(keys):
        if values.dim() == 1:
            number = keys if format.order is None else col * parents + row
            return from_entries(number, values, shape, format)  # type: ignore[return-value]
        keys, inverse = torch.unique(keys, return_inverse=True)
        values = summed(values, inverse, keys.numel())
        row, col = keys // size, keys % size
        pos = torch.searchsorted(row, torch.arange(parents + 1)).to(pos.dtype)
    return SparseTensor.from_arrays(format, shape, values, {"pos1": pos, "crd1": col.to(pos.dtype)})


def to_scipy(t: SparseTensor) -> Any:
    """Return the scipy array with the same layout (CSR, CSC, BSR); other formats become COO."""
    import scipy.sparse

    if t.dim() != 2:
        raise ValueError(f"scipy holds matrices; this tensor has shape {tuple(t._dense_shape)}")
    if t.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        raise TypeError(f"numpy has no {t.dtype}: convert it first with t.float()")
    plain: Any = t.detach().cpu()
    as_torch = to_torch(plain)
    shape = tuple(t._dense_shape)
    if as_torch.layout == torch.sparse_coo:
        return scipy.sparse.coo_array((_copy(as_torch.values()), tuple(_copy(as_torch.indices()))), shape=shape)
    columns = as_torch.layout == torch.sparse_csc
    pos = as_torch.ccol_indices() if columns else as_torch.crow_indices()
    crd = as_torch.row_indices() if columns else as_torch.col_indices()
    makers = {torch.sparse_csr: scipy.sparse.csr_array, torch.sparse_csc: scipy.sparse.csc_array}
    maker = makers.get(as_torch.layout, scipy.sparse.bsr_array)
    return maker((_copy(as_torch.values()), _copy(crd), _copy(pos)), shape=shape)


def _copy(tensor: Tensor) -> Any:
    """Copy to numpy: scipy changes its arrays in place, and ours are shared."""
    return tensor.numpy().copy()


def describe(value: Any) -> str:
    """Say what a value is, for an error."""
    return f"a {value.layout} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
