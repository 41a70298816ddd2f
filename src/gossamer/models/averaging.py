"""Averages of models whose patterns change: a copy takes the pattern first, and then the values.

``torch.optim.swa_utils.AveragedModel`` averages parameters and buffers element by element. That is wrong for what a
sparse weight keeps: masks, index arrays and codes have no average, and values of two patterns belong to different
positions. So its ``update_parameters`` is wrapped here. Other programs that average copies of a model call
:func:`follow_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gossamer.models.modules import SparseModule, part_of
from gossamer.models.quantize import QUANTIZED
from gossamer.models.quantized_experts import QuantizedExperts
from gossamer.models.weights import all_weights

_WITHOUT_AVERAGES = (*QUANTIZED, QuantizedExperts)  # of their buffers
_KINDS = (SparseModule, *_WITHOUT_AVERAGES)


@torch.no_grad()
def follow_(copy: nn.Module, model: nn.Module) -> nn.Module:
    """Give a copy of a model the patterns and formats that the model's weights have now; its values stay.

    Values at positions that are no longer kept are removed, new positions start with zeros. Call it before you average
    the weights of a model that is trained by a method such as RigL. ``AveragedModel`` does it by itself.

    Parameters
    ----------
    copy
        A copy of the model, such as an average of its weights.
    model
        The model, or the same model in DDP.

    Examples
    --------
    >>> import copy, torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Linear(8, 4), "50%")
    >>> average = copy.deepcopy(model)
    >>> model = gs.sparsify_(model, "75%")
    >>> follow_(average, model).weight.sparsity
    0.75
    """
    mine, theirs = list(all_weights(copy).values()), list(all_weights(model).values())
    if len(mine) != len(theirs) or any(a.shape != b.shape for a, b in zip(mine, theirs, strict=True)):
        raise ValueError(f"the weights of this {type(copy).__name__} are not those of a copy of the model")
    for own, weight in zip(mine, theirs, strict=True):
        if weight.is_sparse:
            structure = weight.structure.to(own.parameter.device)
            if not (own.is_sparse and own.structure.same(structure)):
                own.become(own.dense().clone(), weight.mask().to(own.parameter.device), weight.format)
        elif own.is_sparse:
            own.become(own.dense().clone(), None, weight.format)
    return copy


@contextmanager
def _without_structure(model: nn.Module) -> Iterator[None]:
    """Hide masks, index arrays and codes from a function that averages buffers."""
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, _KINDS):
                kept = dict(module._buffers)
                for name in kept:
                    if isinstance(module, _WITHOUT_AVERAGES) or part_of(module, name)[0] is not None:
                        del module._buffers[name]
                stack.callback(module._buffers.update, kept)
                stack.callback(module._buffers.clear)
        yield


def _following(update: Any) -> Any:
    @wraps(update)
    def update_parameters(self: AveragedModel, model: nn.Module) -> None:
        if not any(isinstance(module, _KINDS) for whole in (self.module, model) for module in whole.modules()):
            update(self, model)
            return
        follow_(self.module, model)
        with _without_structure(self.module), _without_structure(model):
            update(self, model)

    return update_parameters


AveragedModel.update_parameters = _following(AveragedModel.update_parameters)  # type: ignore[method-assign]
