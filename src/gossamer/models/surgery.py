"""Making a model sparse, and dense again, in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gossamer.formats import Dense, Format, Masked, as_format
from gossamer.models import hf
from gossamer.models.names import Where, by_layer, chosen, inputs_first, layer_weights
from gossamer.models.opaque import opaque_weights, release_opaque
from gossamer.models.weights import Weight, sparse_weights
from gossamer.ops.sparsify import apply_mask
from gossamer.patterns import Pattern
from gossamer.sparsifiers import Sparsifier, as_sparsifier

How = Pattern | Sparsifier | str | None


def made_sparse(model: nn.Module) -> None:
    """Note that weights of this model are sparse now: transformers has to know how to save it."""
    hf.attach(model)


def sparsify_(
    model: nn.Module, how: How | Mapping[str, How], *, where: Where = None, format: Format | None = None
) -> nn.Module:
    """Make the weights of a model sparse, in place.

    The weights of linear and convolution layers (and the projections of ``nn.MultiheadAttention``) are taken;
    embeddings, norms and biases stay as they are, and so does an output layer that is tied to an embedding, unless
    ``where`` or a glob of ``how`` names it. Patterns read a weight as [outputs, inputs], also where it is held the
    other way round (Conv1D of transformers). A parameter keeps its identity: optimizers, tied weights and
    references to it continue as before. On an error nothing has changed.

    Parameters
    ----------
    model
        Any module.
    how
        A pattern, its short form, a sparsifier, or ``{glob of names: pattern or None}`` where the first glob that fits
        a parameter or its layer decides, and None leaves it dense.
    where
        Names to take: a glob, several, or a predicate of the name; all by default.
    format
        ``gs.Masked()`` by default: as fast as dense, right for training.

    Returns
    -------
    nn.Module
        The same model.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> model = gs.sparsify_(model, {"0": "75%", "*": None})
    >>> model[0].weight.sparsity
    0.75
    """
    format = Masked() if format is None else as_format(format)
    weights = layer_weights(model)
    if not weights:
        raise ValueError(f"{type(model).__name__} has no layer whose weight can be made sparse (linear or convolution)")
    names = chosen(weights, where)
    if where is None and not isinstance(how, Mapping):
        names = [name for name in names if not _is_embedding(weights[name])]
        if not names:
            raise ValueError(f"{', '.join(weights)} is tied to an embedding, and there is no other: name it by where")
    plan = _plan(how, names)
    made: dict[str, Tensor] = {}
    for sparsifier in dict.fromkeys(plan.values()):
        same = [n for n, s in plan.items() if s == sparsifier]
        dense = {n: weights[n].dense() for n in same}
        turned = {n for n in same if inputs_first(weights[n].module)}
        masks = sparsifier.mask_many({n: w.t() if n in turned else w for n, w in dense.items()})
        for n in same:
            made[n] = apply_mask(dense[n], masks[n].t() if n in turned else masks[n], format)
    for name, tensor in made.items():
        weights[name].become(tensor, format=format)
    made_sparse(model)
    return model


def _is_embedding(weight: Weight) -> bool:
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module, _ in weight.places)


def _plan(how: How | Mapping[str, How], names: list[str]) -> dict[str, Sparsifier]:
    if not isinstance(how, Mapping):
        if how is None:
            raise ValueError("how=None leaves everything dense; give a pattern such as '90%' or gs.NM(2, 4)")
        return dict.fromkeys(names, as_sparsifier(how))
    plan: dict[str, Sparsifier | None] = {}
    for glob, rule in how.items():
        sparsifier = None if rule is None else as_sparsifier(rule)
        for name in by_layer(glob, names):
            plan.setdefault(name, sparsifier)
    return {name: sparsifier for name, sparsifier in plan.items() if sparsifier is not None}


def densify_(model: nn.Module) -> nn.Module:
    """Make every sparse parameter dense again, with zeros where nothing was stored; in place.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.densify_(gs.sparsify_(torch.nn.Linear(8, 8), "75%"))
    >>> int((model.weight == 0).sum())
    48
    """
    for path, module in list(model.named_modules()):
        if hasattr(module, "as_dense"):  # a layer that holds more than a sparse weight knows what it stands for
            if not path:
                return module.as_dense()
            put(model, path, module.as_dense())
    for weight in sparse_weights(model).values():
        weight.become(weight.dense(), None, Dense())
    for module, name, opaque in opaque_weights(model):
        release_opaque(module, name, opaque)
    return model


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Let a module of a model be another."""
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, module)


def sparse_parameters(model: nn.Module) -> dict[str, Any]:
    """Return the sparse weights of a model by name: masked parameters, and SparseTensors for the other formats.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.nn.sparse_parameters(gs.sparsify_(torch.nn.Linear(8, 8), "75%"))["weight"].nnz
    16
    """
    return {name: getattr(*weight.places[0]) for name, weight in sparse_weights(model).items()}
