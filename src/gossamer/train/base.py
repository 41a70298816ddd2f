"""The life cycle that all methods share. A method is a subclass that says which mask a layer gets.

1. Made: layers are found, budgets shared out, first masks drawn, weights become masked parameters.
2. The optimizer steps: hooks take the dense gradient where one was asked for, and hand the optimizer the masked one.
3. ``method.step()`` counts the step and, where one is due, updates the masks. What is dropped takes its optimizer
   state with it, what grows starts at 0 in weight and momentum. Then a dense gradient is asked for if the next step
   needs one; so micro-batches add up in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossamer.formats import Format, Masked, as_format
from gossamer.models.names import Where
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import Weight
from gossamer.train import checks
from gossamer.train.distributions import Distribution, budgets, given
from gossamer.train.gradients import Gradients
from gossamer.train.history import History
from gossamer.train.layers import Layer, become, dense_of, find_layers, mask_of
from gossamer.train.rules import random, top
from gossamer.train.schedules import Schedule, as_schedule
from gossamer.train.shards import clear, is_sharded
from gossamer.train.state import settle

_log = logging.getLogger("gossamer")

#: Added to a seed: with torch.manual_seed(0) and seed=0 the first mask would be drawn with the very numbers that the
#: first layer's weights were drawn with, and keep the largest of them, all positive.
_OWN_STREAM = 0x5EED


class Method:
    """Base of all methods: fixed random masks unless a subclass says otherwise.

    Parameters
    ----------
    model
        Its linear, convolution and attention weights become sparse, in place. Wrap it in DDP or ``torch.compile``
        after this.
    optimizer
        Any of torch's, with all those weights; made before or after an LR scheduler.
    sparsity
        Of the layers that are taken, all together.
    distribution
        "erk", "er", "uniform", ``{glob: sparsity}`` ("given"), or a function of the shapes.
    every
        Optimizer steps between updates.
    until
        The last step at which masks may change; about 75 % of training.
    fraction
        Share of a layer's weights exchanged in an update; it decays to 0 at ``until``.
    decay
        The schedule of ``fraction``.
    where, skip
        Names of the weights to take, and globs of those to leave dense.
    dense_first, dense_last
        Leave the first layer, or the last, dense.
    init
        "rescale": your weights times sqrt(dense / sparse fan-in), so that activations keep the scale that the model's
        author meant; "kaiming": drawn anew for the inputs that a neuron really has, and a ReLU after it; None: as they
        are. On short schedules this decides more than the method does.
    moments
        What an adaptive optimizer (Adam and its kind) knows of a grown weight's squared gradients: "mean", that of its
        parameter's weights, so that its steps are as long as theirs; "zero", nothing, and its first hundred steps are
        up to six times as long. Momentum of a grown weight is zero.
    format
        How linear weights, their gradients and optimizer state are stored: ``gs.Masked()``, as fast as dense and no
        smaller, by default; ``gs.formats.PackedCSR()`` is small, and computed by the CPU kernels.
    seed
        Of everything that is drawn.
    group
        Process group that trains the same model; the default one if None.

    Examples
    --------
    A method of your own says how one layer is updated:

    >>> import torch, gossamer as gs
    >>> from gossamer.train.rules import exchange, gradient, random
    >>> class DropAnything(gs.train.Method):
    ...     needs_gradient = True
    ...     def update(self, layer):
    ...         return exchange(layer, int(self.share * layer.kept), drop=random, grow=gradient)
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> method = DropAnything(model, optimizer, sparsity=0.75, every=2, until=100)
    >>> for _ in range(2):
    ...     model(torch.randn(4, 16)).square().sum().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    >>> model.weight.nnz, method.log()["updates"]
    (32, 1)
    """

    #: Does an update need the gradient at every position?
    needs_gradient: ClassVar[bool] = False
    #: Does it change masks after the start?
    dynamic: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float = 0.9,
        *,
        distribution: str | Distribution | Mapping[str, float] = "erk",
        every: int = 100,
        until: float | None = None,
        fraction: float = 0.3,
        decay: str | Schedule = "cosine",
        where: Where = None,
        skip: Sequence[str] | str = (),
        dense_first: bool = False,
        dense_last: bool = False,
        init: str | None = "rescale",
        moments: str = "mean",
        format: Format | None = None,
        seed: int = 0,
        group: Any = None,
    ) -> None:
        checks.settings(type(self).__name__, sparsity, every, until, fraction, init, moments, self.dynamic)
        self.model, self.optimizer, self.group, self.sparsity = model, optimizer, group, sparsity
        self.distribution, self.every, self.until = distribution, every, None if until is None else int(until)
        self.format = None if format is None else as_format(format)
        self.fraction, self.decay, self.init, self.moments = fraction, as_schedule(decay), init, moments
        skip = [skip] if isinstance(skip, str) else list(skip)
        self.layers = find_layers(checks.unwrapped(model), where, skip, dense_first, dense_last)
        checks.weights(self.layers, model, optimizer)
        self.rng = torch.Generator().manual_seed(seed + _OWN_STREAM)
        for layer in self.layers:
            layer.rng = self.rng
        self.steps = 0
        for layer, budget in zip(self.layers, self.budgets(sparsity), strict=True):
            layer.budget = budget
        self._stepped = False
        self._agree()
        self._sow()
        made_sparse(model)
        self.gradients = Gradients(self.layers, self._mean)
        self.history = History(self.layers)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self._ask()

    # -- what a method may say of itself

    def start(self, layer: Layer) -> Tensor:
        """The first mask of a layer: random, as many as its budget."""
        return top(random(layer), layer.budget)

    def update(self, layer: Layer) -> Tensor | None:
        """The next mask of a layer, or None to leave it; called where an update is due."""
        return None

    def due(self, step: int) -> bool:
        """Does this step (from 1) end with an update?"""
        return self.dynamic and step % self.every == 0 and (self.until is None or step <= self.until)

    def budgets(self, sparsity: float) -> list[int]:
        """Weights that each layer keeps at this sparsity of all."""
        names = [layer.name for layer in self.layers]
        how = self.distribution
        each = given(how, names, sparsity) if isinstance(how, Mapping) else how
        return budgets([layer.shape for layer in self.layers], sparsity, each, least=self.least())

    def least(self) -> list[int]:
        """Weights that each layer needs at least."""
        return [1 for _ in self.layers]

    @property
    def share(self) -> float:
        """The fraction that may be exchanged now, by the schedule."""
        return self.decay(self.steps, self.until or 0, self.fraction, 0.0) if self.until else self.fraction

    # -- the life cycle

    def step(self) -> None:
        """Count an optimizer step, and update the masks where one is due. Call it after ``optimizer.step()``."""
        if not self._stepped:  # nothing was optimized: a gradient scaler skipped the step, or this is a second call
            return
        self._stepped = False
        self.steps += 1
        if self.due(self.steps):
            self.apply()
        self._ask()

    @torch.no_grad()
    def apply(self) -> None:
        """Update all masks now, weight by weight: no more than one has a dense gradient made for it at a time."""
        for weight in self.gradients.weights:
            layers = [layer for layer in self.layers if layer.source is weight]
            grad = self.gradients.of(weight.parameter) if self.needs_gradient else None
            masks: list[Tensor | None] = []
            for layer in layers:
                layer.grad = None if grad is None else layer.matrix(grad)
                masks.append(self.update(layer) if grad is not None or not self.needs_gradient else None)
                layer.grad = None
            self.history.record(self.steps, layers, masks)
            self._set(layers, masks, self.moments)

    @torch.no_grad()
    def _agree(self) -> None:
        """Let all ranks start from the weights and the random numbers of the first (FSDP has seen to the weights)."""
        if not self._alone():
            first = dist.get_global_rank(self.group, 0) if self.group is not None else 0
            rng = self.rng.get_state().to(self.layers[0].parameter.device)
            plain = [layer.parameter.detach() for layer in self.layers if not is_sharded(layer.parameter)]
            for tensor in [rng, *plain]:
                dist.broadcast(tensor, first, group=self.group)
            self.rng.set_state(rng.cpu())

    def _alone(self) -> bool:
        return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self.group) == 1

    @torch.no_grad()
    def _sow(self) -> None:
        """Draw the first masks, and make the weights sparse."""
        masks = [self.start(layer) for layer in self.layers]
        by_weight: dict[int, tuple[Weight, Tensor, Tensor]] = {}
        for layer, mask in zip(self.layers, masks, strict=True):
            if id(layer.source) not in by_weight:
                values = dense_of(layer.source).clone()
                by_weight[id(layer.source)] = layer.source, values, torch.zeros_like(values, dtype=torch.bool)
            _, values, whole = by_weight[id(layer.source)]
            layer.put(whole, mask)
            gain = 1.0 if layer.last or layer.rows is not None else 2.0  # no ReLU after a classifier or a projection
            layer.put(values, checks.initial(layer.matrix(values), mask, self.init, self.rng, gain))
        for weight, values, whole in by_weight.values():
            become(weight, values, whole, self._format_of(weight.parameter))
            self._settle(weight)

    def _set(self, layers: Sequence[Layer], masks: Sequence[Tensor | None], moments: str = "zero") -> None:
        """Give the weights their new masks, and the optimizer state with them."""
        wanted: dict[int, tuple[Weight, Tensor]] = {}
        for layer, mask in zip(layers, masks, strict=True):
            if mask is not None:
                if id(layer.source) not in wanted:
                    wanted[id(layer.source)] = layer.source, mask_of(layer.source).clone()
                layer.put(wanted[id(layer.source)][1], mask)
        for weight, whole in wanted.values():
            grown = whole & ~mask_of(weight) if moments == "mean" else None
            become(weight, None, whole)
            self._settle(weight, grown)

    def _settle(self, weight: Weight, grown: Tensor | None = None) -> None:
        """Let the optimizer state have the mask of its weight."""
        settle(self.optimizer, weight, grown)

    def _format_of(self, parameter: Tensor) -> Format:
        """The format of a weight: what was asked for, for matrices."""
        if is_sharded(parameter) and self.format not in (None, Masked()):
            raise NotImplementedError(f"a weight that FSDP has sharded stays Masked: leave out format={self.format}")
        return Masked() if self.format is None or parameter.dim() != 2 else self.format

    def _ask(self) -> None:
        """Ask for dense gradients if the next step needs them."""
        self.gradients.ask(self.needs_gradient and self.due(self.steps + 1))

    @torch.no_grad()
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not _has_closure(args, kwargs):
            self.gradients.take()

    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepped = True
        if _has_closure(args, kwargs) and self.gradients.take():  # which computed the gradient inside the step
            for weight in self.gradients.weights:
                self._settle(weight)
        for weight in self.gradients.weights:
            if is_sharded(weight.parameter):
                clear(weight.parameter, weight.parameter)

    def _mean(self, grad: Tensor) -> Tensor:
        if self._alone():
            return grad
        grad = grad.clone()
        dist.all_reduce(grad, group=self.group)
        return grad.div_(dist.get_world_size(self.group))

    # -- what a user asks

    def log(self, writer: Any = None) -> dict[str, Any]:
        """Return where training stands: density, churn, ablated neurons and exploration, in all and layer by layer.

        Parameters
        ----------
        writer
            A TensorBoard ``SummaryWriter``, or anything with ``add_scalar(name, value, step)``; gets the same figures.
        """
        figures = self.history.figures(self.layers)
        out = {"method": type(self).__name__, "step": self.steps, **figures}
        if writer is not None:
            self.history.write(writer, out)
        return out

    def curves(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return how density, churn, ablation and exploration went over the updates, to draw: plain lists.

        ``{"density" | "churn" | "ablated" | "explored": {layer: {"step": [...], "value": [...]}}}``; all values are
        shares, from 0 to 1: of the layer's weights, of its kept weights, of its neurons, of its positions.
        """
        return self.history.curves(self.layers)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights and the optimizer's state: steps, masks, random numbers, history, and what a
        method remembers of its layers."""
        extra = {layer.name: dict(layer.extra) for layer in self.layers}
        return {
            "steps": self.steps,
            "rng": self.rng.get_state(),
            "budgets": {layer.name: layer.budget for layer in self.layers},
            "masks": {layer.name: layer.mask.clone() for layer in self.layers},
            "extra": extra,
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; load the model's and the optimizer's first."""
        checks.same_layers(self.layers, state["budgets"])
        self.steps = state["steps"]
        self.rng.set_state(state["rng"])
        for layer in self.layers:
            layer.budget = state["budgets"][layer.name]
            layer.extra = dict(state["extra"][layer.name])
            layer.grad = None
        with torch.no_grad():
            self._set(self.layers, [state["masks"][layer.name].to(layer.parameter.device) for layer in self.layers])
        self.history.load_state_dict(state["history"])
        self._stepped = False
        self._ask()

    def close(self) -> None:
        """Let go of the optimizer: masks stay as they are, the model trains on as any sparse model."""
        for hook in self._hooks:
            hook.remove()
        self.gradients.ask(False)
        _log.debug("%s closed at step %d", type(self).__name__, self.steps)

    def __repr__(self) -> str:
        kept, size = sum(layer.kept for layer in self.layers), sum(layer.size for layer in self.layers)
        sparsity = 1 - kept / max(size, 1)
        return f"{type(self).__name__}({len(self.layers)} layers, step {self.steps:,}, sparsity {sparsity:.2%})"


def _has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Was ``optimizer.step`` given a function that computes the gradient? (The optimizer itself may come first.)"""
    return kwargs.get("closure") is not None or any(callable(a) for a in args)
