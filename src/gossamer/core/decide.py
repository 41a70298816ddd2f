"""The one decision: which entry of the table computes a call, and why.

:func:`by_table` tries the entries that accept the formats of a call, the most specific first, and uses the first one
whose guard accepts the call. Dispatch runs the resulting :class:`Decision`; ``gs.explain``, warnings and reports print
the same one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core import table
from gossamer.core.backward import with_backward
from gossamer.core.facts import PARAMETERS
from gossamer.core.join import wants_dense_gradient
from gossamer.core.opaque import Opaque
from gossamer.core.table import Entry, Function, Guard, Kind, Kinds, Operator, name_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked

Refused = tuple[tuple[Entry, str], ...]


class Candidate(NamedTuple):
    """An entry that accepts the formats of a call, ready to be called."""

    function: Function
    when: Guard | None
    how: str
    entry: Entry


class Found(NamedTuple):
    """What the table has for an operator, formats and keywords."""

    candidates: tuple[Candidate, ...]  # the best first
    refused: Refused  # entries for these formats that don't accept a keyword


class Decision:
    """What runs for a call, and why. Print it, or :meth:`run` it.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.core.dispatch import choose
    >>> decision = choose(torch.abs, (gs.from_dense(torch.eye(2), gs.CSR()),))
    >>> decision.how, decision.reason
    ('native', 'abs(Format, Format, Format) accepts these formats')
    """

    __slots__ = ("args", "call", "entry", "function", "how", "kwargs", "name", "next", "quiet", "refused", "words")

    def __init__(
        self,
        name: str,
        function: Function,
        how: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        words: str = "",
        entry: Entry | None = None,
        refused: Refused = (),
        call: Function | None = None,
        quiet: bool = False,
        next: Any = None,
    ) -> None:
        self.name = name  # of the operator
        self.function = function  # what runs: a function of ours, or torch's
        self.how = how  # native, compiled, conversion, storage, fallback or torch
        self.args, self.kwargs = args, kwargs  # what it is called with
        self.words = words
        self.entry = entry  # None: not an entry of the table
        self.refused = refused  # entries that were tried before, with their reasons
        self.call = function if call is None else call  # how it is called, if that takes more than the function
        self.quiet = quiet  # a fallback that was requested: no warning
        self.next = next  # where to continue if it returns NotImplemented when it runs

    def run(self) -> Any:
        """Compute the call, unless it is on dense copies (``perform.on_dense``)."""
        return self.call(*self.args, **self.kwargs)

    @property
    def dense(self) -> bool:
        """Does torch compute it, on dense copies of all arguments?"""
        return self.entry is None and self.how in ("fallback", "storage") and self.call is self.function

    def inside(self, call: Function) -> Decision:
        """Return the same decision as part of a call that does more, such as writing the result."""
        return Decision(
            self.name, self.function, self.how, self.args, self.kwargs,
            words=self.words, entry=self.entry, refused=self.refused, call=call, quiet=self.quiet,
        )  # fmt: skip

    @property
    def reason(self) -> str:
        """The reason, as text."""
        parts = [self.words or _chosen(self)] if self.words or self.entry else []
        parts += [f"{entry.signature} is not used: {reason}" for entry, reason in self.refused]
        return "; ".join(parts)

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the tensors among the arguments."""
        kinds = kinds_of((*self.args, *self.kwargs.values()))
        return tuple(kind.__name__ for kind in kinds if kind is not None)

    @property
    def may_refuse(self) -> bool:
        """May the function return NotImplemented when it runs? (Its code names that word.)"""
        code = getattr(getattr(self.entry, "function", None), "__code__", None)
        return code is not None and "NotImplemented" in code.co_names

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.formats)}): {self.how}, {name_of(self.function)}; {self.reason}"


def by_table(
    operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], start: int = 0, refused: Refused = ()
) -> Decision:
    """Decide a call by the table: the first entry from ``start`` on that accepts it, or dense copies."""
    name = operator.name
    if kwargs:
        args, kwargs = _positional(name, args, kwargs)
    ordered = (args[1], args[0], *args[2:]) if operator.swapped else args
    found = candidates(name, kinds_of(ordered), tuple(kwargs))
    refused = refused or found.refused
    if name not in _OWN_GRADIENT and any(wants_dense_gradient(a) for a in (*args, *kwargs.values())):
        words = "the gradient of a sparse operand is wanted at every position (grad_format)"
        return Decision(name, func, "fallback", args, kwargs, words=words, quiet=True)
    for i, candidate in enumerate(found.candidates[start:], start):
        reason = None if candidate.when is None else candidate.when(*ordered, **kwargs)
        if reason is None:
            entry, again = candidate.entry, (operator, func, args, kwargs, i + 1, refused)
            return Decision(
                name, entry.function, candidate.how, ordered, kwargs,
                entry=entry, refused=refused, call=candidate.function, next=again,
            )  # fmt: skip
        refused = (*refused, (candidate.entry, reason))
    return _dense(name, func, args, kwargs, refused)


#: Operators whose functions return a dense gradient if the tensor requests one (``grad_format``).
_OWN_GRADIENT = {"linear", "conv2d"}


def after_refusal(decision: Decision) -> Decision:
    """Return the next decision, after a function returned NotImplemented when it ran."""
    operator, func, args, kwargs, start, refused = decision.next
    assert decision.entry is not None
    return by_table(operator, func, args, kwargs, start, (*refused, (decision.entry, REFUSED_WHEN_RUN)))


REFUSED_WHEN_RUN = "it returned NotImplemented when it ran"


