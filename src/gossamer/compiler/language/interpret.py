"""The meaning of index notation: a statement on dense tensors, by broadcasting over all indices. Slow, and the oracle.

A sum over an index takes in the terms that have it, and no others: ``"ij,j + i -> i"`` is A b + c, not A b + n c. So it
goes down the tree: into those sides of a sum that have the index, and into the one factor that has it. Where two
factors have it, they are multiplied out first: ``"(i + ij) * (ij + i) -> i"`` is the sum of four products, one of which
has no j. It stops at a function. Maxima, minima and means are of the whole expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from torch import Tensor

from gossamer.compiler.language.algebra import evaluate, operands
from gossamer.compiler.language.functions import apply
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.sums import innermost, kept
from gossamer.compiler.language.tree import Access, Const, Op, Tree


def interpret(statement: Statement, tensors: Sequence[Tensor]) -> Tensor:
    """Compute a statement on dense tensors by broadcasting over all indices: the oracle of the compiler.

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler.language.notation import parse
    >>> interpret(parse("ij->ji", (2,)), [torch.arange(6.0).view(2, 3)]).shape
    torch.Size([3, 2])
    >>> interpret(parse("ij,j + i -> i", (2, 1, 1)), [torch.ones(2, 3), torch.ones(3), torch.ones(2)])
    tensor([4., 4.])
    """
    every = [*statement.output, *statement.summed]
    sizes: dict[str, int] = {}
    for group, tensor in zip(statement.inputs, tensors, strict=True):
        for v, size in zip(group, tensor.shape, strict=True):
            sizes[v] = size if sizes.get(v, 1) == 1 else sizes[v]
    views = [_view(t, list(g), every, sizes) for g, t in zip(statement.inputs, tensors, strict=True)]
    statement = _sums_first(statement, views, every)
    if statement.reduce == "sum":
        value = _Sums(statement, views, every).value(statement.tree, frozenset(statement.summed))
        value = value if isinstance(value, Tensor) else views[0].new_tensor(value)
        whole = value.expand([1, *(sizes[v] for v in statement.output), *(1 for _ in statement.summed)])
        return whole.reshape([sizes[v] for v in statement.output]).clone()
    inside = {v for k in operands(statement.tree) for v in statement.inputs[k]}
    left = [v for v in statement.summed if v in inside]
    value = evaluate(statement.tree, views)
    value = value.expand([1, *(sizes[v] if v in inside or v in statement.output else 1 for v in every)])
    over = tuple(every.index(v) + 1 for v in left)
    by = "mean" if statement.reduce == "mean" else f"a{statement.reduce}"
    value = getattr(value, by)(over, keepdim=True) if over else value
    return value.reshape([sizes[v] for v in statement.output]).clone()


def _sums_first(statement: Statement, views: list[Tensor], every: list[str]) -> Statement:
    """Compute the sums inside the expression, the innermost first; each becomes one more operand."""
    while (node := innermost(statement.tree)) is not None:
        own = kept(statement, node)
        over = frozenset(v for k in operands(node) for v in statement.inputs[k]) - set(own)
        views.append(_Sums(statement, views, every).value(node.args[0], over))

        def put(tree: Tree, node: Tree = node) -> Tree:
            if tree == node:
                return Access(len(views) - 1)
            return Op(tree.name, tuple(put(arg) for arg in tree.args)) if isinstance(tree, Op) else tree

        inputs = (*statement.inputs, own)
        statement = Statement(inputs, statement.output, put(statement.tree), statement.reduce)
    return statement


def _view(tensor: Tensor, names: list[str], every: list[str], sizes: dict[str, int]) -> Tensor:
    """An operand with a dimension for each index, of size 1 where it doesn't have it, and one more before them.

    With that one no operand is a number to torch, whose types don't depend on that of numbers.
    """
    while len(set(names)) < len(names):
        v = next(v for v in names if names.count(v) > 1)
        first, second = [d for d, name in enumerate(names) if name == v][:2]
        tensor = tensor.diagonal(dim1=first, dim2=second)
        names = [name for d, name in enumerate(names) if d not in (first, second)] + [v]
    tensor = tensor.expand([sizes[v] for v in names]).permute([names.index(v) for v in every if v in names])
    return tensor[(None, *(slice(None) if v in names else None for v in every))]


class _Sums:
    """The recursion that puts sums where they belong."""

    def __init__(self, statement: Statement, views: Sequence[Tensor], every: list[str]) -> None:
        self.statement, self.views = statement, views
        self.axis = {v: d + 1 for d, v in enumerate(every)}

    def indices(self, tree: Tree) -> frozenset[str]:
        if isinstance(tree, Access):
            return frozenset(self.statement.inputs[tree.operand])
        return frozenset() if isinstance(tree, Const) else frozenset().union(*(self.indices(a) for a in tree.args))

    def value(self, tree: Tree, over: frozenset[str]) -> Tensor:
        """The tree, summed over those of the indices that it has."""
        over &= self.indices(tree)
        if isinstance(tree, Op) and tree.name == "*" and over & self.indices(tree.args[0]) & self.indices(tree.args[1]):
            products = _multiplied_out(tree)
            if len(products) > 1:
                return reduce(add, (self.value(product, over) for product in products))
        inside = [frozenset[str]()] * (len(tree.args) if isinstance(tree, Op) else 0)
        if isinstance(tree, Op) and tree.name in ("+", "-", "neg"):
            inside = [over] * len(tree.args)
        elif isinstance(tree, Op) and tree.name == "*":
            left, right = (self.indices(a) for a in tree.args)
            inside = [over & (left - right), over & (right - left)]
        over -= frozenset().union(*inside)
        if isinstance(tree, Op):
            found = apply(tree.name, [self.value(a, s) for a, s in zip(tree.args, inside, strict=True)])
        else:
            found = evaluate(tree, self.views)
        dims = [self.axis[v] for v in sorted(over)]
        return found.sum(dims, keepdim=True) if dims else found


def _multiplied_out(tree: Tree) -> list[Tree]:
    """Return the products whose sum a tree is; what stands inside a function stays there."""
    if not isinstance(tree, Op) or tree.name not in ("+", "-", "neg", "*"):
        return [tree]
    sides = [_multiplied_out(arg) for arg in tree.args]
    if tree.name == "*":
        return [Op("*", (a, b)) for a in sides[0] for b in sides[1]]
    minus: list[Tree] = [Op("neg", (t,)) for t in sides[-1]]
    return minus if tree.name == "neg" else [*sides[0], *(minus if tree.name == "-" else sides[1])]
