"""Compares the results of a compiled model with those of the original."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def difference(got: Any, expected: Any) -> float:
    """Return the largest relative error, ``|got - expected| / |expected|`` by 2-norms, of the tensors in two results.

    Integers and booleans must be equal, and so must be the positions of NaN and infinities: otherwise it is infinite.

    Examples
    --------
    >>> import torch
    >>> round(difference({"a": torch.tensor([3.0, 4.1])}, {"a": torch.tensor([3.0, 4.0])}), 3)
    0.02
    >>> difference(torch.tensor([1]), torch.tensor([2]))
    inf
    """
    ours, shape = pytree.tree_flatten(got)
    theirs, wanted = pytree.tree_flatten(expected)
    if shape != wanted or len(ours) != len(theirs):
        return float("inf")
    return max((_one(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _one(got: Any, expected: Any) -> float:
    if not isinstance(expected, Tensor):
        return 0.0 if got == expected else float("inf")
    if got.shape != expected.shape or got.dtype is not expected.dtype:
        return float("inf")
    if not expected.is_floating_point():
        return 0.0 if torch.equal(got, expected) else float("inf")
    finite = torch.isfinite(expected)
    if not torch.equal(finite, torch.isfinite(got)) or not torch.equal(_odd(got, finite), _odd(expected, finite)):
        return float("inf")
    a, b = got[finite].double(), expected[finite].double()
    error = float((a - b).norm())
    return error / max(float(b.norm()), 1e-30) if error else 0.0


def _odd(x: Tensor, finite: Tensor) -> Tensor:
    return torch.nan_to_num(x[~finite], nan=0.0, posinf=1.0, neginf=-1.0)