def _chosen(decision: Decision) -> str:
    assert decision.entry is not None
    signature = decision.entry.signature
    if decision.how == "conversion":
        names = ", ".join(f.__name__ for f in decision.entry.formats)
        return f"{signature} accepts these formats once inputs are converted to ({names}), which loses nothing"
    return f"{signature} accepts these formats"


def _dense(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refused: Refused) -> Decision:
    """Decide for torch on dense tensors: those that Masked stores, or copies."""
    kinds = {k for k in kinds_of((*args, *kwargs.values())) if k is not None}
    if all(issubclass(k, (Dense, Masked)) for k in kinds):
        words = "Masked stores a dense tensor, and torch computes on it"
        return Decision(name, func, "storage", args, kwargs, words=words, refused=refused)
    words = "" if refused else "no entry of the table accepts these formats"
    return Decision(name, func, "fallback", args, kwargs, words=words, refused=refused)


# -- formats of arguments

_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def kinds_of(args: tuple[Any, ...]) -> Kinds:
    """Return the format class of each argument; None if it is not a tensor."""
    return tuple([kind_of(a) for a in args])


def kind_of(value: Any) -> Kind | None:
    """Return the format class of one argument; of a list, the class that all its tensors share; of a class, itself."""
    if type(value) in _PLAIN:  # faster than isinstance, and true for most arguments
        return Dense
    if isinstance(value, SparseTensor):
        return type(value.format)
    if isinstance(value, Tensor):
        return Dense
    if isinstance(value, (list, tuple)):
        kinds = {kind_of(v) for v in value} - {None}
        opaque = next((kind for kind in kinds if kind is not None and issubclass(kind, Opaque)), None)
        return opaque or (kinds.pop() if len(kinds) == 1 else Format if kinds else None)
    if isinstance(value, Opaque):
        return type(value)
    return value if isinstance(value, type) and issubclass(value, (Format, Opaque)) else None


def _positional(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move tensors given by keyword to their places, so that their formats are seen."""
    if not any(isinstance(v, SparseTensor) for v in kwargs.values()):
        return args, kwargs
    names = PARAMETERS.get(name, ("input", "other"))
    kwargs = dict(kwargs)
    moved = list(args)
    for parameter in names[len(args) :]:
        if parameter not in kwargs:
            break
        moved.append(kwargs.pop(parameter))
    return tuple(moved), kwargs


# -- what the table has


def candidates(name: str, kinds: Kinds, keywords: tuple[str, ...] = ()) -> Found:
    """Return the entries to try for an operator, formats and options; looked up once, then cached."""
    found = table._FOUND.get((name, kinds, keywords))
    if found is None:
        found = table._FOUND[name, kinds, keywords] = _find(name, kinds, keywords)
    return found


# A trace may treat the result as a constant: its guards include the formats.
candidates._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find(name: str, kinds: Kinds, keywords: tuple[str, ...]) -> Found:
    fitting = table.fitting(name, kinds)
    known = [entry for entry in fitting if table.knows(entry, keywords)]
    unknown = [(entry, _options(entry, keywords)) for entry in fitting if entry not in known]
    found = [Candidate(_complete(e, e.function, kinds), _guard(e), e.how, e) for e in known]
    if not found:
        converted = _conversion(name, kinds)
        if converted is not None and table.knows(converted, keywords):
            function = _complete(converted, _converting(converted), converted.formats)
            found = [Candidate(function, _guard(converted), "conversion", converted)]
    return Found(tuple(found), tuple(unknown))


def _options(entry: Entry, keywords: tuple[str, ...]) -> str:
    missing = ", ".join(k for k in keywords if k not in (entry.keywords or ()))
    return f"its function has no option {missing}"


def _conversion(name: str, kinds: Kinds) -> Entry | None:
    """Return an entry that fits once sparse inputs are converted to its formats, losing nothing."""
    for entry in reversed(table.entries(name)):
        wanted = tuple(f if _lossless(k, f) else k for k, f in zip(kinds, entry.formats, strict=False))
        if entry.inline is None and table.matches(entry, wanted + kinds[len(wanted) :]):
            return entry
    return None


def _lossless(kind: Kind | None, target: Kind) -> bool:
    """Can a tensor of this kind become the target without storing more or fewer positions?"""
    if kind is None or issubclass(kind, (Dense, Opaque, target)) or target in (Format, Dense, Masked):
        return False
    return issubclass(target, Format) and target.any_pattern


def _converting(entry: Entry) -> Function:
    def convert(value: Any, target: Any) -> Any:
        wrong = isinstance(value, SparseTensor) and not isinstance(value.format, target)
        return value.to_format(target()) if wrong else value

    def converted(*args: Any, **kwargs: Any) -> Any:
        moved = [convert(a, t) for a, t in zip(args, entry.formats, strict=False)]
        return entry.function(*moved, *args[len(moved) :], **kwargs)

    return converted


def _complete(entry: Entry, function: Function, kinds: Kinds) -> Function:
    """Return the function of an entry, with a bias and the like that were left out as None, and its own backward."""
    backward = table.backward_of(entry.operator, kinds)
    if backward is not None:
        function = with_backward(function, backward.function)
    return function if entry.required < 3 else _filled(function, entry.required)


def _guard(entry: Entry) -> Guard | None:
    return entry.when if entry.when is None or entry.required < 3 else _filled(entry.when, entry.required)


def _filled(function: Function, required: int) -> Function:
    """Return a function that gets None for positional arguments that were left out."""

    def complete(*args: Any, **kwargs: Any) -> Any:
        missing = required - len(args) - len(kwargs)
        return function(*args, *(None,) * missing, **kwargs) if missing > 0 else function(*args, **kwargs)

    return complete
