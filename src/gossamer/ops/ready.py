"""A cache of decisions: a repeated call costs little more than its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gossamer.compiler import Statement
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.cache import DESIGNS, PLANS
from gossamer.compiler.run.calls import AnyPlan, Known, followed, new_plan
from gossamer.compiler.run.crossover import dense_wins, setting
from gossamer.compiler.run.plans import Plan
from gossamer.compiler.run.templates import Template, look, template
from gossamer.core.join import build, values_of, wants_dense_gradient
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format, Structure

_transforms, _wrapped = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.is_functorch_wrapped_tensor
ORDINARY = (Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
_TEMPLATES = 64  # of a recipe, at most
_FEW = 1 << 20  # rows of a sparse result whose format does not depend on the number of entries


class Recipe(NamedTuple):
    """What a call decides before it plans: the same for all patterns, of given formats, shapes and types."""

    statement: Statement
    vars: tuple[tuple[str, ...], ...]
    sizes: dict[str, int]
    dtype: torch.dtype
    form: str | int | Format
    templates: dict[Hashable, Template]  # by what they depend on besides

    def general(self, plain: bool) -> bool:
        """Does the form of the result follow from formats and shapes alone? ``plain``: an operand is stored dense."""
        if not isinstance(self.form, Format):
            return True
        order = self.form.order or range(len(self.statement.output))
        stored = [self.sizes[self.statement.output[d]] for d in order]
        return math.prod(stored if plain else stored[:-1]) <= _FEW

    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return 0

    def args(self, tensors: Sequence[Tensor]) -> list[Arg]:
        """Describe the tensors of a call."""
        return [
            Arg(vars, t._structure, t._structure.shape)
            if isinstance(t, SparseTensor)
            else Arg(vars, None, tuple(t.shape), t.stride())
            for vars, t in zip(self.vars, tensors, strict=True)
        ]

    def plan(self, args: Sequence[Arg], device: torch.device) -> AnyPlan:
        """Plan a call."""
        return new_plan(self.statement, args, dict(self.sizes), self.dtype, self.form, device)


class Kept:
    """What is kept of a call: a function of its tensors. ``seen`` says if there was another call like it."""

    seen = False

    def nbytes(self) -> int:
        """Bytes that it keeps."""
        raise NotImplementedError

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        raise NotImplementedError


class Ready(Kept):
    """A plan that takes the tensors of a call as they are: the short way for a call like one before."""

    def __init__(self, plan: AnyPlan, recipe: Recipe) -> None:
        self.plan, self.recipe = plan, recipe

    def general(self, tensors: Sequence[Tensor]) -> bool:
        """Does the form of the result follow from formats and shapes alone, and with it that there are such loops?"""
        if not isinstance(self.plan, Plan):  # a GPU may refuse other patterns
            return self.recipe.form == "dense" or (isinstance(self.recipe.form, Format) and self.recipe.general(True))
        return self.recipe.general(any(isinstance(t, SparseTensor) and t._structure.plain for t in tensors))

    def nbytes(self) -> int:
        """Bytes that the plan keeps."""
        return self.plan.nbytes()

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        values, structure = self.plan([t._values if isinstance(t, SparseTensor) else t for t in tensors])
        return values if structure is None else SparseTensor(values, structure)


class Followed(Kept):
    """As :class:`Ready`, for a call that autograd follows."""

    def __init__(self, ready: Ready) -> None:
        self.ready, recipe = ready, ready.recipe
        self.known = Known(ready.plan, recipe.statement, recipe.sizes)

    def nbytes(self) -> int:
        """Bytes that the plan keeps."""
        return self.ready.nbytes()

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        values = [values_of(t) if isinstance(t, SparseTensor) else t for t in tensors]
        if not any(v.requires_grad for v in values):
            return self.ready(tensors)
        structures = [t._structure if isinstance(t, SparseTensor) else None for t in tensors]
        result, structure = followed(self.known, values, structures)
        return result if structure is None else build(result, structure)


class ReadyPath(Kept):
    """Several steps: each a function of operands and results of steps before, by their numbers."""

    def __init__(self, steps: Sequence[tuple[Callable[[Sequence[Tensor]], Any], tuple[int, ...]]]) -> None:
        self.steps = tuple(steps)

    def nbytes(self) -> int:
        """Bytes that the plans keep."""
        return sum(step.nbytes() for step, _ in self.steps if isinstance(step, (Ready, Followed)))

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        results = list(tensors)
        for step, numbers in self.steps:
            results.append(step([results[n] for n in numbers]))
        return results[-1]


def transformed(tensors: Sequence[Any]) -> bool:
    """Do these belong to a transform of ``torch.func``, or have they tangents of forward-mode autograd?

    Examples
    --------
    >>> import torch
    >>> transformed([torch.ones(2)]), torch.func.vmap(lambda x: x * transformed([x]))(torch.ones(2))
    (False, tensor([1., 1.]))
    """
    if forward_ad._current_level < 0 and _transforms() is None:
        return False
    values = [t._values if isinstance(t, SparseTensor) else t for t in tensors]
    if any(_wrapped(v) for v in values):
        return True
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(v).tangent is not None for v in values)


def key_of(expression: str, tensors: Sequence[Any], out: Format | None) -> tuple[Any, ...]:
    """The key under which the plan of a call is kept; empty if a transform or a trace has a part in it.

    It is empty too if the memory of an operand has other values than its tensor (``operands.check``,
    ``operands.in_memory``).

    Its last part says which operands autograd follows; None if it follows none.
    """
    if (forward_ad._current_level >= 0 or _transforms() is not None) and transformed(tensors):
        return ()
    key: list[Any] = [expression, out, setting()]
    for t in tensors:
        if isinstance(t, SparseTensor):
            values = t._values
            if type(values) not in ORDINARY or values.is_neg() or values.shape != t._structure.value_shape:
                return ()
            key += (id(t._structure), values.dtype)
        elif type(t) in ORDINARY and t.layout is _STRIDED and not t.is_neg():
            key += (t.shape, t.stride(), t.dtype, t.device)
        else:
            return ()
    if torch.is_grad_enabled():
        with torch._C.DisableTorchFunctionSubclass():  # once for all: it takes half a microsecond
            follows = [n for n, t in enumerate(tensors) if t.requires_grad]
        if follows:
            if any(wants_dense_gradient(tensors[n]) for n in follows):
                return ()
            return (*key, tuple(follows))
    return (*key, None)


def _looks(expression: str, tensors: Sequence[Tensor], out: Format | None) -> tuple[Any, ...]:
    """Return a key with formats, shapes and devices in the place of patterns."""
    looks: list[Any] = [expression, out, setting()]
    patterns: list[Structure] = []
    for t in tensors:
        if isinstance(t, SparseTensor):
            s = t._structure
            patterns.append(s)
            # equal patterns are computed in other ways
            looks += (s.format, s.shape, s.device, t._values.dtype, next(n for n, p in enumerate(patterns) if p is s))
        else:
            looks += (t.shape, t.stride(), t.dtype, t.device)
    return tuple(looks)


def known(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Kept | None:
    """Return what was kept for a call like this one, on these patterns or others."""
    key = key_of(expression, tensors, out)
    if not key:
        return None
    found: Kept | None = PLANS.get(key)
    if found is not None or key[-1] is not None:
        return found
    recipe: Recipe | None = DESIGNS.get(_looks(expression, tensors, out))
    plan = None if recipe is None else _planned(recipe, tensors)
    if recipe is None or plan is None:
        return None
    found = Ready(plan, recipe)
    _keep(key, tensors, found)
    return found


def _planned(recipe: Recipe, tensors: Sequence[Tensor]) -> AnyPlan | None:
    """Return the plan of a recipe for these patterns; None if torch's dense kernels are faster."""
    structures = [t._structure if isinstance(t, SparseTensor) else None for t in tensors]
    key = look(structures, bool(recipe.statement.summed))
    known = recipe.templates.get(key)
    plan: AnyPlan | None = None if known is None else known.plan_for(structures)
    if plan is not None:
        return plan
    args = recipe.args(tensors)
    plan = recipe.plan(args, tensors[0].device)
    if dense_wins(plan):
        return None
    made = template(plan, args) if isinstance(plan, Plan) else None
    if made is not None:
        if len(recipe.templates) >= _TEMPLATES:
            recipe.templates.clear()
        recipe.templates[key] = made
    return plan


def keep(expression: str, tensors: Sequence[Tensor], out: Format | None, call: Ready | ReadyPath) -> None:
    """Keep a call as long as the patterns of its operands live."""
    key = key_of(expression, tensors, out)
    if not key:
        return
    if key[-1] is not None:
        _keep(key, tensors, _follow(call))
        return
    _keep(key, tensors, call)
    if isinstance(call, Ready) and call.general(tensors):
        DESIGNS.keep(_looks(expression, tensors, out), call.recipe)


def _follow(call: Ready | ReadyPath) -> Followed | ReadyPath:
    """Return a call that autograd follows: each step that is a plan of ours has gradients that are."""
    if isinstance(call, Ready):
        return Followed(call)
    return ReadyPath([(Followed(step) if isinstance(step, Ready) else step, numbers) for step, numbers in call.steps])


def _keep(key: tuple[Any, ...], tensors: Sequence[Tensor], call: Kept) -> None:
    owners: tuple[Structure, ...] = tuple(t._structure for t in tensors if isinstance(t, SparseTensor))
    PLANS.keep(key, call, owners)
