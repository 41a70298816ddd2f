"""The range of the inputs of layers over calibration batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.int8.weight import Range, range_between


def observe(model: nn.Module, layers: Iterable[nn.Module], batches: Iterable[Any]) -> dict[nn.Module, Range]:
    """Return the range of the inputs of layers over all batches; a layer that none reaches is left out.

    Parameters
    ----------
    model
        Run in evaluation mode, without gradients; left as it was.
    layers
        Modules of the model.
    batches
        What the model is called with: tensors, tuples of positional or dicts of keyword arguments.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 2)
    >>> observe(layer, [layer], [torch.tensor([[-1.0, 3.0]]), torch.tensor([[0.0, 253.0]])])[layer]
    Range(scale=1.0, zero=1)
    """
    ends: dict[nn.Module, tuple[float, float]] = {}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        if not x.numel():
            return
        low, high = (float(end) for end in torch.aminmax(x.detach()))
        if not (abs(low) < float("inf") and abs(high) < float("inf")):
            raise ValueError("a calibration batch gives activations that are not finite")
        before = ends.get(module, (0.0, 0.0))
        ends[module] = min(low, before[0]), max(high, before[1])

    modes = {module: module.training for module in model.modules()}
    hooks = [module.register_forward_pre_hook(note) for module in dict.fromkeys(layers)]
    model.eval()
    count = 0
    try:
        with torch.no_grad():
            for count, batch in enumerate(batches, 1):  # noqa: B007
                _call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    if not count:
        raise ValueError("calibration has no batch")
    return {module: range_between(*end) for module, end in ends.items()}


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, Tensor):
        model(batch)
    else:
        model(*batch)
