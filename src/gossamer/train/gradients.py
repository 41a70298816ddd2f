"""Dense gradients for an update: taken in the steps before it (one, or more to average), and made layer by layer.

How depends on how a weight is stored:

- Masked: backward gives all positions anyway; they are collected on their way to ``.grad``, which has the kept ones.
- A smaller format, in ``nn.Linear``: the gradient of one step is never dense. Its two factors, the inputs and the
  gradients of the outputs, are kept, and multiplied when the layer's turn has come. A mean of several steps is dense.
  Elsewhere as for Masked.
- Sharded by FSDP: each rank keeps its reduced rows; they are gathered when the layer's turn has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.models.modules import dense_class
from gossamer.models.weights import Weight
from gossamer.train.layers import Layer
from gossamer.train.shards import clear, is_sharded, shard_like, whole


class Gradients:
    """The dense gradients of some layers, of one step or averaged over several.

    Parameters
    ----------
    layers
        Whose gradients.
    mean
        Averages a gradient over the ranks.
    several
        Are gradients of several steps averaged?
    """

    def __init__(self, layers: Sequence[Layer], mean: Callable[[Tensor], Tensor], several: bool = False) -> None:
        self.weights = list({id(layer.parameter): layer.source for layer in layers}.values())
        self._mean, self._several = mean, several
        self._wanted = False
        self._sums: dict[int, tuple[Any, int]] = {}  # dense, or the reduced rows of a sharded one; number of steps
        self._factors = {
            id(w.parameter): Factors(w, modules)
            for w in self.weights
            if w.held is not None and w.held.is_stored and (modules := _linears(w))
        }

    def ask(self, wanted: bool) -> None:
        """From now on keep dense gradients, or stop and forget what was kept."""
        if not wanted and not self._wanted:  # as after most steps: nothing was kept
            return
        self._wanted = wanted
        if not wanted:
            self._sums.clear()
        for weight in self.weights:
            factors = self._factors.get(id(weight.parameter))
            if factors is not None:
                factors.open() if wanted else factors.close()
            else:
                weight.collect_gradient(wanted)

    @torch.no_grad()
    def take(self) -> bool:
        """Keep what backward has collected. Was there anything?"""
        for weight in self.weights if self._wanted else self.sharded():
            parameter: Any = weight.parameter
            if parameter.grad is None:
                continue
            factors = self._factors.get(id(parameter))
            if factors is not None and self._wanted and not factors.pairs:
                del self._factors[id(parameter)]  # nobody called the module (a compiled one, say): the next is dense
                factors.close()
                weight.collect_gradient(True)
            if is_sharded(parameter):
                if self._wanted:
                    self._add(parameter, parameter.grad.detach().clone())
                clear(parameter.grad, parameter)
            elif weight.held is not None and weight.held.collected is not None:
                self._add(parameter, self._mean(weight.held.collected))
                weight.held.collected = None
            elif factors is not None and self._several and (product := factors.product()) is not None:
                self._add(parameter, self._mean(product))
        return bool(self._sums)

    def sharded(self) -> list[Weight]:
        """The weights that FSDP has sharded. (Asked in every step, so without reading them as a module does.)"""
        return [weight for weight in self.weights if is_sharded(weight.module._parameters.get(weight.places[0][1]))]

    def _add(self, parameter: Any, grad: Any) -> None:
        """Add the gradient of a step; several are summed in float32 at least."""
        total, count = self._sums.get(id(parameter), (None, 0)) if self._several else (None, 0)
        if self._several:
            grad = grad.to(torch.promote_types(grad.dtype, torch.float32))
        self._sums[id(parameter)] = grad if total is None else total + grad, count + 1

    @torch.no_grad()
    def of(self, parameter: Any) -> Tensor | None:
        """The gradient at every position of a weight, averaged over the steps that were taken; and forget it."""
        total, count = self._sums.pop(id(parameter), (None, 0))
        if total is not None:
            total = whole(total) if is_sharded(total) else total
            return total if count == 1 else total / count
        factors = self._factors.get(id(parameter))
        product = None if factors is None else factors.product()
        return None if product is None else self._mean(product)

    def state_dict(self) -> dict[str, tuple[Tensor, int]]:
        """Sums so far and their numbers of steps, by the name of the weight: empty unless several are averaged."""
        if not self._several:
            return {}
        found = {w.name: self._sums[id(w.parameter)] for w in self.weights if id(w.parameter) in self._sums}
        return {name: (whole(x) if is_sharded(x) else x.clone(), count) for name, (x, count) in found.items()}

    def load_state_dict(self, state: Mapping[str, tuple[Tensor, int]]) -> None:
        """Continue from there."""
        self._sums.clear()
        for weight in self.weights:
            if weight.name in state:
                total, count = state[weight.name]
                total = total.to(weight.parameter.device)
                shared = shard_like(total, weight.parameter) if is_sharded(weight.parameter) else total
                self._sums[id(weight.parameter)] = shared, count


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
