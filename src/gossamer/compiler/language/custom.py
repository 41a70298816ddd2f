"""Functions of your own: a body in the language itself, so that C, torch and slopes follow from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from gossamer.compiler.language.algebra import derivative, evaluate, renumber, substituted
from gossamer.compiler.language.functions import FUNCTIONS, NOT_ZERO_AT_ZERO, Function
from gossamer.compiler.language.notation import NotationError, read
from gossamer.compiler.language.tree import Access, Const, Tree

_bodies: dict[str, tuple[str, tuple[str, ...]]] = {}


def function(name: str, body: str, slope: str | Sequence[str] | None = None) -> None:
    """Define a function that expressions can use by its name.

    It becomes part of the kernel of the expression, and has gradients. A process can define a name only once, because
    kernels that use it are cached. Repeating the same definition is allowed.

    Parameters
    ----------
    name
        A word that is not the name of another function.
    body
        What it computes, as an expression over words. The words are its arguments, in the order of their appearance.
    slope
        Its derivative, over the same words; for several arguments, one derivative for each. By default it is derived
        from the body.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.function("softcap", "30 * tanh(x / 30)")
    >>> a = gs.from_dense(torch.tensor([[0., 90.], [3., 0.]]), gs.CSR())
    >>> gs.einsum("softcap(ij) -> ij", a).to_dense()
    tensor([[ 0.0000, 29.8516],
            [ 2.9900,  0.0000]])
    >>> gs.function("step", "x > 0", slope="1 / square(1 + abs(x))")  # a surrogate slope
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"the name of a function is a word, not {name!r}")
    slopes = () if slope is None else (slope,) if isinstance(slope, str) else tuple(slope)
    if not isinstance(body, str) or not all(isinstance(s, str) for s in slopes):
        raise TypeError(f"{name}: the body and the slope are expressions such as 'tanh(x / 30)', not {body!r}")
    if name in FUNCTIONS:
        if _bodies.get(name) == (body, slopes):
            return
        raise ValueError(f"there is a function {name!r} already; choose another name")
    words: list[str] = []
    tree = _read(body, words)
    arity = len(words)
    trees = tuple(_read(s, words) for s in slopes) or tuple(derivative(tree, k) for k in range(arity))
    if not arity or len(words) > arity or len(trees) != arity:
        raise NotationError(f"{name}: {body!r} has the arguments {words[:arity]}; a slope is one for each of them")
    FUNCTIONS[name] = Function(
        lambda *values: evaluate(tree, values),
        _template(tree),
        lambda *args: tuple(substituted(t, args) for t in trees),
        arity,
    )
    if float(evaluate(tree, [torch.zeros(())] * arity)) != 0:
        NOT_ZERO_AT_ZERO.add(name)
    _bodies[name] = (body, slopes)


def _read(text: str, words: list[str]) -> Tree:
    """Read an expression over words; new ones are appended."""
    tree, groups = read(text)
    for group in groups:
        if group not in words:
            words.append(group)
    return renumber(tree, {n: words.index(group) for n, group in enumerate(groups)})


def _template(tree: Tree) -> str:
    """The function in C, with places for its arguments."""
    if isinstance(tree, Access):
        return f"{{{tree.operand}}}"
    if isinstance(tree, Const):
        return f"((real){tree.value!r})"
    return FUNCTIONS[tree.name].c.format(*(_template(arg) for arg in tree.args), f="{f}")
