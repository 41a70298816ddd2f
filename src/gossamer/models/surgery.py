"""Making a model sparse, and dense again, in place."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.formats import Dense, Format, Masked, as_format
from gossamer.models import hf
from gossamer.models.coverage import (
    EMBEDDING,
    MASKED,
    ON_REQUEST,
    PARAMETRIZED,
    Left,
    reason_to_stay_dense,
    taken_and_left,
)
from gossamer.models.experts import as_rows, experts_hold_inputs_first, from_rows, is_experts
from gossamer.models.gated import gates_and_ups, ungate
from gossamer.models.names import Where, chosen, inputs_first, layer_weights, named
from gossamer.models.opaque import opaque_weights, release_opaque
from gossamer.models.weights import Weight, all_weights, check_model, sparse_weights
from gossamer.ops.sparsify import apply_mask
from gossamer.patterns import Pattern
from gossamer.sparsifiers import Sparsifier, as_sparsifier

How = Pattern | Sparsifier | str | None
_LOG = logging.getLogger("gossamer")


def made_sparse(model: nn.Module) -> None:
    """Note that weights of this model are sparse or quantized now, for transformers and for torch's fast paths."""
    hf.attach(model)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = _fast_path(module)
        elif isinstance(module, nn.TransformerEncoder):  # nested tensors are for the fast path of its layers
            own = module.__dict__.setdefault("_own_use_nested_tensor", module.use_nested_tensor)
            module.use_nested_tensor = own and all(map(_fast_path, module.layers))


def _fast_path(layer: nn.Module) -> int:
    """Return the activation of torch's fast path of a TransformerEncoderLayer, 1 or 2, or 0 to turn it off.

    The fast path reads ``linear1.weight`` instead of calling ``linear1``: a quantized weight would be made dense for
    each call.
    """
    if any(hasattr(part, "as_dense") for part in layer.children()):
        return 0
    activation, kinds = getattr(layer, "activation", None), ((F.relu, nn.ReLU), (F.gelu, nn.GELU))
    found = [n for n, (fn, kind) in enumerate(kinds, 1) if activation is fn or isinstance(activation, kind)]
    return found[0] if found else 0


def sparsify_(
    model: nn.Module, how: How | Mapping[str, How], *, where: Where = None, format: Format | None = None
) -> nn.Module:
    """Make the weights of a model sparse, in place.

    This includes the weights of linear and convolution layers, and the projections of ``nn.MultiheadAttention``.
    Norms and biases don't change. Depthwise convolutions and an output layer that is tied to an embedding are included
    if ``where`` or a glob of ``how`` matches them, embeddings if it matches nothing else. Gate and up of a gated MLP
    choose the shared columns of "all:2:8" together. The logger "gossamer" says how much of the model is sparse, and why
    the rest is not. Patterns read a weight as [outputs, inputs], also if it is stored transposed (Conv1D of
    transformers). The parameter objects stay the same, so optimizers, tied weights and references keep working. If
    there is an error, nothing has changed.

    Parameters
    ----------
    model
        Any module.
    how
        A pattern, its short form, a sparsifier, or ``{glob of names: pattern or None}``: the first glob that matches a
        parameter or its layer decides, and None keeps it dense.
    where
        Which names: a glob, several globs, or a predicate of the name; all by default.
    format
        ``gs.Masked()`` by default: as fast as dense, for training.

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
    tables = {n: w for n, w in all_weights(model).items() if reason_to_stay_dense(w) == EMBEDDING}
    if where is None:
        _tell_parametrized(model)
    if not weights and not tables:
        raise ValueError(f"{type(model).__name__} has no layer whose weight can be made sparse (linear or convolution)")
    names = chosen(weights, where, list(tables))
    if where is None and not isinstance(how, Mapping):
        reasons = {name: reason_to_stay_dense(weight) for name, weight in {**weights, **tables}.items()}
        names = [name for name in names if reasons[name] not in ON_REQUEST]
        if not names:
            given = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise ValueError(f"every layer stays dense unless it is named by where ({given})")
    plan = _plan(how, names, list(tables) if where is None else [])
    weights |= tables
    _refuse_foreign(weights, plan)
    made: dict[str, Tensor] = {}
    for sparsifier in dict.fromkeys(plan.values()):
        same = [n for n, s in plan.items() if s == sparsifier]
        dense = {n: weights[n].dense() for n in same}
        rows = {n: _by_outputs(weights[n], w) for n, w in dense.items()}
        masks = sparsifier.mask_many(rows)
        if sparsifier.pattern.shares_columns:
            masks |= _masks_of_pairs(model, weights, rows, sparsifier)
        for n in same:
            made[n] = apply_mask(dense[n], _as_stored(weights[n], masks[n]), format)
    for name, tensor in made.items():
        weights[name].become(tensor, format=format)
    made_sparse(model)
    _LOG.info("sparsify_: %s", covered(model))
    return model


def _masks_of_pairs(
    model: nn.Module, weights: Mapping[str, Weight], rows: Mapping[str, Tensor], sparsifier: Sparsifier
) -> dict[str, Tensor]:
    """Return masks of gate and up of gated MLPs, which share columns as if they were one weight."""
    names = {id(weights[name].module): name for name in rows if len(weights[name].places) == 1}
    masks: dict[str, Tensor] = {}
    for pair in gates_and_ups(model):
        both = [names[id(layer)] for layer in pair if id(layer) in names]
        if len(both) == 2 and len({rows[name].dtype for name in both}) == 1:
            mask = sparsifier.mask(torch.cat([rows[name] for name in both]))
            masks |= zip(both, mask.split([len(rows[name]) for name in both]), strict=True)
    return masks


def covered(model: nn.Module) -> str:
    """One line: how much of a model is sparse, and why the rest of it is dense.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> covered(gs.sparsify_(torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8)), "50%"))
    '1 sparse weight, 42.1 % of all parameters; dense: 52.6 % embeddings, 5.3 % vectors'
    """
    weights = all_weights(model)
    sparse = [weight.shape.numel() for weight in weights.values() if weight.is_sparse]
    dense = {name: weight for name, weight in weights.items() if not weight.is_sparse}
    left = [Left(n, w.shape.numel(), reason_to_stay_dense(w) or "not asked for") for n, w in dense.items()]
    return taken_and_left(len(sparse), sum(sparse), left)


def _by_outputs(weight: Weight, dense: Tensor) -> Tensor:
    """Return a weight with its outputs first, where its module stores it in another way."""
    if is_experts(weight.module, weight.shape):
        return as_rows(dense, experts_hold_inputs_first(weight.module))
    return dense.t() if inputs_first(weight.module) else dense


def _as_stored(weight: Weight, mask: Tensor) -> Tensor:
    if is_experts(weight.module, weight.shape):
        return from_rows(mask, weight.shape, experts_hold_inputs_first(weight.module))
    return mask.t() if inputs_first(weight.module) else mask


def _tell_parametrized(model: nn.Module) -> None:
    """Warn of weights that are computed from others at each call: nothing can be made sparse there."""
    left = [n for n, w in all_weights(model).items() if reason_to_stay_dense(w) in (PARAMETRIZED, MASKED)]
    if left:
        shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        warnings.warn(
            f"left dense: {shown}, from which another weight is computed (weight_norm, spectral_norm, "
            "torch.nn.utils.prune); call torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm or "
            "prune.remove first",
            stacklevel=3,
        )


def _refuse_foreign(weights: Mapping[str, Weight], plan: Mapping[str, Sparsifier]) -> None:
    """Raise TypeError for a tensor of another library: its values can't be chosen among."""
    for name in plan:
        if weights[name].foreign:
            kind = type(weights[name].parameter)
            raise TypeError(
                f"{name} is a {kind.__module__.partition('.')[0]} {kind.__name__}. Make it sparse before it is "
                f"quantized, or leave it dense: {{{name!r}: None, '*': ...}}"
            )


