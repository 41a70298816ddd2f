"""Dense gradients for an update: taken in the one step before it, and made whole layer by layer.

How depends on how a weight is stored:

- Masked: backward gives all positions anyway; they are collected on their way to ``.grad``, which has the kept ones.
- A smaller format, in ``nn.Linear``: the gradient is never dense. Its two factors, the inputs and the gradients of the
  outputs, are kept, and multiplied when the layer's turn has come. Elsewhere as for Masked.
- Sharded by FSDP: each rank keeps its reduced rows; they are gathered when the layer's turn has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.models.modules import dense_class
from gossamer.models.weights import Weight
from gossamer.train.layers import Layer
from gossamer.train.shards import clear, is_sharded, whole


class Gradients:
    """The dense gradients of some layers; ``mean`` averages one over the ranks."""

    def __init__(self, layers: Sequence[Layer], mean: Callable[[Tensor], Tensor]) -> None:
        self.weights = list({id(layer.parameter): layer.source for layer in layers}.values())
        self._mean = mean
        self._wanted = False
        self._kept: dict[int, Any] = {}  # dense, or the reduced rows of a sharded one
        self._factors = {
            id(w.parameter): Factors(w, modules)
            for w in self.weights
            if w.held is not None and w.held.is_stored and (modules := _linears(w))
        }

    def ask(self, wanted: bool) -> None:
        """From now on keep dense gradients, or stop; what was kept is forgotten."""
        self._wanted = wanted
        self._kept.clear()
        for weight in self.weights:
            factors = self._factors.get(id(weight.parameter))
            if factors is not None:
                factors.open() if wanted else factors.close()
            elif weight.held is not None:
                weight.held.collects, weight.held.collected = wanted, None

    @torch.no_grad()
    def take(self) -> bool:
        """Keep what backward has collected. Was there anything?"""
        for weight in self.weights:
            parameter: Any = weight.parameter
            if parameter.grad is None:
                continue
            factors = self._factors.get(id(parameter))
            if factors is not None and self._wanted and not factors.pairs:
                del self._factors[id(parameter)]  # nobody called the module (a compiled one, say): the next is dense
                factors.close()
                weight.held.collects = True  # type: ignore[union-attr]
            if is_sharded(parameter):
                if self._wanted:
                    self._kept[id(parameter)] = parameter.grad.detach().clone()
                clear(parameter.grad, parameter)
            elif weight.held is not None and weight.held.collected is not None:
                self._kept[id(parameter)] = self._mean(weight.held.collected)
                weight.held.collected = None
        return bool(self._kept)

    @torch.no_grad()
    def of(self, parameter: Any) -> Tensor | None:
        """The gradient of the last step at every position of a weight, if it was taken; and forget it."""
        kept = self._kept.pop(id(parameter), None)
        if kept is not None:
            return whole(kept) if is_sharded(kept) else kept
        factors = self._factors.get(id(parameter))
        product = None if factors is None else factors.product()
        return None if product is None else self._mean(product)


class Factors:
    """Inputs and gradients of the outputs of the linear modules that have a weight."""

    def __init__(self, weight: Weight, modules: Sequence[nn.Linear]) -> None:
        self.parameter, self.modules = weight.parameter, modules
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Watch the modules."""
        self.close()
        self._hooks = [module.register_forward_hook(self._watch) for module in self.modules]

    def close(self) -> None:
        """Watch no more, and forget."""
        self.pairs = []
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _watch(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if not torch.compiler.is_compiling() and inputs and output.requires_grad:
            x = inputs[0].detach()
            output.register_hook(lambda grad: self.pairs.append((grad.detach(), x)))

    def product(self) -> Tensor | None:
        """The dense gradient, summed over all calls; the pairs are forgotten one by one."""
        total: Tensor | None = None
        dtype = self.parameter.dtype
        while self.pairs:
            grad, x = self.pairs.pop()
            if not bool(grad.isfinite().all()):  # of a step that a gradient scaler has skipped
                continue
            left, right = grad.reshape(-1, grad.shape[-1]).to(dtype), x.reshape(-1, x.shape[-1]).to(dtype)
            total = left.t() @ right if total is None else total.addmm_(left.t(), right)
        return total


def _linears(weight: Weight) -> list[nn.Linear]:
    """The modules that own a weight, if all of them are plain linear ones: others may use it without being called."""
    owners = [module for module, _ in weight.places]
    return [m for m in owners if isinstance(m, nn.Linear)] if all(dense_class(m) is nn.Linear for m in owners) else []
