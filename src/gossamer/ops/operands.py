"""The operands of an einsum, ready for the compiler: sizes of indices, values in one type, diagonals, broadcasts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.language.tree import Op, Tree, operand_name
from gossamer.compiler.run.calls import Prepared
from gossamer.compiler.run.infer import infer
from gossamer.core.join import build, values_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format


def check(expression: str, tensors: Sequence[object]) -> None:
    """Raise TypeError unless these are tensors of one type on one device; ValueError if values were resized."""
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{expression!r}: operands must be tensors, not {type(t).__name__}")
        if isinstance(t, SparseTensor) and type(t._values) is Tensor and not torch.compiler.is_compiling():
            shape, wanted = tuple(t._values.shape), t._structure.value_shape
            if shape != wanted:
                raise ValueError(f"{expression!r}: the values of {t.format} were resized to {shape}, must be {wanted}")
    kinds = {(t.dtype, t.device) for t in tensors if isinstance(t, Tensor)}
    if len(kinds) > 1:
        given = ", ".join(f"{str(d)[6:]} on {device}" for d, device in sorted(kinds, key=str))
        raise TypeError(f"{expression!r}: operands must have one type and one device, not {given}")


def in_memory(t: Tensor) -> Tensor:
    """Return a tensor whose memory has its values: kernels do not see that torch negates them when it reads.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1 + 2j]).conj().imag
    >>> x.is_neg(), in_memory(x).is_neg(), in_memory(x).tolist()
    (True, False, [-2.0])
    """
    if isinstance(t, SparseTensor):
        return build(values_of(t).resolve_neg(), t.structure) if t._values.is_neg() else t
    return t.resolve_neg() if t.is_neg() else t


def sizes_of(expression: str, statement: Statement, tensors: Sequence[Tensor]) -> dict[str, int]:
    """Return the size of each index; ValueError where operands disagree (1 goes with any size)."""
    sizes: dict[str, int] = {}
    for k, (group, t) in enumerate(zip(statement.inputs, tensors, strict=True)):
        own: dict[str, int] = {}
        for v, size in zip(group, t.shape, strict=True):
            if own.setdefault(v, size) != size:
                raise ValueError(f"{expression!r}: operand {k} has index {v!r} twice, with sizes {own[v]} and {size}")
            if sizes.get(v, 1) == 1:
                sizes[v] = size
            elif size not in (1, sizes[v]):
                where = f"index {v!r}" if not v.startswith("_") else "a dimension of '...'"
                raise ValueError(f"{expression!r}: {where} has size {sizes[v]}, but {size} in operand {k}")
    empty = [v for v in statement.summed if sizes[v] == 0]
    if statement.reduce in ("max", "min") and empty:
        raise ValueError(f"{expression!r}: there is no {statement.reduce} over index {empty[0]!r}, which has size 0")
    return sizes


def copies(statement: Statement, tensors: Sequence[Tensor], sizes: dict[str, int]) -> int:
    """How often a sum counts each term because its operands broadcast along indices that only other terms have.

    Examples
    --------
    >>> from gossamer.compiler import parse
    >>> copies(parse("i->", [1]), [torch.ones(1)], {"i": 7})
    7
    """
    own = dict.fromkeys(statement.summed, 1)
    for names, t in zip(statement.inputs, tensors, strict=True):
        own |= {v: size for v, size in zip(names, t.shape, strict=True) if v in own and size != 1}
    if statement.reduce != "sum":
        return 1
    return math.prod(sizes[v] for v, size in own.items() if size == 1 and v in sizes)


def prepare(
    statement: Statement, tensors: Sequence[Tensor], sizes: dict[str, int], dtype: torch.dtype
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
                    names[d] = f"{v}.{operand_name(k)}"
                    sizes[names[d]] = 1
            prepared.append(Prepared(values_of(t).to(dtype), t.structure, tuple(names)))
            continue
        t = (t.to_dense() if isinstance(t, SparseTensor) else t).to(dtype)
        while len(set(names)) < len(names):
            v = next(v for v in names if names.count(v) > 1)
            first, second = [d for d, name in enumerate(names) if name == v][:2]
            t = t.diagonal(dim1=first, dim2=second)
            names[:] = [name for d, name in enumerate(names) if d not in (first, second)] + [v]
        for d in reversed(range(len(names))):
            alone = names[d] not in statement.output and not any(names[d] in g for j, g in enumerate(groups) if j != k)
            if t.shape[d] == 1 and sizes[names[d]] != 1:
                t = t.squeeze(d)
                del names[d]
            elif alone and multiplies:
                t = t.sum(d, dtype=dtype)
                del names[d]
        prepared.append(Prepared(t, None, tuple(names)))
    inputs = tuple(p.vars for p in prepared)
    summed = {v for g in statement.inputs for v in g} - set(statement.output)
    every = {v for g in inputs for v in g} | set(statement.output)
    for v in list(sizes):
        if v not in every and not (v in summed and not multiplies):
            del sizes[v]
    return Statement(inputs, statement.output, statement.tree, statement.reduce), prepared


def stored_type(tensors: Sequence[Tensor], compute: torch.dtype) -> torch.dtype:
    """Return the type of values that kernels read: a GPU widens half precision as it loads it.

    Examples
    --------
    >>> stored_type([torch.ones(2, dtype=torch.float16)], torch.float32)
    torch.float32
    """
    own = tensors[0].dtype
    return own if own in (torch.float16, torch.bfloat16) and gpu.on_gpu(tensors[0].device) else compute


def inferred(statement: Statement, tensors: Sequence[Tensor]) -> int | Format:
    """Return what the result is: the entries of an operand, or a format. An operand that broadcasts has other indices.

    Examples
    --------
    >>> import gossamer as gs
    >>> from gossamer.compiler import parse
    >>> a, b = (gs.from_dense(torch.eye(n, 3), gs.CSR()) for n in (1, 3))
    >>> inferred(parse("ij,ij->ij", (2, 2)), [a, b])
    1
    """
    sizes: dict[str, int] = {}
    for names, t in zip(statement.inputs, tensors, strict=True):
        sizes |= {v: max(size, sizes.get(v, 1)) for v, size in zip(names, t.shape, strict=True)}
    inputs = tuple(
        tuple(v if size == sizes[v] else f"{v}.{k}" for v, size in zip(names, t.shape, strict=True))
        for k, (names, t) in enumerate(zip(statement.inputs, tensors, strict=True))
    )
    structures = [t.structure if isinstance(t, SparseTensor) and t.dim() else None for t in tensors]
    return infer(Statement(inputs, statement.output, statement.tree, statement.reduce), structures)


def _only_products(tree: Tree) -> bool:
    return not isinstance(tree, Op) or (tree.name in ("*", "neg") and all(_only_products(a) for a in tree.args))
