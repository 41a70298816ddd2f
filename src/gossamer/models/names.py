"""Finding parameters and modules by name: exact names and globs, with help for misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from gossamer.models.experts import is_experts
from gossamer.models.modules import dense_class
from gossamer.models.weights import Weight, all_weights

Where = str | Sequence[str] | Callable[[str], bool] | None

#: Layers whose weights are made sparse unless told otherwise. transformers' Conv1D is a Linear by another name.
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def matching(name: str, known: Iterable[str], what: str) -> list[str]:
    """Return the known names that a name or glob means; a ValueError lists the near misses if there are none.

    Examples
    --------
    >>> matching("*.weight", ["a.weight", "a.bias"], "parameter")
    ['a.weight']
    >>> matching("a.wieght", ["a.weight", "a.bias"], "parameter")
    Traceback (most recent call last):
        ...
    ValueError: no parameter is called 'a.wieght'; did you mean 'a.weight'?
    """
    names = list(known)
    found = [n for n in names if fnmatchcase(n, name)]
    if not found:
        raise ValueError(f"no {what} is called {name!r}; {_suggestion(name, names)}")
    return found


def _suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near = near or [k for k in known if name.strip("*.").split(".")[-1] in k][:3]
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return _listed(known)


def _listed(known: list[str]) -> str:
    shown = ", ".join(repr(k) for k in known[:5])
    return f"there are {len(known)}: {shown}{', ...' if len(known) > 5 else ''}"


def inputs_first(module: nn.Module) -> bool:
    """Does it hold its weight as [inputs, outputs]? Conv1D of transformers does, a Linear by another name."""
    return dense_class(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)


def layer_weights(model: nn.Module) -> dict[str, Weight]:
    """Return the weights of the layers that can be made sparse, by name; a tied one only once."""
    found = {}
    for weight in all_weights(model).values():
        names = [name for name, place in zip(weight.names, weight.places, strict=True) if _is_layer(*place)]
        if names:
            found[names[0]] = replace(weight, name=names[0])
    return found


def _is_layer(module: nn.Module, name: str) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return name.endswith("proj_weight")
    if is_experts(module, getattr(module, name).shape):
        return True
    return name == "weight" and (isinstance(module, LAYERS) or inputs_first(module))


def chosen(names: Iterable[str], where: Where, special: Sequence[str] = ()) -> list[str]:
    """Return the names that ``where`` means: None for all, globs of parameter or module names, or a predicate.

    A ``special`` name is meant only by a glob that matches no other.

    Examples
    --------
    >>> chosen(["a.weight", "b.weight"], "a"), chosen(["a.weight", "b.weight"], lambda name: name > "b")
    (['a.weight'], ['b.weight'])
    >>> chosen(["a.weight"], [])
    Traceback (most recent call last):
        ...
    ValueError: where=[] chooses no weight; there are 1: 'a.weight'
    """
    known = list(names)
    if where is None:
        return known
    if callable(where):
        picked = {n for n in known if where(n)}
    elif isinstance(where, Iterable):
        picked = {n for glob in ([where] if isinstance(where, str) else where) for n in named(glob, known, special)}
    else:
        raise TypeError(f"where={where!r} must be a glob of names, several of them, or a function of a name")
    if not picked:
        raise ValueError(f"where={where!r} chooses no weight; {_listed(known)}")
    return [n for n in (*known, *special) if n in picked]


def by_layer(glob: str, known: Sequence[str]) -> list[str]:
    """Match a glob against parameter names, or the names of the modules that own them."""
    if not isinstance(glob, str):
        kind = type(glob).__name__
        raise TypeError(f"a weight is given by its name or a glob of names, not by {glob!r} of type {kind}")
    found = [n for n in known if fnmatchcase(n, glob) or fnmatchcase(n.rpartition(".")[0], glob)]
    return found or matching(glob, known, "weight that can be sparse")


def named(glob: str, usual: Sequence[str], special: Sequence[str]) -> list[str]:
    """The weights that a glob matches: usual ones, else those that stay dense unless they are named."""
    try:
        return by_layer(glob, usual)
    except ValueError:
        try:
            return by_layer(glob, special)
        except ValueError:
            pass
        raise
