"""Which plain torch calls the compiler computes, and as which expression.

It is faster than the other functions from a few thousand entries on, for ordinary CPU tensors of the same type. Below
that, and inside a trace, torch's own operators compute them, and need no build.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.language.algebra import product
from gossamer.compiler.language.tree import Access, Op, Tree
from gossamer.compiler.run.calls import Prepared, run
from gossamer.compiler.run.runtime import available
from gossamer.core.join import build, tracked, values_of
from gossamer.core.look import shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked, PackedRows
from gossamer.kernels.csr.product import CsrProduct
from gossamer.ops import product as products
from gossamer.ops.matmul import exactly, takes_matmul
from gossamer.ops.reductions import Dims, reduced_dims, stays_sparse, takes_extreme, takes_sum
from gossamer.ops.softmax import dtype_asked, takes_softmax
from gossamer.ops.torch_einsum import Task

ENTRIES = 4096  # of the sparse operands together: below this, compiling gains nothing
_TYPES = (torch.float32, torch.float64)
_LETTERS = "abcdefgh"


def usable(tensors: Sequence[Tensor], least: int = 1) -> str | None:
    """Return None if the compiler may compute with these, else the reason why not.

    ``least`` times ENTRIES are enough to gain something.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return "a trace keeps to torch's operators"
    entries, first = 0, None
    for t in tensors:
        values = t._values if isinstance(t, SparseTensor) else t
        if isinstance(t, SparseTensor):
            if isinstance(t.format, (Masked, PackedRows)) or not 0 < len(t._dense_shape) <= len(_LETTERS):
                return "the compiler leaves this format, or number of dimensions, to others"
            entries += values.numel()
        first = values.dtype if first is None else first
        if type(values) not in (Tensor, torch.nn.Parameter) or values.dtype != first or values.device.type != "cpu":
            return "the operands are no ordinary CPU tensors of one type"
    if entries < least * ENTRIES:
        return "there are too few entries to gain anything by a compiled kernel"
    if first not in _TYPES:
        return "the compiler computes in float32 and float64"
    return None if available() else "there is no C compiler"


# -- products


def _matmul(input: SparseTensor, other: Tensor) -> Task:
    if isinstance(other, SparseTensor):
        return Task("ik,kj->ij", (input, other), input.format)
    return Task("ik,kj->ij" if other.dim() == 2 else "ik,k->i", (input, other))


def _takes_matmul(input: Tensor, other: Tensor) -> str | None:
    refused = takes_matmul(input, other)
    if refused is not None:
        return refused
    if len(shape_of(input)) != 2 or len(shape_of(other)) > 2:
        return "the compiler takes products of two matrices, or a matrix and a vector"
    if not isinstance(other, SparseTensor):
        if not other.is_contiguous():
            return "the dense operand is not contiguous"
        assert isinstance(input, SparseTensor)
        if products.chosen(*products.case_of(input._values, input.structure)) is not CsrProduct:
            return "the format has kernels of its own"
    elif len(shape_of(other)) == 1:
        return "both operands are sparse, and one is a vector"
    return usable((input, other))


def _exactly(left: int, right: int) -> Any:
    takes = exactly(left, right)

    def guard(input: Tensor, mat2: Tensor, *reduce: Any) -> str | None:
        refused = takes(input, mat2, *reduce)
        return _takes_matmul(input, mat2) if refused is None else refused

    return guard


def matmul(input: SparseTensor, other: Tensor) -> Any:
    """Product of a sparse matrix with a dense or sparse one."""
    return _matmul(input, other).run()


def _describe_matmul(input: SparseTensor, other: Tensor) -> str:
    return _matmul(input, other).describe()


for _name, _guard in {"matmul": _takes_matmul, "mm": _exactly(2, 2), "mv": _exactly(2, 1)}.items():
    for _other in (Dense, Format):
        implements(_name, (Format, _other), when=_guard, how="compiled", detail=_describe_matmul)(matmul)


# -- sums, differences and products of different patterns

_UNION = {
    "add": "{0} + {0}", "sub": "{0} - {0}", "maximum": "max({0}, {0})", "minimum": "min({0}, {0})", "mul": "{0},{0}",
}  # fmt: skip


def _takes_pair(input: Any, other: Any, *rest: Any, **options: Any) -> str | None:
    if rest or options or not isinstance(input, SparseTensor) or not isinstance(other, SparseTensor):
        return "the compiler takes two sparse tensors without options"
    if input._dense_shape != other._dense_shape:
        return "the shapes differ"
    refused = usable((input, other), least=4)  # new patterns must be analysed first
    if refused is None and input.structure.same(other.structure):
        return "both have the same pattern, so the values are enough"
    return refused


