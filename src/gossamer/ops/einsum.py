"""gs.einsum and gs.compile: any expression over tensors of any format, forward and backward."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import NotationError, Statement, interpret, parse
from gossamer.compiler.language.algebra import Op, Tree
from gossamer.compiler.run.calls import Prepared, plan_for, run
from gossamer.compiler.run.crossover import dense_wins, setting
from gossamer.compiler.run.infer import infer, natural
from gossamer.compiler.run.plans import Plan
from gossamer.core.interop import from_torch
from gossamer.core.tensor import (
    SparseTensor,
    WantsDenseGradient,
    build,
    gather,
    tracked,
    values_of,
    wants_dense_gradient,
)
from gossamer.formats import COO, Dense, Format, as_format
from gossamer.native import BuildError
from gossamer.ops.traced import traced

_TYPES = (torch.float32, torch.float64, torch.int32, torch.int64)
_LOG = logging.getLogger("gossamer")
_ORDINARY = (Tensor, torch.nn.Parameter)
_HALF = (torch.float16, torch.bfloat16)


def einsum(expression: str, *tensors: Tensor, out: Format | None = None) -> Any:
    """Compute an expression in index notation over dense and sparse tensors; the loops are compiled for their formats.

    Parameters
    ----------
    expression
        As for ``torch.einsum``, and more: see ``language.notation``.
    *tensors
        The operands, dense or in any format.
    out
        Format of the result. By default it has the entries of the one sparse operand that has the same indices and
        whose zeros make the result zero; otherwise it is sparse if every index of the result comes from sparse operands
        (in the format of the first of as many dimensions, or CSR, or CSF), and dense if not, or if it has
        fewer than two dimensions.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR())
    >>> gs.einsum("ik,kj->ij", a, torch.eye(2))
    tensor([[0., 3.],
            [4., 0.]])
    >>> gs.einsum("ik,kj->ij", a, a)
    SparseTensor(shape=(2, 2), format=CSR(), dtype=float32, nnz=2, density=50.0 %, bytes=28 of 16)
    >>> gs.einsum("max: ij->j", a)
    tensor([4., 3.])
    """
    if out is None and torch.compiler.is_dynamo_compiling():
        return torch.einsum(expression, *tensors)  # one call in the graph, instead of all that happens here
    known = _known(expression, tensors, out)
    if known is not None:
        return known(tensors)
    format = None if out is None else as_format(out)
    tensors = tuple(from_torch(t) if _of_torch_sparse(t) else t for t in tensors)
    try:
        return _einsum(expression, tensors, format)
    except WantsDenseGradient:
        dense = [t.to_dense() if wants_dense_gradient(t) else t for t in tensors]
        return _einsum(expression, dense, format)
    except BuildError as error:
        _without_compiler(str(error))
        return _on_dense(expression, tensors, format)


def _of_torch_sparse(t: Any) -> bool:
    return isinstance(t, Tensor) and not isinstance(t, SparseTensor) and t.layout != torch.strided


@lru_cache(maxsize=1)
def _without_compiler(why: str) -> None:
    """Say once that einsum computes on dense copies here."""
    _LOG.warning("gs.einsum computes on dense copies, because its kernels can't be built: %s", why)


def _on_dense(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Any:
    """Compute without a kernel: the same result in the same format, from dense copies."""
    statement = parse(expression, [t.dim() for t in tensors])
    dense = interpret(statement, [_dense(t) for t in tensors])
    if out is not None:
        return _converted(dense, out)
    form = infer(statement, [t.structure if isinstance(t, SparseTensor) and t.dim() else None for t in tensors])
    if isinstance(form, int):
        structure = tensors[form].structure  # type: ignore[attr-defined]
        return build(gather(dense, structure), structure)
    return dense if _traced(tensors) else _converted(dense, form)  # a trace can't count the entries of a new pattern


class _Ready:
    """A plan that takes the tensors of a call as they are: the short way for a call like one before."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        values, structure = self.plan([t._values if isinstance(t, SparseTensor) else t for t in tensors])
        return values if structure is None else SparseTensor(values, structure)


