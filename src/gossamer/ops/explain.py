"""gs.explain: which function would run for these arguments, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.compiler.loops.by_hand import Loops
from gossamer.core import table
from gossamer.core.decide import Decision
from gossamer.core.dispatch import choose
from gossamer.core.fallback import formats_of, sparse_leaves
from gossamer.core.table import name_of, operator_of
from gossamer.core.tensor import SparseTensor
from gossamer.ops.einsum import einsum
from gossamer.ops.einsum_report import report


@dataclass(frozen=True)
class Explanation:
    """The result of :func:`gossamer.explain`; print it.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.explain(torch.cumsum, gs.from_dense(torch.eye(2), gs.COO()), 0).how
    'fallback'
    """

    operator: str
    formats: tuple[str, ...]
    how: str  # "native", "compiled", "conversion", "storage", "fallback" or "torch"
    function: str
    why: str
    registered: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        lines = [f"{self.operator}({', '.join(self.formats)}): {self.how}", f"  {self.why}", f"  runs {self.function}"]
        if self.registered:
            lines += ["  registered:", *(f"    {line}" for line in self.registered)]
        return "\n".join(lines)


def explain(op: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Show what would run for an operator and these arguments, and why. A call runs the same decision.

    ``how`` is

    - ``"native"``: a function of the table, on the stored entries,
    - ``"compiled"``: a kernel of the compiler,
    - ``"conversion"``: a function of the table, after a lossless conversion,
    - ``"storage"``: torch, on the dense tensor that Masked stores anyway,
    - ``"fallback"``: torch, on dense copies,
    - ``"torch"``: torch, because no values of a sparse tensor are needed.

    Nothing is computed and nothing is compiled.

    Parameters
    ----------
    op
        A torch function; :func:`gossamer.einsum`, which shows its steps, rejected orders, operations and bytes; or a
        layer of ``gs.quantize_``.
    *args, **kwargs
        The arguments of the call.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(8, 8), "50%", format=gs.CSR())
    >>> print(gs.explain(torch.nn.functional.linear, torch.randn(2, 8), w))
    linear(Dense, CSR): native
      linear(Dense, Format, Dense) accepts these formats; multiplied by gossamer.kernels.csr.product.CsrProduct
      runs gossamer.ops.linear.linear_sparse
      registered:
        ...
    """
    if op is einsum:
        return _of_einsum(*args, **kwargs)
    if isinstance(op, nn.Module):
        if not hasattr(op, "explain"):
            raise TypeError(f"a {type(op).__name__} computes by torch's operators: explain those, e.g. F.linear")
        return op.explain(*args, **kwargs)  # type: ignore[operator]
    registered = tuple(str(e) for e in table.entries(operator_of(op).name))
    if next(sparse_leaves((args, kwargs)), None) is None:
        return Explanation(operator_of(op).name, (), "torch", name_of(op), "no argument is sparse", registered)
    decision = choose(op, args, kwargs)
    return Explanation(
        decision.name, decision.formats, decision.how, name_of(decision.function), _why(decision), registered
    )


def _of_einsum(
    expression: str,
    *tensors: Any,
    out: Any = None,
    beta: float = 0.0,
    fill: float = 0.0,
    loops: Loops | None = None,
) -> Explanation:
    formats = formats_of(tensors)
    if isinstance(out, torch.Tensor):  # the result is added to it
        out = out.format if isinstance(out, SparseTensor) else None
    found = report(expression, tensors, out, fill, loops)
    return Explanation("gs.einsum", formats, found.how, name_of(einsum), found.text)


def _why(decision: Decision) -> str:
    words = [decision.reason]
    if decision.entry is not None and decision.entry.detail is not None:
        words.append(decision.entry.detail(*decision.args, **decision.kwargs))
    if decision.may_refuse:
        words.append("its function may still return NotImplemented when it runs, and the next entry is asked then")
    return "; ".join(word for word in words if word)
