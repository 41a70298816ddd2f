"""One operator of torch's database, called with sparse inputs and judged by torch's own dense result.

Every sample of the database is called twice: by torch on dense tensors, and by gossamer on the same tensors stored
sparse. About half of the entries are dropped first (on both sides), so that there is something not to store. Right
means: the same values, types and shapes, the same gradients at the stored positions, or the same error.

A call has its ``first`` float tensor sparse, its ``second`` one, or ``all`` of them (in lists too), each also in the
in-place form, whose rule is: torch's result at the stored positions of a sparse target, zero elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

import gossamer as gs
from gossamer.core.dispatch import choose
from gossamer.core.fallback import sparse_leaves, watch
from gossamer.core.join import from_entries, gather
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import scatter
from gossamer.ops import Explanation

Function = Callable[..., Any]
FORMATS = {"CSR": gs.CSR(), "COO": gs.COO(), "BSR": gs.BSR((2, 2)), "Masked": gs.Masked()}
VARIANTS = ("first", "second", "all", "in place, first", "in place, second", "in place, all")
SAMPLES, ERRORS = 5, 2  # at most, for an operator and format
LARGEST = 100_000  # entries of a sample's tensor: a few operators have samples of millions

#: The value is not defined: only type and shape are compared.
UNDEFINED = {"empty_like", "new_empty", "new_empty_strided", "empty_permuted", "empty_strided"}
#: A place that is not stored counts as minus infinity, and stays empty (see gossamer.ops.softmax).
OVER_STORED = {
    "softmax": -torch.inf, "log_softmax": -torch.inf, "nn.functional.softmin": torch.inf, "masked.softmax": -torch.inf,
    "masked.log_softmax": -torch.inf, "masked.softmin": torch.inf,
}  # fmt: skip
#: 0 / 0 is 0 where the numerator (the argument of this number) is not stored: quotients keep its pattern.
NUMERATOR = {"div": 0, "true_divide": 0, "addcdiv": 1}
#: Draws one random number for each stored value: the same as torch on the values alone, with the same seed.
DRAWS_STORED = {
    "nn.functional.dropout", "nn.functional.rrelu", "cauchy", "exponential", "geometric", "log_normal", "uniform",
    "normal.in_place",
}  # fmt: skip
#: Of equal values torch may take any, but in a stable sort: there the first comes first, as it does here.
BY_STABLE_SORT: dict[str, Function] = {
    "sort": lambda x, dim=-1, descending=False, stable=True: x.sort(stable=True, dim=dim, descending=descending),
    "argsort": lambda x, dim=-1, descending=False, stable=True: x.argsort(stable=True, dim=dim, descending=descending),
    "msort": lambda x: x.sort(stable=True, dim=0).values,
    "topk": lambda x, k, dim=-1, largest=True, sorted=True: torch.return_types.topk(
        [part.narrow(dim, 0, k) if x.dim() else part for part in x.sort(stable=True, dim=dim, descending=largest)]
    ),
}
#: Its own gradient is NaN for a matrix of deficient rank, which half of a product of two thin ones is.
NEEDS_ALL = {"svd_lowrank", "pca_lowrank"}
NOTES = {
    **dict.fromkeys(UNDEFINED, "values undefined: type and shape compared"),
    **dict.fromkeys(OVER_STORED, "over the stored entries, by definition"),
    **dict.fromkeys(NUMERATOR, "0 / 0 is 0 where the numerator is not stored, by definition"),
    **dict.fromkeys(DRAWS_STORED, "random: compared with torch on the values, with the same seed"),
    **dict.fromkeys(BY_STABLE_SORT, "of equal values the first comes first, as in torch's stable sort"),
    **dict.fromkeys(NEEDS_ALL, "with all entries stored: torch's gradient of the others is NaN"),
}


@dataclass
class Record:
    """What one operator did in one format."""

    native: int = 0  # calls by functions of ours
    storage: int = 0  # calls by torch on the dense storage of Masked
    fallback: int = 0  # calls by torch on dense copies
    errors: int = 0  # calls that are errors in torch, and were the same error here
    gradients: int = 0  # gradients compared
    explained: int = 0  # torch calls whose explanation was compared with what ran
    inplace: int = 0  # in-place calls among them
    wrong: list[str] = field(default_factory=list)
    reason: str = ""  # why there was nothing to call

    @property
    def calls(self) -> int:
        return self.native + self.storage + self.fallback

    @property
    def how(self) -> str:
        """native, storage, fallback or mixed; error if every call is an error in torch too; or skipped."""
        kinds = [k for k in ("native", "storage", "fallback") if getattr(self, k)]
        if not kinds:
            return "error" if self.errors else "skipped"
        return kinds[0] if len(kinds) == 1 else "mixed"


# -- the operators and their samples


def operators() -> list[Any]:
    """Return torch's operators that have a float type, in order of name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return sorted((op for op in op_db if {torch.float32, torch.float64} & op.dtypes), key=lambda op: op.full_name)


