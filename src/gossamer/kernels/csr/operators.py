"""The products of a compressed matrix, as torch operators that torch.compile and export take as they are.

``spmm`` multiplies, ``sddmm`` samples a product of two dense matrices at stored positions; each is the other's
gradient. The arrays are those of :class:`gossamer.formats.structure.Matrix`: compressed rows of A (rows x cols).
On a GPU they call our kernels (:mod:`gossamer.kernels.csr.cuda`); elsewhere torch's own CSR kernels, on arrays whose
promises were checked when they were made. What they cost beyond those kernels is in ``benchmarks/overhead.py``.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gossamer.compiler.convert.restack import enough, plain, restack, target_of
from gossamer.formats import CSC, CSR, Structure
from gossamer.kernels.csr import cuda as csr_cuda

_library = torch.library.Library("gossamer", "DEF")
_library.define(
    "spmm(Tensor pos, Tensor crd, Tensor values, int rows, int cols, bool transposed, Tensor x, bool tokens_first)"
    " -> Tensor"
)
_library.define("sddmm(Tensor pos, Tensor crd, int rows, int cols, Tensor left, Tensor right) -> Tensor")

_NATIVE = (torch.float32, torch.float64)

with warnings.catch_warnings():  # torch says once that its CSR tensors are in beta; here they only carry checked arrays
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(torch.tensor([0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (0, 0))
_transposes: Any = WeakIdKeyDictionary()


def spmm(
    pos: Tensor, crd: Tensor, values: Tensor, rows: int, cols: int, transposed: bool, x: Tensor, tokens_first: bool
) -> Tensor:
    """A @ x, or A^T @ x; the result is feature-major, or token-major (its transpose) with ``tokens_first``."""
    if transposed:
        pos, crd, order = transpose_of(pos, crd, rows, cols)
        values, rows, cols = values[order], cols, rows
    if not (crd.numel() and rows and x.shape[1]):
        return x.new_zeros((x.shape[1], rows) if tokens_first else (rows, x.shape[1]))
    if csr_cuda.takes(pos, crd, values, x):
        return csr_cuda.spmm(pos, crd, values, rows, x, tokens_first)
    if values.dtype in _NATIVE:
        # MKL is up to five times slower when it writes token-major itself than one transpose afterwards
        out = _mm(torch.sparse_csr_tensor(pos, crd, values, (rows, cols), check_invariants=False), x)
    else:
        out = _wide(pos, crd, values, rows, cols, x)
    return out.t().contiguous() if tokens_first else out


def _mm(a: Tensor, x: Tensor) -> Tensor:
    """Return a @ x in their own type: autocast chose types above; here it would choose one without a kernel."""
    if not torch._C._is_any_autocast_enabled():
        return torch.mm(a, x)
    with torch.autocast(x.device.type, enabled=False):
        return torch.mm(a, x)


def _wide(pos: Tensor, crd: Tensor, values: Tensor, rows: int, cols: int, x: Tensor) -> Tensor:
    """Types that have no kernel: half precision sums in float32, the rest goes entry by entry."""
    if values.dtype in (torch.float16, torch.bfloat16):
        return spmm(pos, crd, values.float(), rows, cols, False, x.float(), False).to(x.dtype)
    return x.new_zeros((rows, x.shape[1])).index_add_(0, _rows_of(pos, crd), values[:, None] * x[crd.long()])


def sddmm(pos: Tensor, crd: Tensor, rows: int, cols: int, left: Tensor, right: Tensor) -> Tensor:
    """left[row] . right[col] for every stored (row, col): ``(left @ right.T)`` at the stored positions."""
    if not (crd.numel() and left.shape[1]):
        return left.new_zeros(crd.numel())
    # torch takes no more entries than the matrix has places, but padding may come on top of a full one
    if left.dtype in _NATIVE and left.device.type == "cpu" and crd.numel() <= rows * cols:
        zeros = left.new_zeros(crd.numel())
        pattern = torch.sparse_csr_tensor(pos, crd, zeros, (rows, cols), check_invariants=False)
        return torch.sparse.sampled_addmm(pattern, left, right.t(), beta=0.0).values()
    if left.device.type == "cuda":  # the whole product on tensor cores, then what is wanted of it
        return (left @ right.t()).take(_rows_of(pos, crd) * cols + crd)
    if left.dtype in (torch.float16, torch.bfloat16):
        return sddmm(pos, crd, rows, cols, left.float(), right.float()).to(left.dtype)
    row, col = _rows_of(pos, crd), crd.long()
    chunk = max(1, 2**22 // max(left.shape[1], 1))
    parts = [(left[r] * right[c]).sum(1) for r, c in zip(row.split(chunk), col.split(chunk), strict=True)]
    return torch.cat(parts)


def _rows_of(pos: Tensor, crd: Tensor) -> Tensor:
    every = torch.arange(pos.numel() - 1, device=pos.device)
    return torch.repeat_interleave(every, pos.diff(), output_size=crd.numel())


def transpose_of(pos: Tensor, crd: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return compressed rows of A.T and the order of its values; made once for a structure and kept with it.

    Examples
    --------
    >>> import torch
    >>> pos, crd, order = transpose_of(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 2]), 2, 3)
    >>> pos.tolist(), crd.tolist(), order.tolist()
    ([0, 1, 1, 3], [0, 0, 1], [0, 1, 2])
    """
    known = _transposes.get(crd)
    # tensors of another shape, or with other rows, may share these columns
    if known is not None and known[0].data_ptr() == pos.data_ptr() and known[1] == (rows, cols):
        return known[2]
    compiled = None
    if enough(crd.numel()) and plain(pos, crd):
        rows_first = Structure(CSR(), (rows, cols), {"pos1": pos, "crd1": crd}, crd.device)
        compiled = restack(rows_first, target_of(CSC(), (rows, cols)))
    if compiled is not None and compiled.where is not None:
        arrays = (compiled.arrays["pos1"].to(pos.dtype), compiled.arrays["crd1"].to(crd.dtype))
        made = (*arrays, compiled.where)
    else:
        order = torch.argsort(crd, stable=True)
        counts = torch.bincount(crd, minlength=cols)
        pos_t = torch.zeros(cols + 1, dtype=pos.dtype, device=pos.device)
        pos_t[1:] = counts.cumsum(0)
        made = (pos_t, _rows_of(pos, crd)[order].to(crd.dtype), order)
    _transposes[crd] = pos, (rows, cols), made  # which keeps pos, so that its address is nobody else's
    return made


def _spmm_fake(
    pos: Tensor, crd: Tensor, values: Tensor, rows: int, cols: int, transposed: bool, x: Tensor, tokens_first: bool
) -> Tensor:
    out, tokens = (cols if transposed else rows), x.shape[1]
    return x.new_empty((tokens, out) if tokens_first else (out, tokens))


def _sddmm_fake(pos: Tensor, crd: Tensor, rows: int, cols: int, left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(crd.shape[0])


for _device in ("CPU", "CUDA"):
    _library.impl("spmm", spmm, _device)
    _library.impl("sddmm", sddmm, _device)
_library._register_fake("spmm", _spmm_fake)
_library._register_fake("sddmm", _sddmm_fake)
