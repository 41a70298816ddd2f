"""The driver: a plan of layers and patterns, worked off block by block."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import Format, Masked
from gossamer.models.names import Where, by_layer, chosen
from gossamer.models.surgery import made_sparse
from gossamer.patterns import Pattern, Unstructured, as_pattern
from gossamer.progress import progress
from gossamer.prune.calibration import Loss, add_gradients, run, samples
from gossamer.prune.checkpoint import Checkpoint
from gossamer.prune.curvature import Gram
from gossamer.prune.fisher import BlockFisher
from gossamer.prune.layers import Layer, prunable
from gossamer.prune.methods import OBS, Known, Magnitude, Method, Pruned
from gossamer.prune.repair import least_squares
from gossamer.prune.report import LayerReport, Report
from gossamer.prune.walk import Walk
from gossamer.scores import Magnitude as MagnitudeScore
from gossamer.sparsifiers import Sparsifier

How = Pattern | Sparsifier | str | None
Metric = Callable[[nn.Module], float]
log = logging.getLogger("gossamer.prune")


def plan(model: nn.Module, how: How | Mapping[str, How], where: Where) -> dict[Layer, Pattern]:
    """Which layers get which pattern; everything that can be wrong with it is found here."""
    layers = prunable(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer whose weight can be pruned (linear or convolution)")
    names = chosen(layers, where)
    patterns: dict[str, Pattern | None] = {}
    if isinstance(how, Mapping):
        for glob, rule in how.items():
            for name in by_layer(glob, names):
                patterns.setdefault(name, None if rule is None else _pattern(rule))
    else:
        if how is None:
            raise ValueError("how=None leaves everything dense; give a pattern such as '50%' or gs.NM(2, 4)")
        patterns = dict.fromkeys(names, _pattern(how))
    plan = {layers[n]: p for n in names if (p := patterns.get(n)) is not None}
    if not plan:
        raise ValueError("nothing is left to prune: every layer is excluded by `how` or `where`")
    for layer, pattern in plan.items():
        pattern.sparsity_of(layer.matrix_shape)  # raises where it doesn't fit
        if not bool(layer.dense().isfinite().all()):
            raise ValueError(f"{layer.name!r} holds NaN or infinity: the model is broken before pruning")
    return plan


def _pattern(rule: Pattern | Sparsifier | str) -> Pattern:
    if isinstance(rule, Sparsifier):
        if rule.score != MagnitudeScore():
            raise ValueError(f"{rule!r}: here the method decides how values are scored; give the pattern alone")
        return rule.pattern
    return as_pattern(rule)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and every module back to what it was whatever happens."""
    before = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel hides what we want to see
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in before:
            module.training = mode


