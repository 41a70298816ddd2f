"""Is a tensor what it says? All who read it must read the same: what is accepted must not be silently wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import values as plain

_MANY = 10**6


def disagreement(t: gs.SparseTensor) -> str:
    """Return how readers of a tensor differ, or which entry it should not have; "" if it is sound."""
    keys = t.structure.entries().keys
    if keys.numel() and not (0 <= int(keys.min()) and int(keys.max()) < t.shape.numel()):
        return "an entry lies outside of the tensor"
    if keys.unique().numel() != keys.numel() or keys.numel() != t.nnz:
        return "an entry occurs twice"
    if t.shape.numel() > _MANY:  # few entries in a shape that no dense copy has
        same = set(t.to_format(gs.COO()).structure.entries().keys.tolist()) == set(keys.tolist())
        return "" if same else "COO has other entries"
    dense = plain.scatter(t._values, t.structure)
    readers = {"to_dense": t.to_dense, "COO": lambda: t.to_format(gs.COO()).to_dense(), "*": lambda: (t * 1).to_dense()}
    if t.dim() == 2:
        readers["transpose"] = lambda: t.t().to_dense().t()
    for name, read in readers.items():
        if not torch.equal(torch.nan_to_num(read()), torch.nan_to_num(dense)):
            return f"{name} reads other values"
    return _products(t, dense) if t.is_floating_point() and t.dim() == 2 and bool(dense.isfinite().all()) else ""


def _products(t: gs.SparseTensor, dense: torch.Tensor) -> str:
    cols = t.shape[1]
    x, y = torch.ones(3, cols, dtype=t.dtype), torch.ones(cols, 2, dtype=t.dtype)
    bound = 1e-4 * (dense.abs().sum(1) + 1)
    sums = dense.sum(1)
    results = {
        "linear": F.linear(x, t)[0], "matmul": (t @ y)[:, 0], "einsum": gs.einsum("ij,jk->ik", t, y)[:, 1],
        "rows": t.sum(1),
    }  # fmt: skip
    return next((f"{name} differs" for name, got in results.items() if bool(((got - sums).abs() > bound).any())), "")
