"""Which plain torch calls the compiler computes, and as which expression.

It takes over where it is faster than what these functions did before: from a few thousand entries on, for ordinary CPU
tensors of the same type. Below that, and inside a trace, they keep to torch's own operators, which need no build.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.language.algebra import Access, Op, Tree, product
from gossamer.compiler.run.calls import Prepared, run
from gossamer.compiler.run.runtime import available
from gossamer.core.tensor import SparseTensor, build, tracked, values_of
from gossamer.formats import Format, Masked, PackedRows
from gossamer.ops.einsum import einsum

ENTRIES = 4096  # of the sparse operands together: below, there is nothing to gain
_TYPES = (torch.float32, torch.float64)
_LETTERS = "abcdefgh"
_UNION = {"add": "{0} + {0}", "sub": "{0} - {0}", "maximum": "max({0}, {0})", "minimum": "min({0}, {0})"}


class Task(NamedTuple):
    """A call of :func:`gossamer.einsum`."""

    expression: str
    tensors: tuple[Tensor, ...]
    out: Format | None = None

    def run(self) -> Any:
        """Compute it."""
        return einsum(self.expression, *self.tensors, out=self.out)


def task(name: str, args: tuple[Any, ...], dims: tuple[int, ...] = (), keepdim: bool = False) -> Task | None:
    """Return the expression by which the compiler computes a call; None if it doesn't.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.sparsify(torch.randn(200, 200), "80%", format=gs.CSR())
    >>> task("matmul", (a, torch.randn(200, 8))).expression
    'ik,kj->ij'
    >>> task("matmul", (gs.from_dense(torch.eye(2), gs.CSR()), torch.eye(2))) is None  # too small to gain anything
    True
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    if len(tensors) != len(args) or not _usable(tensors):
        return None
    if name == "matmul":
        return _matmul(*args)
    first = args[0]
    letters = _LETTERS[: len(_shape(first))]
    if name in _UNION or name == "mul":
        if sum(t._values.numel() for t in tensors if isinstance(t, SparseTensor)) < 4 * ENTRIES:
            return None  # patterns that are new in each call have to be looked at first
        if any(not isinstance(t, SparseTensor) or t._dense_shape != first._dense_shape for t in tensors):
            return None
        body = f"{letters},{letters}" if name == "mul" else _UNION[name].format(letters)
        return Task(f"{body}->{letters}", tuple(tensors), first.format)
    if name in ("sum", "amax", "amin") and isinstance(first, SparseTensor) and not keepdim:
        if name != "sum" and torch.is_grad_enabled() and tracked(first):
            return None
        kept = "".join(v for d, v in enumerate(letters) if d not in dims)
        head = {"sum": "", "amax": "max: ", "amin": "min: "}[name]
        empty = any(first._dense_shape[d] == 0 for d in dims)
        return Task(f"{head}{letters}->{kept}", (first,)) if kept and not empty else None
    return None


def takes_softmax(input: SparseTensor, dtype: torch.dtype | None) -> bool:
    """Does the compiler compute a softmax of this tensor, in this type?"""
    return dtype in (None, input._values.dtype) and input.dim() >= 2 and _usable([input])


def softmax(input: SparseTensor, dim: int, log: bool) -> SparseTensor:
    """Softmax over the stored entries, in four kernels."""
    names = tuple(_LETTERS[: input.dim()])
    kept = tuple(v for d, v in enumerate(names) if d != dim % input.dim())
    sizes = dict(zip(names, input._dense_shape, strict=True))
    entries = Prepared(values_of(input), input.structure, names)

    def at_entries(left: Prepared, row: Tensor, tree: Tree) -> Prepared:
        """A function of each entry and of its group."""
        statement = Statement((names, kept), names, product([tree, Access(0, stored=True)]))
        values, _ = run(statement, [left, Prepared(row, None, kept)], sizes, 0)
        return Prepared(values, input.structure, names)

    less = Op("-", (Access(0), Access(1)))
    top, _ = run(
        Statement((names,), kept, Access(0), "top"),
        [Prepared(entries.values.detach(), input.structure, names)],
        sizes,
        "dense",
    )
    raised = at_entries(entries, top, Op("exp", (less,)))
    total, _ = run(Statement((names,), kept, Access(0)), [raised], sizes, "dense")
    if log:
        done = at_entries(entries, top + total.log(), less)
    else:
        done = at_entries(raised, total, Op("*", (Access(0), Op("inverse", (Access(1),)))))
    return build(done.values, input.structure)


def _matmul(a: Tensor, b: Tensor) -> Task | None:
    left, right = _shape(a), _shape(b)
    if len(left) != 2 or len(right) not in (1, 2) or left[1] != right[0]:
        return None
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return Task("ik,kj->ij", (a, b), a.format) if len(right) == 2 else None
    if isinstance(a, SparseTensor) and b.is_contiguous():
        return Task("ik,kj->ij" if len(right) == 2 else "ik,k->i", (a, b))
    return None


def _shape(t: Tensor) -> torch.Size:
    """Return the shape of any tensor; asking a SparseTensor as torch does costs microseconds."""
    return t._dense_shape if isinstance(t, SparseTensor) else t.shape


def _usable(tensors: list[Tensor]) -> bool:
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    entries, first = 0, None
    for t in tensors:
        if isinstance(t, SparseTensor):
            values, dims = t._values, len(t._dense_shape)
            if t.grad_format is not None or isinstance(t.format, (Masked, PackedRows)) or not 0 < dims <= len(_LETTERS):
                return False
            entries += values.numel()
        else:
            values = t
        first = values.dtype if first is None else first
        if type(values) not in (Tensor, torch.nn.Parameter) or values.dtype != first or values.device.type != "cpu":
            return False
    return entries >= ENTRIES and first in _TYPES and available()