def _plan(how: How | Mapping[str, How], names: list[str], special: list[str]) -> dict[str, Sparsifier]:
    if not isinstance(how, Mapping):
        if how is None:
            raise ValueError("how=None leaves everything dense; give a pattern such as '90%' or gs.NM(2, 4)")
        return dict.fromkeys(names, as_sparsifier(how))
    if not how:
        raise ValueError("how={} leaves everything dense; give patterns by names, such as {'*': '90%'}")
    plan: dict[str, Sparsifier | None] = {}
    for glob, rule in how.items():
        sparsifier = None if rule is None else as_sparsifier(rule)
        for name in named(glob, names, special):
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
    check_model(model)
    for module in model.modules():
        ungate(module)
    own: dict[int, Any] = {id(m): m for m in model.modules() if hasattr(m, "as_dense")}  # these convert themselves
    model = put_all(model, {key: module.as_dense() for key, module in own.items()})
    for weight in sparse_weights(model).values():
        weight.become(weight.dense(), None, Dense())
    for module, name, opaque in opaque_weights(model):
        release_opaque(module, name, opaque)
    return model


#: Where torch keeps what users have registered to be called with a module.
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook",
)  # fmt: skip


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a module of a model; the hooks that users have registered stay."""
    path, _, last = name.rpartition(".")
    keep_hooks(model.get_submodule(name), module)
    setattr(model.get_submodule(path), last, module)


def keep_hooks(old: nn.Module, new: nn.Module) -> None:
    """Let the hooks of a module be those of another that takes its place; their handles remove them there, too.

    Examples
    --------
    >>> import torch
    >>> old, new = torch.nn.ReLU(), torch.nn.Tanh()
    >>> handle = old.register_forward_hook(lambda module, args, out: out + 1)
    >>> keep_hooks(old, new)
    >>> new(torch.zeros(1)), handle.remove(), new(torch.zeros(1))
    (tensor([1.]), None, tensor([0.]))
    """
    new.__dict__.update({name: old.__dict__[name] for name in _HOOKS if name in old.__dict__})


def put_all(model: nn.Module, made: Mapping[int, nn.Module]) -> nn.Module:
    """Replace modules of a model, by their ``id``; return the model, or its replacement.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU())
    >>> put_all(model, {id(model[0]): torch.nn.GELU()})[0], put_all(model[1], {id(model[1]): torch.nn.SiLU()})
    (GELU(approximate='none'), SiLU())
    """
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) in made and not path:
            keep_hooks(module, made[id(module)])
            return made[id(module)]
        if id(module) in made:
            put(model, path, made[id(module)])
    made_sparse(model)
    return model


def sparse_parameters(model: nn.Module) -> dict[str, Any]:
    """Return the sparse weights of a model by name: masked parameters, and SparseTensors for the other formats.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.nn.sparse_parameters(gs.sparsify_(torch.nn.Linear(8, 8), "75%"))["weight"].nnz
    16
    """
    return {name: getattr(*weight.places[0]) for name, weight in sparse_weights(model).items()}
