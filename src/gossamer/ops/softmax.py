"""Softmax over the stored entries.

A place that isn't stored is a choice that isn't there, not a score of zero: it counts as minus infinity, and the result
has the pattern of its input. This is what a sparse attention mask means, what ``torch.sparse.softmax`` does, and the
one operator where a SparseTensor is not read as a dense tensor with zeros. It is the same in every format.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.softmax import softmax as rows_softmax
from gossamer.core.join import build, values_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.values import placed
from gossamer.ops.forms import is_traced
from gossamer.ops.reductions import Groups


def _parts(input: SparseTensor, dim: int, dtype: torch.dtype | None) -> tuple[Groups, Tensor, Tensor]:
    """Groups along the dimension, the scores less the largest of their group, and the sums of their exponentials."""
    groups = Groups(input, dim)
    values = groups.values if dtype is None else groups.values.to(dtype)
    top = values.new_full((groups.count,), float("-inf")).scatter_reduce(0, groups.group, values.detach(), "amax")
    shifted = values - top[groups.group]
    return groups, shifted, groups.sum(shifted.exp())


def takes_softmax(input: SparseTensor, dim: Any = None, *args: Any, **kwargs: Any) -> str | None:
    """Guard of softmax and its like."""
    if not isinstance(dim, int):
        return "no dimension is given"
    return None if input._values.dtype.is_floating_point else "the values are no floats"


@implements(torch.softmax, (Format,), when=takes_softmax)
def softmax(input: SparseTensor, dim: Any = None, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    """Softmax along a dimension, over the stored entries."""
    return _softmax(input, dim, dtype_asked(args, dtype), log=False)


@implements(F.softmin, (Format,), when=takes_softmax)
def softmin(input: SparseTensor, dim: Any = None, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    """Softmax of the negated scores, over the stored entries."""
    return _softmax(-input, dim, dtype_asked(args, dtype), log=False)  # type: ignore[arg-type]


@implements(torch.log_softmax, (Format,), when=takes_softmax)
def log_softmax(
    input: SparseTensor, dim: Any = None, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any
) -> Any:
    """Logarithm of the softmax along a dimension, over the stored entries."""
    return _softmax(input, dim, dtype_asked(args, dtype), log=True)


def dtype_asked(args: tuple[Any, ...], dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the type asked for, which some spellings give by place."""
    return next((a for a in args if isinstance(a, torch.dtype)), dtype)


def _softmax(input: SparseTensor, dim: Any, dtype: torch.dtype | None, log: bool) -> Any:
    values, structure = values_of(input), input.structure
    if not log and dtype is None and gpu.on_gpu(values.device) and not is_traced([input]) and input.dim() > 1:
        return build(rows_softmax(values, structure, dim), structure)
    groups, shifted, total = _parts(input, dim, dtype)
    out = shifted - total.log()[groups.group] if log else shifted.exp() / total[groups.group]
    return build(placed(out, structure.entries().where, structure), structure)
