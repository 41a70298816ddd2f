"""STE: any pattern, learned by the straight-through estimator. SR-STE (Zhou et al. 2021): with decay outside the
mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.choosing import Chooser
from gossamer.models.home import GRAD
from gossamer.models.modules import dense_class
from gossamer.patterns import NM, Pattern, TransposableNM, Unstructured
from gossamer.schedules import Schedule, as_schedule, at_step
from gossamer.scores import Magnitude, Score, as_score
from gossamer.sparsifiers import Sparsifier, as_sparsifier
from gossamer.train import checks
from gossamer.train.layers import Layer
from gossamer.train.masters import Master, choose
from gossamer.train.rules import DIVERGED
from gossamer.train.shards import is_sharded
from gossamer.train.straight import Straight
from gossamer.train.two_ways import SparseForward


class STE(Straight):
    """Compute with the sparse weights, and update all weights with the gradient of the sparse ones.

    Parameters
    ----------
    model, optimizer, options
        See :class:`gossamer.train.Method`.
    sparsity
        Of each layer; or any pattern, its short form, or a sparsifier with a score of the weights: 0.9, "2:4",
        "64:2:8". Or pass ``pattern=`` and ``score=``. The default is 2:4.
    schedule
        Reach the pattern gradually, from dense at ``start`` to ``until``: "decay", "cubic", "linear" or a function.
        None: immediately.
    until
        From this step on, masks are fixed; None: they follow the weights until the end.
    transposable
        Masks are 2:4 in rows and in columns (``gs.TransposableNM``), so that the transpose is 2:4 too.
    compute
        "masked": dense products with the masked weights. "sparse": linear layers compute outputs and gradients of
        inputs with the kernels for packed 2:4; needs ``transposable=True``. On a CPU this is correct, but not faster.
    refresh
        Steps between two selections of the masks. Default: 1, as in the paper; 40 for ``compute="sparse"``, where a
        selection costs more than a step gains.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.STE(model, optimizer, "2:4")
    >>> model(torch.randn(4, 16)).square().sum().backward(); optimizer.step(); method.step()
    >>> model.weight.sparsity, model.weight.mask().view(-1, 4).sum(1).unique()
    (0.5, tensor([2]))
    """

    dynamic = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | Sparsifier | None = None,
        *,
        pattern: Pattern | str | None = None,
        score: Score | str | None = None,
        schedule: str | Schedule | None = None,
        transposable: bool = False,
        compute: str = "masked",
        refresh: int | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        self.how = _sparsifier(name, sparsity, pattern, score)
        if transposable:
            self.how = _transposable(name, self.how)
        self.schedule = None if schedule is None else as_schedule(schedule)
        if schedule is not None and options.get("until") is None:
            raise ValueError(f"{name}: give until=..., the step at which the schedule ends")
        _check_compute(name, compute, refresh, self.how.pattern, schedule)
        self.refresh = refresh or (40 if compute == "sparse" else 1)
        self._products: dict[int, SparseForward] = {}
        self._chooser: Chooser | None = None
        super().__init__(model, optimizer, 0.0, **{"init": None, "distribution": "uniform", **options})
        self.pattern = self.how.pattern
        if compute == "sparse":
            self._products = _products(name, self.layers)

    @property
    def fixed(self) -> bool:
        """Are masks fixed in the current step?"""
        return super().fixed or (self.steps + 1) % self.refresh != 0

    def close(self) -> None:
        """Detach from the optimizer; layers compute like any masked layers."""
        super().close()
        for product in self._products.values():
            product.close()

    def _set(self, layers: Sequence[Layer], new: Sequence[Tensor | None], moments: str = "zero") -> None:
        super()._set(layers, new, moments)
        for product in self._products.values():
            product.packed = None

    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        super()._after_step(optimizer, args, kwargs)
        for master in self._opened:
            if id(master.weight) in self._products:
                self._products[id(master.weight)].follow(chosen=not self.fixed)

    def choose(self, layer: Layer) -> Tensor:
        """The mask of the sparsifier; for a gradual one, of this step's less strict pattern."""
        pattern = self._pattern_now()
        scores = self.rate(self.how.score, layer, layer.extra["dense"])
        if isinstance(self.how.score, Magnitude) and scores.dtype in (torch.float32, torch.float64):
            return pattern.pick(scores)  # which doesn't look for NaN again: that would wait for the GPU, layer by layer
        return pattern.select(scores)

    def choose_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """n:m, V:N:M or a sparsity on a GPU, for the whole model in few launches. NaN is noticed in the next step."""
        pattern = self._pattern_now()
        if self._chooser is None or self._chooser.pattern != pattern:
            self._chooser = Chooser.of(pattern, self._chooser) if isinstance(self.how.score, Magnitude) else None
        if self._chooser is None:
            return masters
        if self._chooser.found_nan():
            raise ValueError(DIVERGED)
        return choose(masters, self._chooser)

    def _pattern_now(self) -> Pattern:
        """The pattern of this step."""
        return self.how.pattern if self.schedule is None else self.how.pattern.towards(self._done(self.schedule))

    def _done(self, schedule: Schedule) -> float:
        """The share of the way that is done after the step under way."""
        since, steps = self.steps + 1 - self.start, (self.until or 0) - self.start
        return min(max(at_step(schedule, since, steps, 0.0, 1.0), 0.0), 1.0) if since >= 0 else 0.0


