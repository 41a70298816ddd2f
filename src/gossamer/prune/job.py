"""One pruning run: a plan, executed block by block."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import lcm
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.formats import Format, Masked
from gossamer.methods import Layer
from gossamer.models.gated import gates_and_ups
from gossamer.models.surgery import made_sparse
from gossamer.progress import progress
from gossamer.prune.calibration import Loss, add_gradients, run, samples
from gossamer.prune.checkpoint import Checkpoint
from gossamer.prune.gram import Gram
from gossamer.prune.methods import ByScore, Known, Pruned
from gossamer.prune.plan import Plan
from gossamer.prune.repair import follow, least_squares
from gossamer.prune.report import LayerReport, Report, merged
from gossamer.prune.walk import Walk
from gossamer.scores import Collector

Metric = Callable[[nn.Module], float]
log = logging.getLogger("gossamer.prune")

MEMORY = 8e9
_GRAMS = 4  # X X^T of one layer and its factors, with what they are computed from


class _New(NamedTuple):
    """The weights of a block after pruning, by parameter: values, masks, and the values where blocks compute."""

    values: dict[str, Tensor]
    masks: dict[str, Tensor]
    there: dict[str, Tensor]


@dataclass
class Job:
    """One run: the plan, and its progress."""

    model: nn.Module
    plan: Plan
    refine: int = 0
    loss: Loss | None = None
    call: Callable[[nn.Module, Any], Any] = run
    device: torch.device | None = None
    offload: bool = False
    memory: float = MEMORY
    rows: dict[str, LayerReport] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    """What stayed of each parameter, by name."""
    gathered: dict[str, Collector] = field(default_factory=dict)
    given: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.method, self.layers = self.plan.method, {layer.name: layer for layer in self.plan.patterns}
        self.gradients = bool({"grad", "grads"} & set(self.method.needs))
        sizes = [layer.size for layer in self.plan.patterns]
        self.offsets = {name: sum(sizes[:i]) for i, name in enumerate(self.layers)}
        self.pairs = {id(layer): number for number, pair in enumerate(gates_and_ups(self.model)) for layer in pair}
        if self.refine and getattr(self.method, "bits", None):
            raise ValueError("refine= would move weights off the grid that bits= has rounded them to: use one of them")

    def run(
        self,
        batches: list[Any],
        *,
        format: Format,
        checkpoint: str | os.PathLike[str] | None = None,
        show_progress: bool | None = None,
    ) -> Report:
        """Run it; `batches` have been checked."""
        started = time.perf_counter()
        self.batches, self.format = batches, format
        self.parts = list(samples(batches, self.method.per_sample)) if self.gradients else []
        self._check_memory()
        self.store = None if checkpoint is None else Checkpoint(checkpoint, self._task(), self.layers)
        with _evaluating(self.model), progress("pruning", len(self.layers), show_progress) as tell:
            self._mask_stored()
            self._rank_together()
            for name, error, steps in self._work():
                tell(name, error, steps)
        made_sparse(self.model)
        rows = merged([(self.layers[name], self.rows[name]) for name in self.layers])
        return Report(self.method.name, rows, seconds=time.perf_counter() - started, left=self.plan.left)

    def _mask_stored(self) -> None:
        """Let weights that are stored be dense with a mask: calibration runs with dense weights."""
        for layer in self.layers.values():
            held = layer.source.held
            if held is not None and held.is_stored:
                layer.source.become(layer.dense(), layer.source.mask(), Masked())

    def _task(self) -> dict[str, Any]:
        """What a checkpoint has to be about."""
        patterns = {layer.name: repr(pattern) for layer, pattern in self.plan.patterns.items()}
        return {"method": repr(self.method), "patterns": patterns, "refine": self.refine, "batches": len(self.batches)}

    def _done(self, name: str) -> bool:
        return self.store is not None and name in self.store.done

    def _work(self) -> Iterator[tuple[str, float | None, int]]:
        """Prune block after block; yields each layer's name and error."""
        if not self.batches:
            yield from self._unreached(list(self.layers))
            return
        align = lcm(8, *(p.period or p.unit[1] for p in self.plan.patterns.values()))
        limit, follows = self.memory / _GRAMS, self.method.follows
        walk = Walk(self.model, self.batches, self.call, self.device, self.offload, limit, align, follows)
        parts = {block: [n for n in self.layers if _inside(n, block)] for block in walk.blocks}
        lost = [n for n in self.layers if not any(n in names for names in parts.values())]
        last = max((i for i, b in enumerate(walk.blocks) if parts[b]), default=-1)
        for number, block in enumerate(walk.blocks[: last + 1]):
            names = parts[block]
            yield block, None, 0
            here = [self.layers[n] for n in names]
            dense = {name: self._there(value) for name, value in self._dense(here).items()}
            self._gather([n for b in walk.blocks[number:] for n in parts[b] if not self._done(n)])
            new = _New({}, {}, dict(dense))
            for stage in walk.stages(block, dense, here) if follows else [here]:
                watched = [layer for layer in stage if not self._done(layer.name)]
                grams = walk.inputs(block, new.there, watched, dense) if watched else {}
                yield from self._stage(stage, grams, new)
            if number < last:
                walk.advance(block, new.there, dense)
            self._write(names, new)
        if lost:
            yield from self._unreached(lost)

    def _dense(self, layers: list[Layer]) -> dict[str, Tensor]:
        """The weights of layers before pruning, by parameter; of what an earlier run has done, from its folder."""
        found = {layer.parameter_name: layer.dense() for layer in layers}
        done = [layer for layer in layers if self._done(layer.name)]
        found |= {layer.parameter_name: layer.dense().clone() for layer in done}
        for layer in done:
            assert self.store is not None
            layer.put(found[layer.parameter_name], self.store.dense(layer.name, layer).to(layer.dense()))
        return found

    def _unreached(self, names: list[str]) -> Iterator[tuple[str, float | None, int]]:
        """Prune layers of which no calibration data say anything."""
        new = _New({}, {}, {})
        yield from self._stage([self.layers[n] for n in names], {}, new)
        self._write(names, new)

    def _stage(self, layers: list[Layer], grams: dict[str, Gram], new: _New) -> Iterator[tuple[str, float | None, int]]:
        """Prune layers that don't depend on each other; `new` takes their weights. The model is not changed."""
        for team in self._teams(layers, grams):
            for layer, (weight, mask, row) in zip(team, self._pruned(team, grams.get(team[0].name)), strict=True):
                name, owner = layer.name, layer.parameter_name
                self.rows[name] = row
                if owner not in new.values:
                    new.values[owner] = layer.dense().clone()
                    new.masks[owner] = torch.ones_like(new.values[owner], dtype=torch.bool)
                layer.put(new.values[owner], weight.to(new.values[owner]))
                layer.put(new.masks[owner], mask.to(new.masks[owner].device))
                self.gathered.pop(name, None)
                yield name, row.error, 1
        new.there.update({x.parameter_name: self._there(new.values[x.parameter_name]) for x in layers})

    def _teams(self, layers: list[Layer], grams: dict[str, Gram]) -> list[list[Layer]]:
        """Layers that are pruned as one matrix: those with the same input, if all rows of a matrix share columns."""
        teams: dict[Any, list[Layer]] = {}
        for layer in layers:
            pattern, gram = self.plan.patterns[layer], grams.get(layer.name)
            key: Any = layer.name
            if pattern.shares_columns and not self.gradients:
                same = self.pairs.get(id(layer.source.module), key) if gram is None else id(gram)
                key = same, pattern, layer.inputs, self._done(layer.name)
            teams.setdefault(key, []).append(layer)
        return list(teams.values())

    def _pruned(self, team: list[Layer], gram: Gram | None) -> list[tuple[Tensor, Tensor, LayerReport]]:
        """The weights, masks and reports of a team, from the folder of an earlier run if they are there."""
        if self.store is not None and self._done(team[0].name):
            return [self.store.load(layer.name, layer) for layer in team]
        found = self._together(team, gram)
        for layer, (weight, mask, row) in zip(team, found, strict=True):
            if self.store is not None:
                self.store.save(layer.name, weight, mask, layer.matrix(layer.dense()), row)
            log.info("%s", row)
        return found

    def _write(self, names: list[str], new: _New) -> None:
        """Give the model the new weights of a block."""
        sources = {self.layers[n].parameter_name: self.layers[n].source for n in names}
        for owner, value in new.values.items():
            sources[owner].become(value, new.masks[owner], self.format)
        self.masks |= new.masks

    @torch.no_grad()
    def _together(self, team: list[Layer], gram: Gram | None) -> list[tuple[Tensor, Tensor, LayerReport]]:
        """Layers pruned as one matrix, most often one layer: weights and masks as matrices, and reports."""
        started = time.perf_counter()
        first, dense = team[0], [layer.matrix(layer.dense()) for layer in team]
        old = torch.cat([self._there(one) for one in dense]) if len(team) > 1 else self._there(dense[0])
        old = old if old.dtype == torch.float64 else old.float()
        if gram is not None and gram.moved:
            old = follow(old, gram)
        if first.name in self.given:
            mask = self.given[first.name].to(old.device)
            out = Pruned(old * mask, mask)
        else:
            known = Known(gram, self.gathered.get(first.name), self.offsets[first.name])
            out = self.method.prune(old, self.plan.patterns[first], known)
        new = out.weight
        if gram is not None and self.refine:
            new = least_squares(old, new, out.mask, gram, self.refine)
        if not bool(new.isfinite().all()):
            raise FloatingPointError(
                f"pruning {first.name!r} by {self.method!r} gave NaN or infinity, so it was not changed. "
                "Try more damping, e.g. gs.prune.SparseGPT(damp=0.1)."
            )
        notes = out.notes + ((gram.note,) if gram is not None and gram.note and gram.note not in out.notes else ())
        seconds = (time.perf_counter() - started) / len(team)
        rows = [layer.outputs for layer in team]
        parts = zip(team, dense, old.split(rows), new.split(rows), out.mask.split(rows), strict=True)
        return [
            (made.to(was.dtype), mask, self._report(layer, before, made, mask, gram, seconds, notes))
            for layer, was, before, made, mask in parts
        ]

    def _report(
        self, layer: Layer, old: Tensor, new: Tensor, mask: Tensor, gram: Gram | None, seconds: float,
        notes: tuple[str, ...],
    ) -> LayerReport:  # fmt: skip
        """What pruning has done to a layer."""
        error = None
        if gram is not None:
            before = gram.error(old)
            error = gram.error(new - old) / before if before > 0 else 0.0
        energy = float((old * mask).double().square().sum() / old.double().square().sum().clamp(min=1e-300))
        density, shape = float(mask.sum()) / max(mask.numel(), 1), (layer.outputs, layer.inputs)
        pattern = str(self.plan.patterns[layer])
        return LayerReport(layer.name, shape, pattern, 1 - density, energy, error, seconds, notes)

    def _gather(self, ahead: list[str]) -> None:
        """See that the next layer has its gradients, and as many more from the same pass as memory allows."""
        if not self.gradients or not ahead or ahead[0] in self.gathered:
            return
        taken: dict[str, Collector] = {}
        for name in ahead:
            collector = self._collector(self.layers[name], self.layers[name].parameter.device)
            if taken and sum(c.nbytes for c in taken.values()) + collector.nbytes > self.memory:
                break
            taken[name] = collector
        collectors = {self.layers[name]: collector for name, collector in taken.items()}
        probe = "grads" in self.method.needs
        add_gradients(self.model, self.call, self.parts, self.loss, collectors, probe)
        self.gathered.update(taken)

    def _collector(self, layer: Layer, device: torch.device | str) -> Collector:
        pattern, count = self.plan.patterns[layer], len(self.parts)
        found = self.method.collector(pattern, layer.outputs, layer.inputs, count, device)
        assert found is not None
        return found

    def _check_memory(self) -> None:
        """Refuse before anything starts what one layer alone can't have."""
        for layer in self.plan.patterns if self.gradients else ():
            need = self._collector(layer, "meta")
            if need.nbytes > self.memory:
                raise ValueError(
                    f"{self.method!r} takes {need.nbytes / 1e9:.1f} GB for {layer.name!r} of shape "
                    f"{(layer.outputs, layer.inputs)}, and memory={self.memory / 1e9:g}e9 is the limit: pass more, a "
                    "smaller block=, or another method"
                )

    def _rank_together(self) -> None:
        """Masks of the layers that are ranked together, by their scores in the dense model."""
        joint = self.plan.joint
        if not joint or not isinstance(self.method, ByScore):
            return
        while self.gradients and (ahead := [layer.name for layer in joint if layer.name not in self.gathered]):
            self._gather(ahead)
        scores = []
        for layer in joint:
            known = Known(None, self.gathered.get(layer.name), self.offsets[layer.name])
            found = self.method.scores(layer.matrix(layer.dense()), known)
            if found is None:
                raise ValueError(f"no gradient reached {layer.name!r}, so it can't be ranked together with the others")
            scores.append(found)
        masks = self.plan.patterns[joint[0]].select_many(scores)
        self.given = {layer.name: mask for layer, mask in zip(joint, masks, strict=True)}

    def _there(self, tensor: Tensor) -> Tensor:
        """A tensor where blocks compute."""
        return tensor if self.device is None else tensor.to(self.device)


def _inside(name: str, block: str) -> bool:
    return not block or name.startswith(f"{block}.")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and products that can be seen; every module back to what it was whatever happens."""
    before = [(module, module.training) for module in model.modules()]
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    experts = [(c, c._experts_implementation) for c in configs.values() if hasattr(c, "_experts_implementation")]
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused kernel hides the products of its weights ...
    for config, _ in experts:
        config._experts_implementation = "eager"  # ... and so do those of transformers' experts
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for config, implementation in experts:
            config._experts_implementation = implementation
        for module, mode in before:
            module.training = mode