def samples(op: Any) -> list[Any]:
    """Return a few samples of an operator, spread over what the database has: the same ones every time.

    They are in float64 and float32 by turns, if the operator has both.
    """
    types = [t for t in (torch.float64, torch.float32) if t in op.dtypes]
    every = [_spread(_usable(op, dtype)) for dtype in types]
    if sum(map(len, every)) <= SAMPLES:
        return list(itertools.chain(*every))
    turns = (every[i % len(every)] for i in range(SAMPLES))
    return [samples[i] for i, samples in enumerate(turns) if i < len(samples)]


def _usable(op: Any, dtype: torch.dtype) -> list[Any]:
    """Return the samples of one type that have float tensors, none of them huge."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd)
        return list(itertools.islice((s for s in inputs if Arguments(s).usable), 100))


def _spread(every: list[Any]) -> list[Any]:
    if len(every) <= SAMPLES:
        return every
    return [every[round(i * (len(every) - 1) / (SAMPLES - 1))] for i in range(SAMPLES)]


def error_samples(op: Any) -> list[Any]:
    """Return a few calls that torch answers with an error."""
    if op.error_inputs_func is None:
        return []
    torch.manual_seed(0)
    inputs = (e.sample_input for e in itertools.islice(op.error_inputs("cpu"), 20))
    return list(itertools.islice((s for s in inputs if Arguments(s).floats), ERRORS))


class Arguments:
    """The arguments of a sample, flat, and which of them are float tensors."""

    def __init__(self, sample: Any) -> None:
        self.flat, self.spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        self.floats = [i for i, x in enumerate(self.flat) if _is_float(x)]
        self.usable = bool(self.floats) and all(self.flat[i].numel() <= LARGEST for i in self.floats)

    def masks(self, name: str, sparse: list[int], full: bool) -> dict[int, Tensor]:
        """Return which entries of each sparse argument are stored: about half, or all."""
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        masks = {}
        for i in sparse:
            keep = torch.rand(self.flat[i].shape, generator=generator, dtype=torch.float64) < 0.5
            masks[i] = torch.ones_like(keep) if full else keep
        return masks

    def dense(self, masks: dict[int, Tensor]) -> list[Any]:
        """Return the arguments as torch gets them: new leaves, zero where nothing is stored."""
        return [self._leaf(x, masks.get(i)) if isinstance(x, Tensor) else x for i, x in enumerate(self.flat)]

    def sparse(self, masks: dict[int, Tensor], format: gs.Format) -> list[Any]:
        """Return the arguments as gossamer gets them."""
        out = self.dense(masks)
        for i, mask in masks.items():
            keys = torch.nonzero(mask.reshape(-1)).squeeze(1)
            tensor = from_entries(keys, out[i].detach().reshape(-1)[keys], out[i].shape, format)
            out[i] = tensor.requires_grad_(out[i].requires_grad)
        return out

    def _leaf(self, x: Tensor, mask: Tensor | None) -> Tensor:
        new = x.detach().clone() if mask is None else torch.where(mask, x.detach(), torch.zeros((), dtype=x.dtype))
        return new.requires_grad_(x.requires_grad)

    def call(self, function: Function, flat: list[Any]) -> Any:
        """Call a function with arguments like these."""
        input, args, kwargs = tree_unflatten(flat, self.spec)
        torch.manual_seed(1)
        return function(input, *args, **kwargs)


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64) and x.layout == torch.strided


# -- what torch says


def reference(op: Any, function: Function, inplace: bool, sparse: dict[int, SparseTensor]) -> Function:
    """Return the dense function that a sparse call is compared with: torch's own, but for what is so by definition.

    ``sparse`` are the sparse arguments, by their number.
    """
    target = sparse.get(0)
    stored = None if target is None else target.mask()

    numerator = sparse.get(NUMERATOR.get(op.name, -1))
    divided = function if numerator is None else functools.partial(_quotient, function, numerator.mask())
    if op.name in BY_STABLE_SORT and target is not None and not target.structure.plain:
        divided = BY_STABLE_SORT[op.name]

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if stored is not None and op.full_name in DRAWS_STORED:
            values = gather(input.clone(), target.structure)
            out = scatter(function(values, *args, **kwargs), target.structure).masked_fill(~stored, 0)
            if values._version and not inplace:  # the operator writes to its argument
                input.copy_(out)
            return out
        if inplace:
            out = divided(input.clone(), *args, **kwargs)
            return out.masked_fill(~stored, 0) if stored is not None and out.shape == input.shape else out
        if stored is not None and op.name in OVER_STORED and kwargs.get("mask") is None:
            return function(input.masked_fill(~stored, OVER_STORED[op.name]), *args, **kwargs).masked_fill(~stored, 0)
        return divided(input, *args, **kwargs)

    return call


def _quotient(function: Function, numerator: Tensor, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Divide by 1 where the numerator is not stored: 0 / 1 is 0, and has no gradient."""
    *before, divisor = (input, *args)
    if not isinstance(divisor, Tensor):
        return function(input, *args, **kwargs)
    if torch.broadcast_shapes(numerator.shape, divisor.shape) != numerator.shape:
        return function(input, *args, **kwargs)  # a numerator that is repeated: dense
    return function(*before, torch.where(numerator, divisor, 1), **kwargs)


