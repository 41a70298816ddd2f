"""gs.explain: which function would run for these arguments, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gossamer.compiler.run.crossover import dense_wins
from gossamer.core import table as registry
from gossamer.core.dispatch import METADATA, conversion, kinds_of
from gossamer.core.table import operator_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked
from gossamer.ops import bridge
from gossamer.ops.einsum import plan_of
from gossamer.ops.reductions import reduced_dims


@dataclass(frozen=True)
class Explanation:
    """What :func:`gossamer.explain` found; print it.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.explain(torch.cumsum, gs.from_dense(torch.eye(2), gs.COO()), 0).how
    'fallback'
    """

    operator: str
    formats: tuple[str, ...]
    how: str  # "native", "compiled", "conversion", "fallback" or "torch"
    function: str
    why: str
    registered: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        lines = [f"{self.operator}({', '.join(self.formats)}): {self.how}", f"  {self.why}", f"  runs {self.function}"]
        if self.registered:
            lines += ["  registered:", *(f"    {line}" for line in self.registered)]
        return "\n".join(lines)


def explain(op: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Tell which function would run for an operator and these arguments, and why. Nothing is computed.

    An entry may still pass a call on (by returning ``NotImplemented``), when shapes or options are not its own; then
    the next one is tried, and at last the dense fallback.

    Parameters
    ----------
    op
        A torch callable.
    *args, **kwargs
        What you would call it with.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(8, 8), "50%", format=gs.CSR())
    >>> print(gs.explain(torch.nn.functional.linear, torch.randn(2, 8), w))  # doctest: +ELLIPSIS
    linear(Dense, CSR): native
      the most specific of 2 entries that take these formats is linear(Dense, Format, Dense)
      runs gossamer.ops.matmul.linear
      ...
    """
    operator = operator_of(op)
    ordered = (args[1], args[0], *args[2:]) if operator.swapped and len(args) > 1 else args
    kinds = kinds_of((*ordered, *kwargs.values()))
    formats = tuple(k.__name__ for k in kinds if k is not None)
    registered = tuple(str(e) for e in registry.entries(operator.name))

    def answer(how: str, function: str, why: str) -> Explanation:
        return Explanation(operator.name, formats, how, function, why, registered)

    if operator.name in METADATA or all(k in (None, Dense) for k in kinds):
        return answer("torch", _name(op), "no sparse tensor's values are needed")
    if operator.name in _SOFTMAX and bridge.takes_softmax(args[0], kwargs.get("dtype")):
        why = "four kernels over the stored entries: the largest of a group, exponentials, their sum, their shares"
        return answer("compiled", "gossamer.ops.bridge.softmax", why)
    loops = _compiled(operator.name, ordered, kwargs)
    if loops is not None:
        return answer("compiled", "gossamer.ops.einsum.einsum", loops)
    fitting = registry.candidates(operator.name, kinds)
    if fitting:
        best = fitting[0]
        signature = f"{best.operator}({', '.join(f.__name__ for f in best.formats)})"
        entries = f"{len(fitting)} {'entry' if len(fitting) == 1 else 'entries'}"
        why = f"the most specific of {entries} that take these formats is {signature}"
        return answer("native", _name(best.function), why)
    converted = conversion(operator.name, kinds)
    if converted is not None:
        entry, targets = converted
        names = ", ".join(t.__name__ for t in targets)
        return answer("conversion", _name(entry.function), f"inputs are converted to ({names}), losing nothing")
    if all(k in (None, Dense, Masked) for k in kinds):
        return answer("native", _name(op), "Masked stores a dense tensor, and torch computes on it")
    why = "no entry takes these formats: sparse inputs are made dense, the result is dense"
    return answer("fallback", _name(op), why)


_SOFTMAX = ("softmax", "softmin", "log_softmax")
_MATMUL = ("matmul", "mm", "mv", "__matmul__")


def _compiled(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Say what the compiler would do with a call; None if it would not be asked."""
    if name == "einsum" and isinstance(args[0], str):
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        found: bridge.Task | None = bridge.Task(args[0], tuple(operands))
    elif name in ("sum", "amax", "amin"):
        dim, keepdim = (*args[1:], kwargs.get("dim"), kwargs.get("keepdim", False))[:2] if len(args) < 3 else args[1:3]
        found = (
            bridge.task(name, args[:1], reduced_dims(dim, args[0].dim()), bool(keepdim))
            if "dtype" not in kwargs
            else None
        )
    else:
        pair = [a for a in args if isinstance(a, SparseTensor)]
        alike = len(pair) == 2 and pair[0].structure.same(pair[1].structure)
        known = name in _MATMUL or not (kwargs or alike)
        found = bridge.task("matmul" if name in _MATMUL else name, args) if known else None
    plan = None if found is None else plan_of(found.expression, found.tensors, found.out)
    if found is None or plan is None:
        return None
    if dense_wins(plan):
        return (
            f"gs.einsum({found.expression!r}) leaves it to torch: so dense, a dense product is faster (gs.dense_from)"
        )
    return f"as gs.einsum({found.expression!r}): " + plan.explain().replace("\n", "\n  ")


def _name(function: Any) -> str:
    module = getattr(function, "__module__", None) or "torch"
    return f"{module}.{getattr(function, '__qualname__', getattr(function, '__name__', function))}"


__all__ = ["Explanation", "Format", "explain"]