def _transposable(method: str, how: Sparsifier) -> Sparsifier:
    """The same, 2:4 in rows and in columns."""
    pattern = how.pattern
    if isinstance(pattern, NM) and pattern.m == 4:
        return Sparsifier(TransposableNM(pattern.n, pattern.m), how.score)
    if isinstance(pattern, TransposableNM):
        return how
    raise ValueError(f"{method}: transposable=True needs n of every 4, such as '2:4', not {pattern}")


def _check_compute(method: str, compute: str, refresh: int | None, pattern: Pattern, schedule: Any) -> None:
    if compute not in ("masked", "sparse"):
        raise ValueError(f"{method}: compute={compute!r} must be 'masked' or 'sparse'")
    if refresh is not None:
        checks.refresh(method, refresh)
    if compute == "sparse" and (pattern != TransposableNM(2, 4) or schedule is not None):
        raise ValueError(
            f"{method}: compute='sparse' needs '2:4' with transposable=True, from the first step on (no schedule): "
            "the gradient of the input is a product with the transpose"
        )


def _products(method: str, layers: Sequence[Layer]) -> dict[int, SparseForward]:
    """Let linear layers compute by sparse kernels; other layers stay masked."""
    found: dict[int, SparseForward] = {}
    for layer in layers:
        if is_sharded(layer.parameter):
            raise NotImplementedError(f"{method}: {layer.name} is sharded by FSDP: use compute='masked' for it")
        owners = [module for module, _ in layer.source.places]
        if len(owners) == 1 and dense_class(owners[0]) is nn.Linear:
            found[id(layer.source)] = SparseForward(owners[0])
    if not found:
        raise ValueError(f"{method}: compute='sparse' is for nn.Linear, and none of the layers is one")
    return found


def _sparsifier(
    method: str,
    sparsity: float | str | Pattern | Sparsifier | None,
    pattern: Pattern | str | None,
    score: Score | str | None,
) -> Sparsifier:
    """One sparsifier from a sparsity, a pattern or a sparsifier, and a score."""
    if sparsity is not None and pattern is not None:
        raise ValueError(f"{method}: give one pattern, not {sparsity} and {pattern}")
    if isinstance(sparsity, float | int):
        sparsity = Unstructured(sparsity)
    found = as_sparsifier("2:4" if sparsity is None and pattern is None else sparsity or pattern)  # type: ignore[arg-type]
    if score is not None:
        found = Sparsifier(found.pattern, as_score(score))
    if found.score.needs:
        raise ValueError(f"{method}: choose by a score of the weights alone, not {found.score}")
    return found


class SRSTE(STE):
    """STE that pulls the weights outside the mask towards zero, so that masks become stable (sparse-refined STE).

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`STE`.
    decay_out
        Strength of the pull; 2e-4 in the paper.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> gs.train.SRSTE(model, torch.optim.SGD(model.parameters(), lr=0.1), "2:4")
    SRSTE(1 layers, step 0, sparsity 50.00%)

    On sparse tensor cores:

    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.SRSTE(model, optimizer, "2:4", transposable=True, compute="sparse")

    Gradual V:N:M, with a fixed mask for the last quarter of 1,000 steps:

    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.SRSTE(model, optimizer, "all:2:8", schedule="decay", until=750)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | Sparsifier | None = None,
        *,
        decay_out: float = 2e-4,
        **options: Any,
    ) -> None:
        self.decay_out = decay_out
        super().__init__(model, optimizer, sparsity, **options)

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient, and the pull."""
        return torch.addcmul(grad, layer.extra["dense"], ~layer.mask, value=self.decay_out)

    def pull_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """The same, on a GPU in a few launches for the whole model."""
        taken = [master for master in masters if master.on_gpu and master.is_plain and master.owns_gradient]
        if taken:
            dense, parameters = [master.dense for master in taken], [master.parameter for master in taken]
            outside = torch._foreach_sub(dense, [parameter.detach() for parameter in parameters])
            torch._foreach_add_([GRAD.__get__(p) for p in parameters], outside, alpha=self.decay_out)
        return [master for master in masters if master not in taken]