def inplace_on_copy(function: Function) -> Function:
    """Return an in-place function that leaves its first argument, a leaf, alone."""
    return lambda input, *args, **kwargs: function(input.clone(), *args, **kwargs)


# -- one call


def sparse_arguments(variant: str, floats: list[int]) -> list[int]:
    """Return the numbers of the arguments that become sparse; none if it would be the same call again."""
    if len(floats) < 2:
        return floats if variant.endswith("first") else []
    return floats[:1] if variant.endswith("first") else floats[1:2] if variant.endswith("second") else floats


def judge(op: Any, format: gs.Format, sample: Any, variant: str, name: str, record: Record) -> None:
    """Call an operator both ways, and note in the record how it ran and what was wrong."""
    arguments = Arguments(sample)
    inplace = variant.startswith("in place")
    chosen = sparse_arguments(variant, arguments.floats)
    if not chosen or (inplace and 0 not in arguments.floats):
        return
    function = op.inplace_variant if inplace else op.op
    masks = arguments.masks(name, chosen, full=op.name in NEEDS_ALL)
    if _fails(arguments, function, masks, inplace) and not _fails(arguments, function, {}, inplace):
        masks = arguments.masks(name, chosen, full=True)  # the operator can't do with the zeros
    flat = arguments.sparse(masks, format)
    torchs = reference(op, function, inplace, {i: flat[i] for i in chosen})
    dense = attempt(arguments, torchs, arguments.dense(masks))
    asked = Asked()
    with gs.fallback("silent"), watch() as seen:
        sparse = attempt(arguments, asked.around(inplace_on_copy(function) if inplace else function), flat)
    problem = compare(dense, sparse, flat, exact=op.name not in UNDEFINED)
    problem = problem or "; ".join(asked.problems)
    if inplace and not problem:  # as optimizers do it
        with torch.no_grad(), gs.fallback("silent"):
            again = attempt(arguments, inplace_on_copy(function), flat)
            problem = compare(dense, again, flat, exact=True, graded=False)
    if problem:
        record.wrong.append(f"{name}: {problem}"[:300])
    record.explained += asked.calls
    if dense.error is not None:
        record.errors += not problem
        return
    hows = {ran.how for ran in seen}
    kind = "fallback" if "fallback" in hows else "storage" if "storage" in hows else "native"
    setattr(record, kind, getattr(record, kind) + 1)
    record.inplace += inplace
    record.gradients += dense.grads is not None


