"""One flat table: from an operator and the formats of its inputs to the function that computes it.

An entry of the table has an operator, formats, a function, and a guard that says which calls the function supports:

    def square(t, *args):
        return None if t.shape[0] == t.shape[1] else "the matrix is not square"

    @gs.implements(torch.trace, (gs.COO,), when=square)
    def trace_coo(t): ...

The guard ``when`` gets the arguments of the call. It returns None if the function supports them, or else the reason as
a string. :mod:`gossamer.core.decide` calls it once; ``gs.explain``, the warning of a dense fallback and the report
print the same answer.

An operator has one name, however it is called: ``torch.add``, ``Tensor.add``, ``a + b`` and ``aten.add.Tensor``
are all ``"add"``; ``Tensor.add_`` is ``"add"`` in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gossamer.core.facts import ALIASES, ARITHMETIC, COMPARISONS, DUNDERS
from gossamer.core.opaque import Opaque
from gossamer.formats import Format

Function = Callable[..., Any]
Guard = Callable[..., str | None]
Kind = type[Format] | type[Opaque]
Kinds = tuple[Kind | None, ...]


class Operator(NamedTuple):
    """The one name of an operator, and how this call of it was written."""

    name: str
    inplace: bool = False
    swapped: bool = False  # __radd__ and its like: the operands come in the other order


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    operator: str
    formats: tuple[Kind, ...]
    function: Function
    required: int  # positional arguments that the function requires
    when: Guard | None = None  # None: it supports every call with these formats
    how: str = "native"  # "native", "compiled" or "fallback", for gs.explain
    detail: Callable[..., str] | None = None  # a text about details, for gs.explain
    inline: type | None = None  # the sparsifier that it applies while it computes
    keywords: frozenset[str] | None = None  # keyword arguments that the function accepts (None: any)

    @property
    def signature(self) -> str:
        """The operator and the formats."""
        return f"{self.operator}({', '.join(f.__name__ for f in self.formats)})"

    def __str__(self) -> str:
        return f"{self.signature} by {name_of(self.function)}"


_TABLE: dict[str, list[Entry]] = {}
_BACKWARD: dict[str, list[Entry]] = {}
_OPERATORS: dict[Any, Operator] = {}


def operator_of(func: Any) -> Operator:
    """Return the operator that a torch callable stands for.

    Examples
    --------
    >>> import torch
    >>> operator_of(torch.Tensor.__rsub__)
    Operator(name='sub', inplace=False, swapped=True)
    >>> operator_of(torch.Tensor.mul_), operator_of(torch.ops.aten.mul.Tensor)
    (Operator(name='mul', inplace=True, swapped=False), Operator(name='mul', inplace=False, swapped=False))
    """
    known = _OPERATORS.get(func)
    if known is None:
        known = _OPERATORS[func] = _name_operator(func)
    return known


def _name_operator(func: Any) -> Operator:
    if isinstance(func, torch._ops.OpOverload):
        name = func._schema.name.split("::")[1]
    elif isinstance(func, str):
        name = func
    else:
        name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):  # a property of Tensor: T, grad, data, ...
        return Operator(f"{func.__self__.__name__}.{name.strip('_')}")
    if name.startswith("__") and name.endswith("__"):
        return _name_dunder(name[2:-2])
    inplace = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if inplace else name
    return Operator(ALIASES.get(name, name), inplace)


def _name_dunder(name: str) -> Operator:
    if name in ("rdiv", "rtruediv"):
        return Operator("rdiv")  # torch computes it as a product with the reciprocal
    if name[:1] == "r" and name[1:] in ARITHMETIC:
        return Operator(DUNDERS.get(name, name[1:]), swapped=True)
    if name[:1] == "i" and name[1:] in ARITHMETIC:
        return Operator(DUNDERS.get(name, name[1:]), inplace=True)
    return Operator(DUNDERS.get(name, name if name in (*ARITHMETIC, "neg", "abs", *COMPARISONS) else f"__{name}__"))


def name_of(function: Any) -> str:
    """Return the full name of a function, for people to read."""
    module = getattr(function, "__module__", None) or "torch"
    return f"{module}.{getattr(function, '__qualname__', getattr(function, '__name__', function))}"


# -- adding a line


def implements(
    operator: Any,
    formats: tuple[Kind, ...],
    *,
    when: Guard | None = None,
    how: str = "native",
    detail: Callable[..., str] | None = None,
    inline: type | None = None,
) -> Callable[[Function], Function]:
    """Register a function for an operator and the formats of its inputs.

    The most specific entry is used: ``gs.CSR`` before ``gs.Format`` (any format); among equally specific ones, the
    latest. Arguments that are not tensors (numbers, None, a missing bias) match every format.

    Parameters
    ----------
    operator
        A torch callable (``torch.add``, ``torch.nn.functional.linear``) in any of its spellings.
    formats
        A format class for each tensor argument, in order; or your own class of weights (:class:`gossamer.Opaque`).
    when
        A guard: a function of the same arguments that returns None if this entry supports the call, or else the reason
        as a string. It looks only at shapes, types and options. If it refuses, the next entry is tried.
    how
        What :func:`gossamer.explain` shows: ``"native"``, ``"compiled"``, or ``"fallback"`` for a function that works
        on dense copies.
    detail
        A function of the same arguments that returns a text about details, which :func:`gossamer.explain` adds.
    inline
        A sparsifier class that the function applies while it computes. The function then gets ``sparsifier=``, and is
        used for :func:`gossamer.sparsified_op` with such an inline sparsifier.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> def square(t):
    ...     return None if t.shape[0] == t.shape[1] else "the matrix is not square"
    >>> @gs.implements(torch.trace, (gs.COO,), when=square)
    ... def trace_coo(t):
    ...     row, col = t.structure.arrays["crd0"], t.structure.arrays["crd1"]
    ...     return t.values()[row == col].sum()
    >>> torch.trace(gs.from_dense(torch.eye(3), gs.COO()))
    tensor(3.)
    """
    return _register(_TABLE, operator, formats, when, how, detail, inline)


def implements_backward(operator: Any, formats: tuple[Kind, ...]) -> Callable[[Function], Function]:
    """Register the backward of an operator for the formats of its inputs.

    The function gets ``(grad, *inputs)`` and returns the gradient of each input, or None. Without one, autograd derives
    the gradients from the forward function.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> @gs.implements_backward(torch.trace, (gs.COO,))
    ... def trace_coo_backward(grad, t):
    ...     return gs.from_dense(torch.eye(*t.shape), gs.COO()) * grad
    """
    return _register(_BACKWARD, operator, formats)


def _register(
    table: dict[str, list[Entry]],
    operator: Any,
    formats: tuple[Kind, ...],
    when: Guard | None = None,
    how: str = "native",
    detail: Callable[..., str] | None = None,
    inline: type | None = None,
) -> Callable[[Function], Function]:
    name = operator_of(operator).name
    for format in formats:
        if not (isinstance(format, type) and issubclass(format, (Format, Opaque))):
            raise TypeError(f"formats must be classes such as gs.CSR, not {format!r}")

    def register(function: Function) -> Function:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = sum(p.default is p.empty and p.kind in places for p in parameters)
        named = frozenset(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))
        known = None if any(p.kind == p.VAR_KEYWORD for p in parameters) else named
        entry = Entry(name, tuple(formats), function, required, when, how, detail, inline, known)
        table.setdefault(name, []).append(entry)
        changed()
        return function

    return register


# -- reading the table

#: What :mod:`gossamer.core.decide` found for an operator, formats and keywords; a new line of the table clears it.
_FOUND: dict[Any, Any] = {}
_version = 0


def version() -> int:
    """Return a number that changes with the table, so that caches of decisions can be checked."""
    return _version


def changed() -> None:
    """Forget what was found in the table before it changed."""
    global _version
    _version += 1
    _FOUND.clear()


def entries(name: str) -> list[Entry]:
    """Return the lines of the table for an operator."""
    return _TABLE.get(name, [])


def fitting(name: str, kinds: Kinds, table: dict[str, list[Entry]] = _TABLE) -> list[Entry]:
    """Return the entries that accept these formats, the most specific first."""
    found = [e for e in table.get(name, []) if e.inline is None and matches(e, kinds)]
    found.reverse()  # sorting is stable: the latest of equals comes first
    return sorted(found, key=lambda e: _distance(e, kinds))


def backward_of(name: str, kinds: Kinds) -> Entry | None:
    """Return the backward registered for these formats, if there is one."""
    found = fitting(name, kinds, _BACKWARD)
    return found[0] if found else None


def inline_entry(name: str, kinds: Kinds, sparsifier: object) -> Entry | None:
    """Return the entry that applies such a sparsifier while it computes, if there is one."""
    found = [e for e in _TABLE.get(name, []) if e.inline and isinstance(sparsifier, e.inline) and matches(e, kinds)]
    return min(reversed(found), key=lambda e: _distance(e, kinds), default=None)


def matches(entry: Entry, kinds: Kinds) -> bool:
    """Does the entry accept inputs of these kinds? (None: not a tensor.)"""
    if sum(k is not None for k in kinds[len(entry.formats) :]):
        return False
    return all(k is None or issubclass(k, f) for k, f in zip(kinds, entry.formats, strict=False))


def knows(entry: Entry, keywords: tuple[str, ...]) -> bool:
    """Has the function of an entry these keyword arguments? (If not, the call has an option that it doesn't cover.)"""
    return entry.keywords is None or entry.keywords.issuperset(keywords)


def _distance(entry: Entry, kinds: Kinds) -> int:
    pairs = zip(kinds, entry.formats, strict=False)
    return sum(k.__mro__.index(f) for k, f in pairs if k is not None)
