"""The base class of all methods. A method is a subclass that returns the next mask of a layer.

1. Creation: layers are found and get budgets and patterns, first masks are drawn, weights become masked parameters. 2.
Optimizer step: hooks keep the dense gradient if it was requested, and pass the masked one to the optimizer. 3.
``method.step()`` counts the step and updates the masks if an update is due. Dropped weights lose their optimizer state;
new weights start at 0, with zero momentum. Then a dense gradient is requested if the next update needs that of the next
step; micro-batches accumulate in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.formats import Format, Masked, as_format
from gossamer.models.names import Where
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import Weight
from gossamer.patterns import Pattern
from gossamer.schedules import Schedule, as_schedule, at_step
from gossamer.scores import Magnitude, Score, as_score
from gossamer.train import checks, masks, rules
from gossamer.train.distributions import Distribution, budgets, given
from gossamer.train.gradients import Gradients
from gossamer.train.history import History
from gossamer.train.layers import Layer, copied, find_layers
from gossamer.train.ranks import Ranks
from gossamer.train.shards import clear, is_sharded
from gossamer.train.state import settle
from gossamer.train.target import as_target, share_out

#: Added to a seed: with torch.manual_seed(0) and seed=0 the first mask would be drawn with the very numbers that the
#: first layer's weights were drawn with, and keep the largest of them, all positive.
_OWN_STREAM = 0x5EED


class Method:
    """Base class of all methods: fixed random masks, unless a subclass overrides them.

    Parameters
    ----------
    model
        Its linear, convolution and attention weights become sparse, in place. Wrap it in DDP or ``torch.compile``
        afterwards.
    optimizer
        Any optimizer of torch that has all these weights; an LR scheduler may be created before or after.
    sparsity
        Sparsity of all sparse layers together, 0.9 by default; or a pattern.
    pattern
        Which positions a layer may keep: any pattern or its short form, such as ``gs.NM(2, 4)``, "all:2:8",
        "fan-in 90%", "block 4x4 90%". Every mask satisfies it. None: any positions.
    score
        Decides which weights are kept; ``gs.Magnitude()`` by default. Scores that need gradients get those of the step
        before an update.
    distribution
        "erk", "er", "uniform", a function of the shapes, or ``{glob: sparsity or distribution}``: with ``{"head": 0.0,
        "*": "erk"}`` the other layers become sparser to compensate for the dense one. For sparsities, blocks and
        fan-ins; n:m patterns keep the same share in every layer.
    every, start
        Optimizer steps between updates, and the first step that may have one.
    until
        The last step at which masks may change. 0.75 of all steps is a good choice: the last quarter then trains with
        fixed masks. None: masks change until the end, always by ``fraction``.
    fraction, decay
        Share of a layer's weights that an update replaces, and the schedule by which it decays to 0 at ``until``.
    where, skip
        Names of the weights to make sparse, and globs of those to keep dense. ``method.left`` lists what stays dense,
        and why.
    dense_first, dense_last
        Keep the first layer, or the last, dense.
    init
        "rescale": the initial weights times sqrt(dense / sparse fan-in), so that activations keep their scale;
        "kaiming": new random weights for the sparse fan-in, assuming a ReLU; None: unchanged. For short schedules this
        matters more than the method.
    moments
        Squared gradients of a new weight in Adam and similar optimizers. "mean": what is usual for its row and column
        (the mean of its row times that of its column, over that of the parameter), so that its steps are as long as
        theirs. "zero": its first hundred steps are up to six times as long.
    format
        How linear weights, their gradients and optimizer state are stored. The default, ``gs.Masked()``, is as fast as
        dense and not smaller; ``gs.formats.PackedCSR()`` is small, and uses the CPU kernels.
    seed
        Random seed.
    group
        Process group that trains the same model; None: the default group.

    Examples
    --------
    Your own method implements the update of one layer:

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
    needs_gradient: bool = False
    #: Over how many steps before an update is that gradient averaged?
    gradient_steps: int = 1
    #: Does it change masks after the start?
    dynamic: ClassVar[bool] = True
    #: Must ``until`` be given: does it reach its target only there?
    needs_until: ClassVar[bool] = False
    #: Options that make no sense for it, and why.
    refuses: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        pattern: Pattern | str | None = None,
        score: Score | str | None = None,
        distribution: str | Distribution | Mapping[str, float | str] = "erk",
        every: float = 100,
        start: float = 0,
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
        name = type(self).__name__
        target = as_target(name, sparsity, pattern)
        checks.options(name, self.refuses, pattern=target.pattern, score=score)
        checks.settings(
            name, sparsity=target.sparsity, every=every, start=start, until=until, fraction=fraction, init=init,
            moments=moments, needs_until=self.needs_until,
        )  # fmt: skip
        self.score: Score = Magnitude() if score is None else as_score(score)
        checks.score(name, self.score, gradients=self.dynamic)
        self.needs_gradient = self.needs_gradient or bool(self.score.needs)
        self.model, self.optimizer, self.pattern = model, optimizer, target.pattern
        self.every, self.start, self.until = int(every), int(start), None if until is None else int(until)
        self.distribution, self.format = distribution, None if format is None else as_format(format)
        self.fraction, self.decay, self.init, self.moments = fraction, as_schedule(decay), init, moments
        self.layers, self.left = find_layers(checks.unwrapped(model), where, skip, dense_first, dense_last)
        checks.weights(self.layers, model, optimizer)
        self.rng = torch.Generator().manual_seed(seed + _OWN_STREAM)
        for layer in self.layers:
            layer.rng = self.rng
        self.steps, self._stepped = 0, False
        self.sparsity = self._share_out(target.sparsity)
        ranks = Ranks(group)
        ranks.agree(self.layers, self.rng)
        self._sow()
        made_sparse(model)
        self.gradients = Gradients(self.layers, ranks.mean, self.gradient_steps > 1)
        self.history = History(self.layers)
        before = optimizer.register_step_pre_hook(self._before_step)
        self._hooks = [before, optimizer.register_step_post_hook(self._after_step)]
        self._ask()

    # -- what a method may say of itself

    def first_mask(self, layer: Layer) -> Tensor:
        """The first mask of a layer: random."""
        return rules.select(layer, rules.random(layer))

    def update(self, layer: Layer) -> Tensor | None:
        """The next mask of a layer, or None to keep it; called when an update is due."""
        return None

    def due(self, step: int) -> bool:
        """Does this step (counted from 1) end with an update?"""
        since = step - self.start
        return self.dynamic and since >= 0 and since % self.every == 0 and (self.until is None or step <= self.until)

    def budgets(self, sparsity: float) -> list[int]:
        """Number of weights that each layer keeps at this total sparsity."""
        how, shapes = self.distribution, [layer.shape for layer in self.layers]
        if isinstance(how, Mapping):
            return given(how, [layer.name for layer in self.layers], shapes, sparsity, self.least())
        return budgets(shapes, sparsity, how, least=self.least())

    def least(self) -> list[int]:
        """The smallest number of weights of each layer."""
        return [1 for _ in self.layers]

    @property
    def share(self) -> float:
        """The fraction to replace now, by the schedule."""
        if not self.until:
            return self.fraction
        return at_step(self.decay, self.steps - self.start, self.until - self.start, self.fraction, 0.0)

    def saliency(self, layer: Layer, weight: Tensor | None = None) -> Tensor:
        """How much each weight of a layer matters, by the method's score; by default for its current weights."""
        return self.rate(self.score, layer, layer.weight if weight is None else weight)

    def rate(self, score: Score, layer: Layer, weight: Tensor) -> Tensor:
        """Any score of a matrix of this layer, with the gradient if there is one."""
        return rules.rate(score, layer, weight, self.steps * sum(each.size for each in self.layers))

    # -- the life cycle

    def step(self) -> None:
        """Count an optimizer step, and update the masks if an update is due. Call it after ``optimizer.step()``."""
        if not self._stepped:  # nothing was optimized: a gradient scaler skipped the step, or this is a second call
            return
        self._stepped = False
        self.steps += 1
        if self.due(self.steps):
            self.apply()
        self._ask()

    @torch.no_grad()
    def apply(self) -> None:
        """Update all masks now, one weight at a time, so that only one dense gradient is in memory."""
        for weight in self.gradients.weights:
            layers = [layer for layer in self.layers if layer.source is weight]
            grad = self.gradients.of(weight.parameter) if self.needs_gradient else None
            new: list[Tensor | None] = []
            for layer in layers:
                layer.grad = None if grad is None else layer.matrix(grad)
                new.append(self.update(layer) if grad is not None or not self.needs_gradient else None)
                layer.grad = None
            self.history.record(self.steps, layers, new)
            self._set(layers, new, self.moments)

    def _share_out(self, sparsity: float | None) -> float:
        """Give each layer its budget and its pattern; the sparsity of all."""
        return share_out(self.layers, self.pattern, sparsity, self.budgets)

    @torch.no_grad()
    def _sow(self) -> None:
        """Draw the first masks, and make the weights sparse."""
        first = [self.first_mask(layer) for layer in self.layers]
        for weight in masks.sow(self.layers, first, self.init, self.rng, self._format_of):
            self._settle(weight)

    def _set(self, layers: Sequence[Layer], new: Sequence[Tensor | None], moments: str = "zero") -> None:
        """Give the weights their new masks, and the optimizer state with them."""
        for weight, grown in masks.change(layers, new):
            self._settle(weight, grown if moments == "mean" else None)

    def _settle(self, weight: Weight, grown: Tensor | None = None) -> None:
        """Let the optimizer state have the mask of its weight."""
        settle(self.optimizer, weight, grown)

    def _format_of(self, parameter: Tensor) -> Format:
        """The format of a weight: what was asked for, for matrices."""
        if is_sharded(parameter) and self.format not in (None, Masked()):
            raise NotImplementedError(f"a weight that FSDP has sharded stays Masked: leave out format={self.format}")
        return Masked() if self.format is None or parameter.dim() != 2 else self.format

    def _ask(self) -> None:
        """Ask for the dense gradients of the next step if the next update needs them."""
        ahead = range(1, self.gradient_steps + 1)
        self.gradients.ask(self.needs_gradient and any(self.due(self.steps + steps) for steps in ahead))

    @torch.no_grad()
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not checks.has_closure(args, kwargs):
            self.gradients.take()

    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepped = True
        if checks.has_closure(args, kwargs) and self.gradients.take():  # which computed the gradient inside the step
            for weight in self.gradients.weights:
                self._settle(weight)
        for weight in self.gradients.sharded():
            clear(weight.parameter, weight.parameter)

    # -- what a user asks

    def log(self, writer: Any = None) -> dict[str, Any]:
        """Return the density, churn, ablated neurons and exploration, in total and for each layer.

        Parameters
        ----------
        writer
            A TensorBoard ``SummaryWriter``, or any object with ``add_scalar(name, value, step)``; it gets the same
            figures.
        """
        figures = self.history.figures(self.layers)
        out = {"method": type(self).__name__, "step": self.steps, **figures}
        if writer is not None:
            self.history.write(writer, out)
        return out

    def curves(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return density, churn, ablation and exploration for every update, as lists that can be plotted.

        ``{"density" | "churn" | "ablated" | "explored": {layer: {"step": [...], "value": [...]}}}``; all values are
        shares, from 0 to 1: of the layer's weights, of its kept weights, of its neurons, of its positions.
        """
        return self.history.curves(self.layers)

    def state_dict(self) -> dict[str, Any]:
        """Steps, masks, random numbers, history and the method's own state; not the weights, nor the optimizer's."""
        return {
            "steps": self.steps,
            "pattern": repr(self.pattern),
            "rng": self.rng.get_state(),
            "budgets": {layer.name: layer.budget for layer in self.layers},
            "masks": {layer.name: layer.mask.clone() for layer in self.layers},
            "extra": {layer.name: copied(layer.extra) for layer in self.layers},
            "gradients": self.gradients.state_dict(),
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; load the model's and the optimizer's first."""
        checks.same_layers(self.layers, self.pattern, state)
        self.steps = state["steps"]
        self.rng.set_state(state["rng"])
        for layer in self.layers:
            layer.budget = state["budgets"][layer.name]
            layer.extra = copied(state["extra"][layer.name])
            layer.grad = None
        with torch.no_grad():
            self._set(self.layers, [state["masks"][layer.name].to(layer.parameter.device) for layer in self.layers])
        self.history.load_state_dict(state["history"])
        self._stepped = False
        self._ask()
        self.gradients.load_state_dict(state.get("gradients", {}))

    def close(self) -> None:
        """Detach from the optimizer. The masks remain, and the model can be trained further like any sparse model."""
        for hook in self._hooks:
            hook.remove()
        self.gradients.ask(False)

    def __repr__(self) -> str:
        sparsity = 1 - sum(layer.kept for layer in self.layers) / max(sum(layer.size for layer in self.layers), 1)
        return f"{type(self).__name__}({len(self.layers)} layers, step {self.steps:,}, sparsity {sparsity:.2%})"
