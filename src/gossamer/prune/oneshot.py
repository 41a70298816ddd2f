"""Pruning a trained model in one go, layer after layer, with a few batches of typical inputs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import Format, Masked, as_format
from gossamer.nn.names import Where, by_layer, chosen
from gossamer.nn.surgery import replace
from gossamer.ops.sparsify import apply_mask
from gossamer.patterns import Pattern, Unstructured, as_pattern
from gossamer.prune.calibration import Loss, add_gradients, gather, run, samples
from gossamer.prune.checkpoint import Checkpoint
from gossamer.prune.curvature import Gram
from gossamer.prune.fisher import BlockFisher
from gossamer.prune.layers import Layer, prunable
from gossamer.prune.methods import OBS, Known, Magnitude, Method, Pruned, as_method
from gossamer.prune.progress import progress
from gossamer.prune.repair import least_squares
from gossamer.prune.report import LayerReport, Report
from gossamer.prune.walk import Walk
from gossamer.scores import Magnitude as MagnitudeScore
from gossamer.sparsifiers import Sparsifier

How = Pattern | Sparsifier | str | None
Metric = Callable[[nn.Module], float]
log = logging.getLogger("gossamer.prune")


def oneshot(
    model: nn.Module,
    how: How | Mapping[str, How],
    calibration: Iterable[Any] | None = None,
    method: str | Method = "sparsegpt",
    *,
    where: Where = None,
    format: Format | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    refine: int = 0,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    device: torch.device | str | None = None,
    offload: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    show_progress: bool | None = None,
) -> Report:
    """Prune a trained model in place, without training: calibrated, layer after layer.

    The model is walked block by block. The inputs of a block come from the blocks before it, already pruned, so later
    layers make up for earlier ones. Linear layers, convolutions, ``nn.MultiheadAttention`` and transformers' Conv1D
    are taken; everything else, and every layer not asked for, stays bit for bit as it was.

    Parameters
    ----------
    model
        Any module. Its weights end as sparse tensors; their identity as parameters stays.
    how
        A pattern (``gs.NM(2, 4)``), its short form (``"2:4"``), or ``{glob of names: pattern or None}``, first fit wins.
    calibration
        Batches of typical inputs: each a tensor, a tuple of arguments or a dict of keyword arguments, on the model's
        device. A few hundred samples are plenty. "magnitude" needs none.
    method
        "magnitude", "wanda", "sparsegpt", "obs", or one of :class:`Magnitude`, :class:`Wanda`, :class:`SparseGPT`,
        :class:`OBS` with settings, or a :class:`Method` of your own.
    where
        Names to take: a glob, several, or a predicate of the name; all by default.
    format
        ``gs.Masked()`` by default; ``gs.pack_`` makes it fast.
    loss
        ``loss(output, batch)``, for ``OBS("fisher")`` only. By default the output's own ``.loss``, and where there is
        none the distance to the dense model's outputs.
    metric
        ``metric(model)``, taken before and after for the report.
    refine
        Steps of layer-wise least squares on the calibration inputs after pruning (about 10 are enough; 0: none).
    forward
        ``forward(model, batch)`` where a batch isn't simply the model's arguments, e.g. ``lambda m, b: m(b[0])``.
    device
        Where to compute; one block at a time is brought there, so the model may be larger than that device.
    offload
        Keep activations between blocks on the CPU (always so with `device`).
    checkpoint
        A folder for finished layers. Stop at any time; the same call goes on from there.
    show_progress
        None: if standard error is a terminal.

    Returns
    -------
    Report
        Per layer: sparsity, kept energy, error on the calibration inputs; print it or ``.save("report.json")``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> batches = [torch.randn(64, 16) for _ in range(4)]
    >>> report = gs.prune.oneshot(model, gs.NM(2, 4), batches, method="sparsegpt")
    >>> report.sparsity, model[0].weight.sparsity
    (0.5, 0.5)
    """
    started = time.perf_counter()
    chosen_method = as_method(method)
    job = _Job(model, chosen_method, _plan(model, how, where), refine, loss, forward or run)
    job.batches = gather(calibration, model, None if chosen_method.needs == "nothing" else chosen_method.name)
    format = Masked() if format is None else as_format(format)
    store = None if checkpoint is None else Checkpoint(checkpoint, job.task(), job.layers)
    before = None if metric is None else float(metric(model))
    with _evaluating(model), progress("pruning", len(job.layers), show_progress) as tell:
        place = None if device is None else torch.device(device)
        for name, loss_, steps in job.work(place, offload, store, format):
            tell(name, loss_, steps)
    after = None if metric is None else float(metric(model))
    rows = tuple(job.rows[name] for name in job.layers)
    return Report(chosen_method.name, rows, before, after, time.perf_counter() - started, tuple(job.notes))


def _plan(model: nn.Module, how: How | Mapping[str, How], where: Where) -> dict[Layer, Pattern]:
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
class _Job:
    """One run: what to do, and what has been done."""

    model: nn.Module
    method: Method
    plan: dict[Layer, Pattern]
    refine: int
    loss: Loss | None
    call: Callable[[nn.Module, Any], Any]
    batches: list[Any] = field(default_factory=list)
    rows: dict[str, LayerReport] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fishers: dict[str, BlockFisher] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)

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
            self.masks = {x.name: mask for x, mask in zip(joint, masks, strict=True)}

    def task(self) -> dict[str, Any]:
        """What a checkpoint has to be about."""
        patterns = {layer.name: repr(pattern) for layer, pattern in self.plan.items()}
        return {"method": repr(self.method), "patterns": patterns, "refine": self.refine, "batches": len(self.batches)}

    def work(
        self, device: torch.device | None, offload: bool, store: Checkpoint | None, format: Format
    ) -> Iterator[tuple[str, float | None, int]]:
        """Prune block after block; yields each layer's name and error."""
        if not self.batches:
            for name in self.layers:
                yield self._block([name], {}, device, store, format)[0]
            return
        walk = Walk(self.model, self.batches, self.call, device, offload)
        parts = {block: [n for n in self.layers if _inside(n, block)] for block in walk.blocks}
        lost = [n for n in self.layers if not any(n in names for names in parts.values())]
        last = max((i for i, b in enumerate(walk.blocks) if parts[b]), default=-1)
        for number, block in enumerate(walk.blocks[: last + 1]):
            names = parts[block]
            yield block, None, 0
            done = [n for n in names if store is not None and n in store.done]
            weights = {n: _to(self.layers[n].dense(), device) for n in names}
            watched = {n: w for n, w in weights.items() if n not in done and self.layers[n].calibrated}
            grams = walk.inputs(block, weights, watched) if watched else {}
            self._gradients([n for b in walk.blocks[number:] for n in parts[b]], store)
            yield from self._block(names, grams, device, store, format, weights)
            if number < last:
                walk.advance(block, weights)
        if lost:
            yield from self._block(lost, {}, device, store, format)

    def _block(
        self,
        names: list[str],
        grams: dict[str, Gram],
        device: torch.device | None,
        store: Checkpoint | None,
        format: Format,
        weights: dict[str, Tensor] | None = None,
    ) -> list[tuple[str, float | None, int]]:
        """Prune the layers of a block; `weights` is left with the new ones. The model changes at the very end."""
        made, told = {}, []
        for name in names:
            layer = self.layers[name]
            if store is not None and name in store.done:
                weight, mask, self.rows[name] = store.load(name, layer)
            else:
                weight, mask, self.rows[name] = self._layer(layer, grams.get(name), device)
                if store is not None:
                    store.save(name, weight, mask, self.rows[name])
                log.info("%s", self.rows[name])
            home = layer.parameter.device
            made[name] = (weight.to(home), mask.to(home))
            if weights is not None:
                weights[name] = _to(weight, device)
            self.fishers.pop(name, None)
            told.append((name, self.rows[name].error, 1))
        for name, (weight, mask) in made.items():
            replace(self.layers[name].parameter, apply_mask(weight, mask, format))
        return told

    @torch.no_grad()
    def _layer(self, layer: Layer, gram: Gram | None, device: torch.device | None) -> tuple[Tensor, Tensor, LayerReport]:
        started = time.perf_counter()
        dense = layer.dense()
        old = _to(layer.matrix(dense), device)
        old = (old if old.dtype == torch.float64 else old.float()).contiguous()
        pattern = self.plan[layer]
        if layer.name in self.masks:
            mask = self.masks[layer.name].to(old.device)
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
                f"pruning {layer.name!r} by {self.method!r} gave NaN or infinity; nothing was changed. More damping helps."
            )
        energy = float((old * mask).double().square().sum() / old.double().square().sum().clamp(min=1e-300))
        density = float(mask.sum()) / max(mask.numel(), 1)
        seconds = time.perf_counter() - started
        row = LayerReport(layer.name, layer.shape, str(pattern), 1 - density, energy, error, seconds, out.notes)
        return layer.unmatrix(new.to(dense.dtype)), layer.unmatrix(mask), row

    def _gradients(self, ahead: list[str], store: Checkpoint | None) -> None:
        """See that the next layer has its Fisher matrix; as many more are gathered in the same pass as memory allows."""
        method = self.method
        ahead = [n for n in ahead if store is None or n not in store.done]
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


def _inside(name: str, block: str) -> bool:
    return not block or name.startswith(f"{block}.")


def _to(tensor: Tensor, device: torch.device | None) -> Tensor:
    return tensor if device is None else tensor.to(device)