def _pairwise(name: str) -> Any:
    def task(input: SparseTensor, other: SparseTensor) -> Task:
        letters = _LETTERS[: len(input._dense_shape)]
        return Task(f"{_UNION[name].format(letters)}->{letters}", (input, other), input.format)

    def run(input: SparseTensor, other: SparseTensor) -> Any:
        return task(input, other).run()

    run.__name__ = run.__qualname__ = name  # for gs.explain
    implements(name, (Format,) * 3, when=_takes_pair, how="compiled", detail=lambda a, b: task(a, b).describe())(run)


for _name in _UNION:
    _pairwise(_name)


# -- sums and extremes along dimensions


def _reduction(name: str, head: str) -> None:
    def task(input: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Task:
        dims, letters = reduced_dims(dim, len(input._dense_shape)), _LETTERS[: len(input._dense_shape)]
        kept = "".join(v for d, v in enumerate(letters) if d not in dims)
        return Task(f"{head}{letters}->{kept}", (input,))

    def guard(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> str | None:
        if keepdim or dtype is not None:
            return "the compiler has no keepdim and no dtype"
        refused = takes_sum(input, dim) if name == "sum" else takes_extreme(input, dim)
        if refused is not None:
            return refused
        if name != "sum" and tracked(input):
            return "extremes have a gradient elsewhere"
        dims = reduced_dims(dim, len(input._dense_shape))
        if len(dims) == len(input._dense_shape) or any(input._dense_shape[d] == 0 for d in dims):
            return "all dimensions, or an empty one, are reduced"
        if name != "sum" and stays_sparse(input, dims):
            return "the result is sparse, and extremes are not written so by the compiler"
        return usable((input,))

    def run(input: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
        return task(input, dim).run()

    def describe(input: SparseTensor, *args: Any, **kwargs: Any) -> str:
        return task(input, *args, **kwargs).describe()

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=guard, how="compiled", detail=describe)(run)


for _name, _head in {"sum": "", "amax": "max: ", "amin": "min: "}.items():
    _reduction(_name, _head)


# -- softmax


def _takes_softmax(input: SparseTensor, dim: Any = None, *args: Any, dtype: Any = None, **kwargs: Any) -> str | None:
    refused = takes_softmax(input, dim)
    if refused is not None:
        return refused
    if dtype_asked(args, dtype) not in (None, input._values.dtype):
        return "the compiler gives the type of its input"
    return "a vector" if len(input._dense_shape) < 2 else usable((input,))


_FOUR = "four kernels over the stored entries: the largest of a group, exponentials, their sum, their shares"


def _softmax(input: SparseTensor, dim: int, log: bool) -> SparseTensor:
    """Softmax over the stored entries, in four kernels."""
    names = tuple(_LETTERS[: len(input._dense_shape)])
    kept = tuple(v for d, v in enumerate(names) if d != dim % len(names))
    sizes = dict(zip(names, input._dense_shape, strict=True))
    entries = Prepared(values_of(input), input.structure, names)

    def at_entries(left: Prepared, row: Tensor, tree: Tree) -> Prepared:
        """A function of each entry and of its group."""
        statement = Statement((names, kept), names, product([tree, Access(0, stored=True)]))
        values, _ = run(statement, [left, Prepared(row, None, kept)], sizes, 0)
        return Prepared(values, input.structure, names)

    less = Op("-", (Access(0), Access(1)))
    detached = Prepared(entries.values.detach(), input.structure, names)
    top, _ = run(Statement((names,), kept, Access(0), "top"), [detached], sizes, "dense")
    raised = at_entries(entries, top, Op("exp", (less,)))
    total, _ = run(Statement((names,), kept, Access(0)), [raised], sizes, "dense")
    if log:
        done = at_entries(entries, top + total.log(), less)
    else:
        done = at_entries(raised, total, Op("*", (Access(0), Op("inverse", (Access(1),)))))
    return build(done.values, input.structure)


def _compiled_softmax(name: str, negated: bool, log: bool) -> None:
    def run(input: SparseTensor, dim: Any = None, *args: Any, dtype: Any = None, **kwargs: Any) -> SparseTensor:
        return _softmax(-input if negated else input, dim, log)  # type: ignore[arg-type]

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=_takes_softmax, how="compiled", detail=lambda *a, **k: _FOUR)(run)


for _name, _negated, _log in (("softmax", False, False), ("softmin", True, False), ("log_softmax", False, True)):
    _compiled_softmax(_name, _negated, _log)
