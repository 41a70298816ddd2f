"""Hugging Face: ``save_pretrained`` and ``from_pretrained`` keep sparse weights, through transformers' own interface.

transformers lets other libraries define how their weights are written and read: by a *quantizer*, registered under the
name in ``config.json``. ``hf/quantizer.py`` is ours. Nothing of transformers is imported or changed here. When a
program imports transformers' registry of quantizers, ours is registered there; when weights of a transformers model
become sparse, the model gets our quantizer.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import logging
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

from gossamer.models.hf.attention import grouped_attention_

_REGISTER = "transformers.quantizers.auto"
log = logging.getLogger("gossamer")


def attach(model: nn.Module) -> nn.Module:
    """Give every transformers model in ``model`` our quantizer, which saves its sparse weights.

    ``gs.sparsify_``, ``gs.pack_``, ``gs.prune``, ``gs.train``, ``gs.load`` and the builder do this automatically; call
    it after you put sparse weights into a model yourself. A model with another quantizer is not changed.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.hf.attach(torch.nn.Linear(4, 4))  # not of transformers: nothing happens
    """
    utils = sys.modules.get("transformers.modeling_utils")
    quantizer = None if utils is None else enter()
    if utils is not None and quantizer is not None:
        for module in model.modules():
            if isinstance(module, utils.PreTrainedModel):
                quantizer.tell(module)
    return model


def enter() -> ModuleType | None:
    """Register our quantizer with transformers; None if this version of transformers doesn't support it.

    Examples
    --------
    >>> import gossamer as gs
    >>> gs.hf.enter().SparseQuantizer.__name__
    'SparseQuantizer'
    """
    try:
        return importlib.import_module("gossamer.models.hf.quantizer")
    except ImportError as error:  # an old transformers must keep working, as it does without us
        log.warning("save_pretrained and from_pretrained can't keep sparse weights with this transformers: %s", error)
        return None


class _Watch(importlib.abc.MetaPathFinder):
    """Waits for transformers' register of quantizers to be imported, and steps aside then."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _REGISTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)
        return spec


class _Then(importlib.abc.Loader):
    """A loader that, once the module is there, enters our quantizer."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        enter()

    def __getattr__(self, name: str) -> Any:  # who asks for the source gets it
        return getattr(self.loader, name)


if _REGISTER in sys.modules:
    enter()
else:
    sys.meta_path.insert(0, _Watch())

__all__ = ["attach", "enter", "grouped_attention_"]