class Asked(TorchFunctionMode):
    """Asks gs.explain before every torch call with a sparse tensor, and compares its answer with what runs.

    What runs is seen in two ways: the decisions that were run (:func:`watch`), and the functions that were entered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.calls = 0

    def around(self, function: Function) -> Function:
        """Return a function whose torch calls are compared."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if next(sparse_leaves((args, kwargs)), None) is None:
            return func(*args, **kwargs)
        try:
            said, decision = gs.explain(func, *args, **kwargs), choose(func, args, kwargs)
        except Exception:  # a call that is wrong: torch says so below
            return func(*args, **kwargs)
        entered: set[Any] = set()
        with watch() as seen, _profiled(entered):
            out = func(*args, **kwargs)
        self.calls += 1
        self.problems += disagreements(said, decision.function, seen, entered)
        return out


@contextlib.contextmanager
def _profiled(entered: set[Any]) -> Iterator[None]:
    """Collect the code of every Python function that is entered."""
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: entered.add(frame.f_code) if event == "call" else None)
    try:
        yield
    finally:
        sys.setprofile(before)


def disagreements(said: Explanation, function: Function, seen: list[Any], entered: set[Any]) -> list[str]:
    """Say in what an explanation and a call differ."""
    name, torchs = (
        said.operator,
        said.how in ("storage", "fallback"),
    )  # torch may call a function of the same name inside
    first = next((call for call in seen if call.operator == name), None)
    found = []
    if said.how != "torch" and (first is None or first.how != said.how):  # torch itself: no value is needed
        found.append(f"explain says {said.how} for {name}, but {first} ran")
    if first is not None and not torchs and first.function != said.function:
        found.append(f"explain says {said.function} for {name}, but {first.function} ran")
    if said.how != "fallback" and any(call.how == "fallback" for call in seen):
        inner = next(call for call in seen if call.how == "fallback")
        found.append(f"explain says {said.how} for {name}, but inside of it {inner.operator} fell back to dense")
    code = getattr(function, "__code__", None)
    if code is not None and code not in entered:
        found.append(f"explain says {said.function} for {name}, but it was not entered")
    return found


def _fails(arguments: Arguments, function: Function, masks: dict[int, Tensor], inplace: bool) -> bool:
    called = inplace_on_copy(function) if inplace else function
    return attempt(arguments, called, arguments.dense(masks)).error is not None


@dataclass
class Outcome:
    """What came of a call."""

    out: Any = None
    inputs: list[Any] = field(default_factory=list)
    grads: list[Tensor | None] | None = None  # None: there are none
    error: Exception | None = None
    grad_error: Exception | None = None


def attempt(arguments: Arguments, function: Function, flat: list[Any]) -> Outcome:
    """Call a function, and take the gradients of what comes out."""
    outcome = Outcome(inputs=flat)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome.out = arguments.call(function, flat)
        except Exception as error:
            outcome.error = error
            return outcome
        try:
            outcome.grads = gradients(outcome.out, flat)
        except Exception as error:
            outcome.grad_error = error
    return outcome


def gradients(out: Any, flat: list[Any]) -> list[Tensor | None] | None:
    """Gradients of the inputs, for a fixed random gradient at every output."""
    leaves = [x for x in flat if isinstance(x, Tensor) and x.requires_grad]
    outs = [as_dense(o) for o in tree_flatten(out)[0] if isinstance(o, Tensor) and o.requires_grad]
    if not leaves or not outs:
        return None
    torch.manual_seed(2)
    weights = [torch.randn(o.shape, dtype=o.dtype) for o in outs]
    return list(torch.autograd.grad(outs, leaves, weights, allow_unused=True))


