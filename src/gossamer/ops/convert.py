"""Conversions of matrices, compiled: entries are counted by column and put in their place, in one pass, without a sort.

Between CSR, CSC and COO, in any direction; other conversions sort their entries by torch
(:func:`gossamer.tensor.from_entries`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.formats import COO, CSC, CSR, Format, Structure
from gossamer.native import BuildError
from gossamer.ops.bridge import available
from gossamer.ops.turn import transpose
from gossamer.tensor import SparseTensor, build, values_of

_LEAST = 4096  # entries: below, torch's own operators are as fast
_TARGETS = (CSR(), CSC(), COO())


def convert(tensor: SparseTensor, format: Format) -> SparseTensor | None:
    """Return a matrix in another format; None where that is left to torch.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.sparsify(torch.randn(200, 300), "80%", format=gs.CSR())
    >>> b = a.to_format(gs.CSC())
    >>> b.format, torch.equal(b.to_dense(), a.to_dense())
    (CSC(), True)
    """
    structure = tensor._structure
    if format not in _TARGETS or len(structure.shape) != 2 or tensor._values.numel() < _LEAST:
        return None
    if type(tensor._values) not in (Tensor, torch.nn.Parameter) or tensor._values.device.type != "cpu":
        return None
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or not available():
        return None
    if structure.plain or type(structure.format) not in (CSR, CSC, COO):
        return None
    try:
        made, index = _turned(structure, format)
    except BuildError:
        return None
    values = values_of(tensor).reshape(-1)
    return build(values.clone() if index is None else values[index], made)


def _turned(structure: Structure, format: Format) -> tuple[Structure, Tensor | None]:
    """The structure in another format, and the place of each of its entries in the old values (None: the same)."""
    pos, crd, rows, cols, transposed, index = structure.matrix()
    assert index is None
    by_column = format == CSC()
    if transposed != by_column:
        pos, crd, index = transpose(pos, crd, rows if transposed else cols)
    if format != COO():
        return Structure(format, structure.shape, {"pos1": pos, "crd1": crd}, structure.device), index
    row = torch.repeat_interleave(torch.arange(rows, dtype=crd.dtype), pos.diff(), output_size=crd.numel())
    ends = torch.tensor([0, crd.numel()], dtype=crd.dtype)
    return Structure(format, structure.shape, {"pos0": ends, "crd0": row, "crd1": crd}, structure.device), index