def _key(
    expression: str, tensors: Sequence[Any], out: Format | None
) -> tuple[dict[object, Any] | None, tuple[Any, ...]]:
    """Where the plan of a call is kept, and under what key; nowhere if autograd or a trace has a part in it."""
    home: dict[object, Any] | None = None
    key: list[Any] = [expression, out, setting()]
    grad = torch.is_grad_enabled()
    for t in tensors:
        if isinstance(t, SparseTensor):
            if grad and tracked(t):
                return None, ()
            structure, values = t._structure, t._values
            if type(values) not in _ORDINARY:
                return None, ()
            home = structure.memo if home is None else home
            key += (id(structure), values.dtype)
        elif type(t) in _ORDINARY and t.layout is torch.strided and not (grad and t.requires_grad):
            key += (t.shape, t.stride(), t.dtype)
        else:
            return None, ()
    return home, tuple(key)


def _known(expression: str, tensors: Sequence[Tensor], out: Format | None) -> _Ready | None:
    home, key = _key(expression, tensors, out)
    return None if home is None else home.get(key)


def _einsum(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Any:
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{expression!r}: operands must be tensors, not {type(t).__name__}")
    statement = parse(expression, [t.dim() for t in tensors])
    _check_types(expression, tensors)
    if not tensors:
        raise NotationError(f"{expression!r}: there are no operands")
    if not any(isinstance(t, SparseTensor) for t in tensors):
        return _converted(
            interpret(statement, tensors) if ":" in expression else _torch(expression, statement, tensors), out
        )
    if tensors[0].device.type != "cpu" or tensors[0].dtype not in (*_TYPES, *_HALF):
        return _on_dense(expression, tensors, out)
    if _traced(tensors):
        made = traced(expression, statement, tensors, out)
        return _on_dense(expression, tensors, out) if made is None else made
    if tensors[0].dtype in _HALF:  # stored in half, summed in single precision
        wide = _einsum(expression, [t.float() for t in tensors], out)
        return wide.to(tensors[0].dtype)
    if statement.reduce in ("max", "min") and any(tracked(t) for t in tensors):
        return _converted(interpret(statement, [_dense(t) for t in tensors]), out)
    sizes = _sizes(expression, statement, tensors)
    statement, prepared = _prepare(statement, tensors, sizes)
    as_they_are = all(p.structure is not None or p.values is t for p, t in zip(prepared, tensors, strict=True))
    home, key = _key(expression, tensors, out) if as_they_are else (None, ())
    return _computed(statement, prepared, sizes, out, home, key)


def _traced(tensors: Sequence[Tensor]) -> bool:
    """Is this a trace, whose tensors have no memory to point to?"""
    values = [t._values if isinstance(t, SparseTensor) else t for t in tensors]
    return torch.compiler.is_compiling() or any(type(v) not in _ORDINARY for v in values)


def plan_of(expression: str, tensors: Sequence[Tensor], out: Format | None = None) -> Plan | None:
    """Return the plan by which a call would be computed; None if torch would compute it."""
    if not any(isinstance(t, SparseTensor) for t in tensors):
        return None
    with torch.no_grad():
        statement = parse(expression, [t.dim() for t in tensors])
        sizes = _sizes(expression, statement, tensors)
        statement, prepared = _prepare(statement, [t.detach() for t in tensors], sizes)
        form, _ = _form(statement, prepared, None if out is None else as_format(out))
        return plan_for(statement, [p.arg() for p in prepared], sizes, prepared[0].values.dtype, form)


def _torch(expression: str, statement: Statement, tensors: Sequence[Tensor]) -> Tensor:
    plain = all(c.isalpha() or c in " ,.->" for c in expression.replace("->", ""))
    return (
        torch.einsum(expression, *tensors)
        if plain and "-" not in expression.replace("->", "")
        else interpret(statement, tensors)
    )


def _dense(t: Tensor) -> Tensor:
    return t.to_dense() if isinstance(t, SparseTensor) else t


def _converted(result: Tensor, out: Format | None) -> Any:
    from gossamer.ops.dense import from_dense

    if out is None or isinstance(out, Dense):
        return _dense(result)
    return result.to_format(out) if isinstance(result, SparseTensor) else from_dense(result, out)


def _check_types(expression: str, tensors: Sequence[Tensor]) -> None:
    kinds = {(t.dtype, t.device) for t in tensors}
    if len(kinds) > 1:
        given = ", ".join(f"{str(d)[6:]} on {device}" for d, device in sorted(kinds, key=str))
        raise TypeError(f"{expression!r}: operands must have one type and one device, not {given}")


def _sizes(expression: str, statement: Statement, tensors: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for k, (group, t) in enumerate(zip(statement.inputs, tensors, strict=True)):
        for v, size in zip(group, t.shape, strict=True):
            if sizes.get(v, 1) == 1:
                sizes[v] = size
            elif size not in (1, sizes[v]):
                where = f"index {v!r}" if not v.startswith("_") else "a dimension of '...'"
                raise ValueError(f"{expression!r}: {where} has size {sizes[v]}, but {size} in operand {k}")
    return sizes


def _prepare(
    statement: Statement, tensors: Sequence[Tensor], sizes: dict[str, int]
) -> tuple[Statement, list[Prepared]]:
    """Leave to torch what it does well with dense operands: diagonals, dimensions that broadcast, sums of one alone."""
    groups = [list(g) for g in statement.inputs]
    prepared: list[Prepared] = []
    multiplies = _only_products(statement.tree) and statement.reduce == "sum"
    for k, t in enumerate(tensors):
        names = groups[k]
        if isinstance(t, SparseTensor) and t.dim() and not (t.structure.plain and len(set(names)) < len(names)):
            for d, v in enumerate(names):
                if t._dense_shape[d] == 1 and sizes[v] != 1:  # it broadcasts: an index of its own, with one value
                    names[d] = f"{v}x{k}"
                    sizes[names[d]] = 1
            prepared.append(Prepared(values_of(t), t.structure, tuple(names)))
            continue
        t = _dense(t)
        for v in [v for v in dict.fromkeys(names) if names.count(v) > 1]:
            while names.count(v) > 1:
                first, second = [d for d, name in enumerate(names) if name == v][:2]
                if t.shape[first] != t.shape[second]:
                    t = t.expand([sizes[v] if d in (first, second) else s for d, s in enumerate(t.shape)])
                t = t.diagonal(dim1=first, dim2=second)
                names[:] = [name for d, name in enumerate(names) if d not in (first, second)] + [v]
        for d in reversed(range(len(names))):
            alone = names[d] not in statement.output and not any(names[d] in g for j, g in enumerate(groups) if j != k)
            if t.shape[d] == 1 and sizes[names[d]] != 1:
                t = t.squeeze(d)
                del names[d]
            elif alone and multiplies:
                t = t.sum(d)
                del names[d]
        prepared.append(Prepared(t, None, tuple(names)))
    inputs = tuple(p.vars for p in prepared)
    summed = {v for g in statement.inputs for v in g} - set(statement.output)
    every = {v for g in inputs for v in g} | set(statement.output)
    for v in list(sizes):
        if v not in every and not (v in summed and not multiplies):
            del sizes[v]
    return Statement(inputs, statement.output, statement.tree, statement.reduce), prepared


def _only_products(tree: Tree) -> bool:
    return not isinstance(tree, Op) or (tree.name in ("*", "neg") and all(_only_products(a) for a in tree.args))


def _computed(
    statement: Statement,
    prepared: list[Prepared],
    sizes: dict[str, int],
    out: Format | None,
    home: dict[object, Any] | None = None,
    key: tuple[Any, ...] = (),
) -> Any:
    form, after = _form(statement, prepared, out)
    plan = plan_for(statement, [p.arg() for p in prepared], sizes, prepared[0].values.dtype, form)
    if dense_wins(plan):
        equation = f"{','.join(map(''.join, statement.inputs))}->{''.join(statement.output)}"
        return torch.einsum(equation, *(p.dense() for p in prepared))
    values, structure = run(statement, prepared, sizes, form)
    if home is not None and after is None:
        home[key] = _Ready(plan)
    result = values if structure is None else build(values, structure)
    return result if after is None else _converted(result, after)


def _form(
    statement: Statement, prepared: Sequence[Prepared], out: Format | None
) -> tuple[str | int | Format, Format | None]:
    """Return what the kernel makes, and the format into which that is converted afterwards, if it is."""
    inferred = infer(statement, [p.structure for p in prepared])
    target: int | Format = inferred if out is None else out
    if out is not None and isinstance(inferred, int) and prepared[inferred].structure.format == out:  # type: ignore[union-attr]
        target = inferred
    after: Format | None = None
    if isinstance(target, Format) and not isinstance(target, Dense) and not natural(target, len(statement.output)):
        after, target = target, inferred if isinstance(inferred, int) else COO() if statement.output else Dense()
    return ("dense" if isinstance(target, Dense) else target), after
