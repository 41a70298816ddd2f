"""Windows: views of dense operands for affine access."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gossamer.compiler.language.affine import Affine, Window, affine
from gossamer.core.tensor import SparseTensor


def plainly(expression: str, tensors: Sequence[Tensor]) -> tuple[str, tuple[Tensor, ...]]:
    """Return an expression and operands without affine access.

    Examples
    --------
    >>> import torch
    >>> plainly("k, i+k -> i", [torch.ones(2), torch.ones(5)])[0]
    'k, i k -> i'
    """
    found = affine(expression, len(tensors)) if isinstance(expression, str) else None
    return (expression, tuple(tensors)) if found is None else (found.expression, windowed(expression, found, tensors))


def windowed(expression: str, found: Affine, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the operands, with dimensions that are read at a sum of two indices cut into windows.

    The size of the offset is that of an operand that has it alone; the place goes as far as its windows fit.

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler.language.affine import affine
    >>> found = affine("o k, i+k -> o i", 2)
    >>> windowed("o k, i+k -> o i", found, [torch.ones(1, 2), torch.arange(4)])[1]
    tensor([[0, 1],
            [1, 2],
            [2, 3]])
    """
    sizes = _sizes(found, tensors)
    out = list(tensors)
    for window in reversed(found.windows):  # from the last dimension on, so that numbers of dimensions stay right
        if window.offset not in sizes:
            raise ValueError(f"{expression!r}: no other operand has {window.offset!r}, so its size is not known")
        t = out[window.operand]
        t = t.to_dense() if isinstance(t, SparseTensor) else t
        out[window.operand] = _cut(expression, t, window, sizes[window.offset])
    return tuple(out)


def _cut(expression: str, tensor: Tensor, window: Window, size: int) -> Tensor:
    span = window.step * (size - 1) + 1
    if not size or tensor.shape[window.dim] < span:
        have = tensor.shape[window.dim]
        raise ValueError(f"{expression!r}: a window of {span} does not fit into dimension {window.dim}, of size {have}")
    cut = tensor.unfold(window.dim, span, window.stride)[..., :: window.step]
    return cut.movedim(-1, window.dim + 1)


def _sizes(found: Affine, tensors: Sequence[Tensor]) -> dict[str, int]:
    """Sizes of the indices that operands have without windows."""
    sizes: dict[str, int] = {}
    for k, (group, t) in enumerate(zip(found.expression.partition("->")[0].split(","), tensors, strict=True)):
        names = group.split()
        for window in (w for w in found.windows if w.operand == k):
            place = next(n for n in range(len(names) - 1) if names[n : n + 2] == [window.place, window.offset])
            names[place : place + 2] = [""]
        if len(names) != t.dim():
            raise ValueError(f"operand {k} has {t.dim()} dimensions, but {group.strip()!r} names others")
        sizes |= {v: size for v, size in zip(names, t.shape, strict=True) if v}
    return sizes
