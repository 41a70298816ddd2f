"""Checks before training starts, and the initial weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.models.weights import check_model
from gossamer.scores import Score
from gossamer.train.layers import Layer
from gossamer.train.shards import is_sharded


def settings(
    method: str, *, sparsity: float | None, every: float, start: float, until: float | None, fraction: float,
    init: str | None, moments: str, needs_until: bool,
) -> None:  # fmt: skip
    """Raise if settings are invalid."""
    if sparsity is not None and not (_is_number(sparsity) and 0 <= sparsity < 1):
        raise ValueError(f"{method}: sparsity={sparsity!r} must be from 0 to below 1, such as 0.9")
    if not (_is_number(every) and every >= 1):
        raise ValueError(f"{method}: every={every!r} must be a number of optimizer steps, from 1")
    if not (_is_number(start) and start >= 0):
        raise ValueError(f"{method}: start={start!r} must be a number of optimizer steps")
    if until is not None and not (_is_number(until) and until >= 0):
        raise ValueError(f"{method}: until={until!r} must be a number of optimizer steps")
    if needs_until and until is None:
        raise ValueError(f"{method}: give until=..., the step at which the target is reached; about 75 % of all steps")
    if until is not None and start > until:
        raise ValueError(f"{method}: start={start!r} is after until={until!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"{method}: fraction={fraction!r} must be from 0 to 1")
    if init not in (None, "rescale", "kaiming"):
        raise ValueError(f"{method}: init={init!r} must be 'rescale', 'kaiming' or None")
    if moments not in ("mean", "zero"):
        raise ValueError(f"{method}: moments={moments!r} must be 'mean' or 'zero'")


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def options(method: str, refuses: Mapping[str, str], **given: Any) -> None:
    """Raise if a method doesn't support an option."""
    for name, why in refuses.items():
        if given.get(name) is not None:
            raise ValueError(f"{method} doesn't support {name}: {why}")


def score(method: str, score: Score, gradients: bool) -> None:
    """Raise if a score needs context that the method doesn't have.

    Examples
    --------
    >>> import gossamer as gs
    >>> score("RigL", gs.Wanda(), gradients=True)
    Traceback (most recent call last):
        ...
    ValueError: RigL: Wanda() needs inputs, which it doesn't have; scores of weights and gradients do
    """
    known = ("grad", "grads") if gradients else ()
    missing = [need for need in score.needs if need not in known]
    if missing:
        works = "weights and gradients" if gradients else "weights alone"
        needs = " and ".join(missing)
        raise ValueError(f"{method}: {score} needs {needs}, which it doesn't have; scores of {works} do")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``; DDP must come after."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("make the method first, then wrap the model: DistributedDataParallel(model)")
    inner: nn.Module = getattr(model, "_orig_mod", model)
    check_model(inner)
    return inner


def weights(layers: Sequence[Layer], model: nn.Module, optimizer: Any) -> None:
    """Raise if the model has no layers, if weights are already sparse, or if the optimizer doesn't have the weights."""
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer left to make sparse: look at where, skip, dense_first")
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"the optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for layer in layers:
        parameter: Any = layer.parameter
        if layer.source.is_sparse:
            raise ValueError(f"{layer.name} is already sparse: close its method, then call gs.densify_(model)")
        if type(parameter) is not nn.Parameter and not is_sharded(parameter):
            kind = type(parameter).__name__
            raise NotImplementedError(f"{layer.name} is a {kind}; methods work on plain parameters, and on FSDP2's")
        if id(parameter) not in owned:
            raise ValueError(
                f"the optimizer doesn't own {layer.name}: make it from the parameters of this model, or leave the "
                "layer dense with skip=..."
            )
        if not parameter.is_floating_point():
            raise TypeError(f"{layer.name} is {parameter.dtype}; sparse training needs real floating-point weights")


def same_layers(layers: Sequence[Layer], pattern: Any, state: Mapping[str, Any]) -> None:
    """Raise if a state belongs to another model, or to a method with another pattern."""
    names, mine = state["budgets"], {layer.name for layer in layers}
    if mine != set(names):
        raise ValueError(
            f"the state is of other layers: missing {sorted(mine - set(names))}, not here {sorted(set(names) - mine)}"
        )
    if state.get("pattern", repr(pattern)) != repr(pattern):  # states of earlier versions don't say it
        raise ValueError(f"the state is of a method with pattern={state['pattern']}, not {pattern!r}: use the same one")


def initial(weight: Tensor, mask: Tensor, how: str | None, rng: torch.Generator, gain: float = 2.0) -> Tensor:
    """Initial weights of a layer (neurons x inputs) for its sparse fan-in (Evci et al. 2022).

    Examples
    --------
    >>> import torch
    >>> mask = torch.tensor([[True, False, False, False]])
    >>> initial(torch.full((1, 4), 3.0), mask, "rescale", torch.Generator())
    tensor([[6., 6., 6., 6.]])
    """
    if how is None:
        return weight
    inputs = mask.sum(1, keepdim=True).clamp(min=1).to(weight.dtype)
    if how == "rescale":
        return weight * (mask.shape[1] / inputs).sqrt()
    draw = torch.randn(weight.shape, generator=rng, dtype=torch.float32)
    return draw.to(weight) * (gain / inputs).sqrt()


def has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Was ``optimizer.step`` given a function that computes the gradient? (The optimizer itself may come first.)"""
    return kwargs.get("closure") is not None or any(callable(a) for a in args)


def refresh(method: str, steps: Any) -> None:
    """Refuse what is no number of steps between selections of masks."""
    if type(steps) is not int or steps < 1:
        raise ValueError(f"{method}: refresh={steps!r} must be a number of steps, from 1")