@dataclass
class Job:
    """One run: what to do, and what has been done."""

    model: nn.Module
    method: Method
    plan: dict[Layer, Pattern]
    refine: int = 0
    loss: Loss | None = None
    call: Callable[[nn.Module, Any], Any] = run
    device: torch.device | None = None
    offload: bool = False
    rows: dict[str, LayerReport] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    fishers: dict[str, BlockFisher] = field(default_factory=dict)
    given: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers = {layer.name: layer for layer in self.plan}
        joint = [x for x, p in self.plan.items() if isinstance(p, Unstructured) and p.per == "model"]
        if joint and not isinstance(self.method, Magnitude):
            raise ValueError(
                f'"per model" ranks all layers together, but {self.method.name!r} prunes one block after the other: '
                "use '50%' or '50% per row', or method='magnitude'"
            )
        if joint:
            pattern = self.plan[joint[0]]
            masks = pattern.select_many([x.matrix(x.dense()).abs() for x in joint])
            self.given = {x.name: mask for x, mask in zip(joint, masks, strict=True)}

    def run(
        self,
        batches: list[Any],
        *,
        format: Format,
        checkpoint: str | os.PathLike[str] | None = None,
        show_progress: bool | None = None,
    ) -> Report:
        """Do it; `batches` are checked ones."""
        started = time.perf_counter()
        self.batches = batches
        self.format = format
        self.store = None if checkpoint is None else Checkpoint(checkpoint, self._task(), self.layers)
        for layer in self.layers.values():
            held = layer.source.held
            if held is not None and held.is_stored:  # calibration runs with dense weights
                layer.source.become(layer.dense(), layer.source.mask(), Masked())
        with _evaluating(self.model), progress("pruning", len(self.layers), show_progress) as tell:
            for name, error, steps in self._work():
                tell(name, error, steps)
        made_sparse(self.model)
        rows = tuple(self.rows[name] for name in self.layers)
        return Report(self.method.name, rows, seconds=time.perf_counter() - started)

    def _task(self) -> dict[str, Any]:
        """What a checkpoint has to be about."""
        patterns = {layer.name: repr(pattern) for layer, pattern in self.plan.items()}
        return {"method": repr(self.method), "patterns": patterns, "refine": self.refine, "batches": len(self.batches)}

    def _done(self, name: str) -> bool:
        return self.store is not None and name in self.store.done

    def _work(self) -> Iterator[tuple[str, float | None, int]]:
        """Prune block after block; yields each layer's name and error."""
        if not self.batches:
            for name in self.layers:
                yield from self._block([name], {}, {})
            return
        walk = Walk(self.model, self.batches, self.call, self.device, self.offload)
        parts = {block: [n for n in self.layers if _inside(n, block)] for block in walk.blocks}
        lost = [n for n in self.layers if not any(n in names for names in parts.values())]
        last = max((i for i, b in enumerate(walk.blocks) if parts[b]), default=-1)
        for number, block in enumerate(walk.blocks[: last + 1]):
            names = parts[block]
            yield block, None, 0
            weights = {n: self._there(self.layers[n].dense()) for n in names}
            watched = {n: w for n, w in weights.items() if not self._done(n) and self.layers[n].calibrated}
            grams = walk.inputs(block, weights, watched) if watched else {}
            self._gradients([n for b in walk.blocks[number:] for n in parts[b] if not self._done(n)])
            yield from self._block(names, grams, weights)
            if number < last:
                walk.advance(block, weights)
        if lost:
            yield from self._block(lost, {}, {})

    def _block(
        self, names: list[str], grams: dict[str, Gram], weights: dict[str, Tensor]
    ) -> Iterator[tuple[str, float | None, int]]:
        """Prune the layers of a block; `weights` is left with the new ones. The model changes at the very end."""
        made = {}
        for name in names:
            layer = self.layers[name]
            if self.store is not None and name in self.store.done:
                weight, mask, self.rows[name] = self.store.load(name, layer)
            else:
                weight, mask, self.rows[name] = self._layer(layer, grams.get(name))
                if self.store is not None:
                    self.store.save(name, weight, mask, self.rows[name])
                log.info("%s", self.rows[name])
            home = layer.parameter.device
            made[name] = (weight.to(home), mask.to(home))
            weights[name] = self._there(weight)
            self.fishers.pop(name, None)
            yield name, self.rows[name].error, 1
        for name, (weight, mask) in made.items():
            self.layers[name].source.become(weight, mask, self.format)
            self.masks[name] = mask

    @torch.no_grad()
    def _layer(self, layer: Layer, gram: Gram | None) -> tuple[Tensor, Tensor, LayerReport]:
        started = time.perf_counter()
        dense = layer.dense()
        old = self._there(layer.matrix(dense))
        old = (old if old.dtype == torch.float64 else old.float()).contiguous()
        pattern = self.plan[layer]
        if layer.name in self.given:
            mask = self.given[layer.name].to(old.device)
            out = Pruned(old * mask, mask)
        else:
            out = self.method.prune(old, pattern, Known(gram, self.fishers.get(layer.name)))
        new, mask, error = out.weight, out.mask, None
        if gram is not None:
            groups = (gram.total.shape[0], -1, old.shape[1])
            if self.refine:
                new = least_squares(old.view(groups), new.view(groups), mask.view(groups), gram.total, self.refine)
                new = new.view(old.shape)
            whole = float(gram.error(old.view(groups)))
            error = float(gram.error((new - old).view(groups))) / whole if whole > 0 else 0.0
        if not bool(new.isfinite().all()):
            raise FloatingPointError(
                f"pruning {layer.name!r} by {self.method!r} gave NaN or infinity: it was left as it was. "
                "Try more damping, e.g. gs.prune.SparseGPT(damp=0.1)."
            )
        energy = float((old * mask).double().square().sum() / old.double().square().sum().clamp(min=1e-300))
        density = float(mask.sum()) / max(mask.numel(), 1)
        seconds = time.perf_counter() - started
        row = LayerReport(layer.name, layer.shape, str(pattern), 1 - density, energy, error, seconds, out.notes)
        return layer.unmatrix(new.to(dense.dtype)), layer.unmatrix(mask), row

    def _gradients(self, ahead: list[str]) -> None:
        """See that the next layer has its Fisher matrix, and as many more from the same pass as memory allows."""
        method = self.method
        if method.needs != "gradients" or not isinstance(method, OBS) or not ahead or ahead[0] in self.fishers:
            return
        parts = list(samples(self.batches, method.per_sample))
        taken: dict[str, BlockFisher] = {}
        for name in ahead:
            rows, columns = self.layers[name].matrix_shape
            block = method.block_for(self.plan[self.layers[name]], rows, columns)
            home = self.layers[name].parameter.device
            fisher = BlockFisher(rows, columns, count=len(parts), block=block, damp=method.damp, device=home)
            if taken and sum(f.nbytes for f in taken.values()) + fisher.nbytes > method.memory:
                break
            taken[name] = fisher
        add_gradients(self.model, self.call, parts, self.loss, {n: self.layers[n] for n in taken}, taken)
        self.fishers.update(taken)

    def _there(self, tensor: Tensor) -> Tensor:
        """A tensor where blocks compute."""
        return tensor if self.device is None else tensor.to(self.device)


def _inside(name: str, block: str) -> bool:
    return not block or name.startswith(f"{block}.")
