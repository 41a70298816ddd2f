"""gs.explain: which function would run for these arguments, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.compiler.loops.by_hand import Loops
from gossamer.core import table
from gossamer.core.decide import Decision
from gossamer.core.dispatch import choose
from gossamer.core.fallback import formats_of, sparse_leaves
from gossamer.core.table import name_of, operator_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Masked
from gossamer.ops.attend import attention, refusal
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
        A torch function; :func:`gossamer.einsum`, which shows its steps, rejected orders, operations and bytes;
        :func:`gossamer.attention`; or a layer: linear, embedding or convolution, also of ``gs.quantize_``.
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
    >>> layer = gs.sparsify_(torch.nn.Linear(8, 8), "50%", format=gs.CSR())
    >>> gs.explain(layer, torch.randn(2, 8)).how
    'native'
    """
    if op is einsum:
        return _of_einsum(*args, **kwargs)
    if op is attention:
        return _of_attention(*args, **kwargs)
    if isinstance(op, nn.Module):
        return op.explain(*args, **kwargs) if hasattr(op, "explain") else _of_layer(op, *args)  # type: ignore[operator]
    registered = tuple(str(e) for e in table.entries(operator_of(op).name))
    if next(sparse_leaves((args, kwargs)), None) is None:
        how, why = _without_sparse(args)
        return Explanation(operator_of(op).name, (), how, name_of(op), why, registered)
    decision = choose(op, args, kwargs)
    return Explanation(
        decision.name, decision.formats, decision.how, name_of(decision.function), _why(decision), registered
    )


def _without_sparse(args: tuple[Any, ...]) -> tuple[str, str]:
    """``how`` and ``why`` where no argument is a SparseTensor; the weight of a masked layer is a dense parameter."""
    if any(isinstance(getattr(arg, "format", None), Masked) for arg in args):
        return "storage", "the weight is masked: a dense parameter that is 0 outside its mask. gs.pack_ makes it fast"
    return "torch", "no argument is sparse"


def _of_layer(layer: nn.Module, *inputs: Any) -> Explanation:
    """Explain the operator that a layer calls with its weight."""
    for kind, call in _CALLS.items():
        if isinstance(layer, kind):
            op, arguments = call(layer)
            return explain(op, *inputs, *arguments)
    raise TypeError(
        f"{type(layer).__name__} calls several operators: explain one of its linear, embedding or convolution "
        "layers, or an operator, such as F.linear"
    )


def _convolution(op: Any) -> Callable[[Any], tuple[Any, tuple[Any, ...]]]:
    def call(layer: Any) -> tuple[Any, tuple[Any, ...]]:
        return op, (layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    return call


#: The operator that a kind of layer calls, and its arguments after the input.
_CALLS: dict[type[nn.Module], Callable[[Any], tuple[Any, tuple[Any, ...]]]] = {
    nn.Linear: lambda layer: (F.linear, (layer.weight, layer.bias)),
    nn.Embedding: lambda layer: (F.embedding, (layer.weight, layer.padding_idx, layer.max_norm)),
    nn.Conv1d: _convolution(F.conv1d),
    nn.Conv2d: _convolution(F.conv2d),
    nn.Conv3d: _convolution(F.conv3d),
}


def _of_attention(*args: Any, **kwargs: Any) -> Explanation:
    reason, _ = refusal(*args, **kwargs)
    how, why = "native", "one kernel with an online softmax, on tensor cores"
    if reason is not None:
        how, why = "compiled", f"three steps for each head (scores, softmax, product): {reason}"
    return Explanation("gs.attention", formats_of((*args, *kwargs.values())), how, name_of(attention), why)


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
