"""What an einsum would do, in words: its steps, the rejected orders, operations, bytes, loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from gossamer.compiler import parse
from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.design import NoKernelError
from gossamer.compiler.language.algebra import renumber
from gossamer.compiler.language.semiring import semiring
from gossamer.compiler.language.steps import Step, steps
from gossamer.compiler.language.tree import operand_name, show
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.planner.pairs import Pair, Planned
from gossamer.compiler.planner.search import Way
from gossamer.compiler.run.crossover import dense_wins
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format, as_format
from gossamer.ops.by_hand import plan_by_hand
from gossamer.ops.planned import planned
from gossamer.ops.plans_of import plans_of
from gossamer.ops.windows import plainly


class Report(NamedTuple):
    """How an einsum is computed ("compiled", "torch" or "fallback"), and what there is to say about it."""

    how: str
    text: str


def report(
    expression: str,
    tensors: Sequence[Tensor],
    out: Format | None = None,
    fill: float = 0.0,
    loops: Loops | None = None,
) -> Report:
    """Describe a call of :func:`gossamer.einsum`; nothing is computed.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.sparsify(torch.randn(300, 300), "99%", format=gs.CSR())
    >>> text = report("nm,mk,ko->no", [a, torch.randn(300, 64), torch.randn(64, 8)]).text
    >>> print(text.splitlines()[0])
    in 2 steps, A (B C): about 0.0 ms of one core
    """
    if loops is not None:
        plan = plan_by_hand(expression, tensors, None if out is None else as_format(out), loops)
        return Report("compiled", plan.explain().replace("\n", "\n  "))
    sparse = any(isinstance(t, SparseTensor) for t in tensors)
    expression, tensors = plainly(expression, tensors)
    if sparse and not any(isinstance(t, SparseTensor) for t in tensors):
        return Report("fallback", "a sparse operand is read at sums of indices: computed on dense copies")
    if not sparse:
        return Report("torch", "no operand is sparse, so torch computes it")
    if tensors[0].device.type != "cpu" and not gpu.on_gpu(tensors[0].device):
        return Report("fallback", "the compiler writes code for CPUs and for CUDA, so others compute on dense copies")
    if fill:
        inner = semiring(parse(expression, [t.dim() for t in tensors]), fill)
        if inner is None:
            return Report("fallback", f"computed on dense copies with {fill} where nothing is stored")
        return Report("compiled", f"{inner}: over stored entries alone, {fill} where there are none")
    try:
        plans = plans_of(expression, tensors, out)
    except NoKernelError as error:
        return Report("fallback", f"{error}: computed on dense copies")
    lines = list(_orders(expression, tensors, None if out is None else as_format(out)))
    if not plans:
        return Report("fallback", "\n".join([*lines, "no kernel takes these types: computed on dense copies"]))
    for plan in plans:
        if dense_wins(plan):
            lines.append(f"{plan.statement} is left to torch: at this density a dense product is faster")
        lines.append(plan.explain())
    how = "torch" if len(plans) == 1 and dense_wins(plans[0]) else "compiled"
    return Report(how, "\n".join(lines).replace("\n", "\n  "))


def _orders(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Iterator[str]:
    """A paragraph for each step that is planned into pairs; the others are one kernel."""
    statement = parse(expression, [t.dim() for t in tensors])
    path = steps(statement, [isinstance(t, SparseTensor) for t in tensors])
    for step in path:
        if any(n >= len(tensors) for n in step.operands):
            continue  # its operands are not computed yet
        found = planned(step.statement, [tensors[n] for n in step.operands], out if step is path[-1] else None)
        if found is not None:
            yield from _order(step, found)


def _order(step: Step, found: Planned) -> Iterator[str]:
    best = found.found.way
    yield f"in {len(found.steps)} steps, {best}: about {best.total.time / 1e6:.1f} ms of one core"
    for n, pair in enumerate(found.steps):
        made, own = pair.way.facts, pair.way.cost
        kind = f"about {made.entries:,.0f} entries" if made.sparse else "dense"
        work = f"{own.operations:,.0f} multiplications, {own.moved / 1e6:.1f} MB"
        yield f"  {n + 1}. {_line(step, n, pair)}: {kind}; {work}"
    if found.found.lost:
        others = (_loser(way, best) for way in found.found.lost)
        yield f"  lost: {', '.join(others)}"


def _loser(way: Way, best: Way) -> str:
    whole = " at once" if all(not part.parts for part in way.parts) and len(way.parts) > 2 else ""
    return f"{way}{whole} (estimated {way.total.time / best.total.time:.1f}x)"


def _line(step: Step, n: int, pair: Pair) -> str:
    """A step with the letters of the whole: operands first, then results."""
    s = pair.statement
    groups = dict(zip(pair.operands, s.inputs, strict=True))
    tree = renumber(s.tree, dict(enumerate(pair.operands)))
    text = show(tree, [groups.get(k, ()) for k in range(max(groups) + 1)])
    over = f"sum over {', '.join(s.summed)} of " if s.summed else ""
    return f"{operand_name(len(step.statement.inputs) + n)}[{', '.join(s.output)}] = {over}{text}"