# -- comparison


def as_dense(x: Tensor) -> Tensor:
    return x.to_dense() if isinstance(x, SparseTensor) or x.layout != torch.strided else x


def compare(dense: Outcome, sparse: Outcome, flat: list[Any], exact: bool, graded: bool = True) -> str:
    """Say what differs; nothing if all is right."""
    if dense.error is not None or sparse.error is not None:
        if type(dense.error) is type(sparse.error):
            return ""
        return f"error {_short(sparse.error)} instead of {_short(dense.error)}"
    left, spec = tree_flatten(dense.out)
    right, other = tree_flatten(sparse.out)
    if len(left) != len(right) or spec.type is not other.type:
        return f"returned {other.type} of {len(right)} instead of {spec.type} of {len(left)}"
    for want, have in zip(left, right, strict=True):
        if problem := difference(want, have, exact):
            return f"values: {problem}"
    for want, have in zip(dense.inputs, sparse.inputs, strict=True):
        if isinstance(want, Tensor) and (problem := difference(_at_stored(want.detach(), have), have.detach(), exact)):
            return f"input after the call: {problem}"
    return compare_gradients(dense, sparse, flat) if exact and graded else ""


def compare_gradients(dense: Outcome, sparse: Outcome, flat: list[Any]) -> str:
    if dense.grad_error is not None:
        return ""  # torch has no gradient to compare with
    if sparse.grad_error is not None:
        return f"gradient: error {_short(sparse.grad_error)}"
    if (dense.grads is None) != (sparse.grads is None):
        return "gradient: none, where torch has one" if sparse.grads is None else "gradient: one, where torch has none"
    leaves = [x for x in flat if isinstance(x, Tensor) and x.requires_grad]
    for leaf, want, have in zip(leaves, dense.grads or [], sparse.grads or [], strict=True):
        zero = torch.zeros(leaf.shape, dtype=leaf.dtype)
        want, have = zero if want is None else want, zero if have is None else as_dense(have)
        if problem := difference(_at_stored(want, leaf), have, True):
            return f"gradient: {problem}"
    return ""


def _at_stored(want: Tensor, leaf: Tensor) -> Tensor:
    return as_dense(want).masked_fill(~leaf.mask(), 0) if isinstance(leaf, SparseTensor) else want


def difference(want: Any, have: Any, exact: bool) -> str:
    """Say how two results differ: type, shape, then values by torch's usual tolerances."""
    if not isinstance(want, Tensor):
        if type(want) is not type(have):
            return f"a {type(have).__name__} instead of a {type(want).__name__}"
        same = want == have or want != want
        return "" if same else f"{have} instead of {want}"
    if not isinstance(have, Tensor):
        return f"a {type(have).__name__} instead of a tensor"
    if want.shape != have.shape or want.dtype != have.dtype:
        return f"{tuple(have.shape)} {have.dtype} instead of {tuple(want.shape)} {want.dtype}"
    if not exact:
        return ""
    try:
        torch.testing.assert_close(as_dense(have.detach()), as_dense(want.detach()), equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


def _short(error: Exception | None) -> str:
    return "none" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


# -- one operator


def check(op: Any, format: str) -> Record:
    """Call an operator in one format with all its samples and variants."""
    record = Record()
    found = samples(op)
    if not found:
        record.reason = "no sample has a float tensor"
        return record
    for variant in VARIANTS:
        if variant.startswith("in place") and op.inplace_variant is None:
            continue
        for i, sample in enumerate(found):
            judge(op, FORMATS[format], sample, variant, f"{op.full_name}[{i}] {variant}", record)
    for i, sample in enumerate(error_samples(op)):
        judge(op, FORMATS[format], sample, "first", f"{op.full_name}[error {i}]", record)
    return record
