"""Pruning in stages, with training in between."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import Dense, Format, Masked, as_format
from gossamer.methods import Layer
from gossamer.methods.distill import Distill
from gossamer.models.names import Where
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import Weight
from gossamer.patterns import Pattern
from gossamer.progress import progress
from gossamer.prune.calibration import Loss, gather, run
from gossamer.prune.job import Job, Metric
from gossamer.prune.plan import By, How, plan
from gossamer.prune.report import Report
from gossamer.schedules import Schedule, as_schedule

TrainStep = Callable[[nn.Module, Distill], Any]


def gradual(
    model: nn.Module,
    how: How | Mapping[str, How],
    train_step: TrainStep,
    *,
    steps: int,
    stages: int = 4,
    schedule: str | Schedule | None = None,
    recover: float = 0.5,
    method: By = "magnitude",
    calibration: Iterable[Any] | None = None,
    teacher: nn.Module | Distill | None = None,
    where: Where = None,
    format: Format | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    on_prune: Callable[[int, dict[str, Pattern]], None] | None = None,
    show_progress: bool | None = None,
) -> Report:
    """Prune a model in place in several stages, with training after each.

    Unstructured sparsity grows in steps. N:M and V:N:M keep more of every M at first (for 2:8: 5, 4, 3, then 2), and
    for V:N:M the shared columns are reduced to 4. In between, `train_step` trains with your optimizer, learning rate
    and data. Pruned weights stay zero.

    Parameters
    ----------
    model
        Any module.
    how
        The final pattern, or ``{glob of names: pattern or None}``.
    train_step
        ``train_step(model, distill)`` makes one optimizer step, and may return the loss. ``distill(output, *inputs)``
        is the loss towards the teacher, and zero without one.
    steps
        How many times `train_step` is called in total.
    stages
        How many times the model is pruned.
    schedule
        A name or a function of :mod:`gossamer.schedules`, from progress to share, both from 0 to 1. The last stage
        always ends with the final pattern. None: the pattern's default, "decay" for N:M and V:N:M, "cubic" for others.
    recover
        Share of the steps after the last stage; the others are divided among the stages.
    method, calibration, loss, forward, where, format
        As for :func:`oneshot`.
    teacher
        The dense model to learn from (a copy: ``copy.deepcopy(model)``), or a :class:`Distill` with settings.
    metric
        ``metric(model)``, computed at the beginning, after each stage's pruning and training, and at the end.
    on_prune
        ``on_prune(stage, patterns)`` is called after each pruning, for example to start a learning-rate cycle.
    show_progress
        None: only if standard error is a terminal.

    Returns
    -------
    Report
        Of the last stage; ``history`` has all of them.

    Examples
    --------
    >>> import copy, torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 4)
    >>> x, optimizer = torch.randn(64, 16), torch.optim.SGD(model.parameters(), 0.1)
    >>> def train_step(model, distill):
    ...     loss = distill(model(x), x)
    ...     optimizer.zero_grad(); loss.backward(); optimizer.step()
    >>> report = gs.prune.gradual(model, "2:8", train_step, steps=20, teacher=copy.deepcopy(model))
    >>> model.weight.sparsity, [stage["patterns"] for stage in report.history]
    (0.75, [['5:8'], ['4:8'], ['3:8'], ['2:8']])
    """
    started = time.perf_counter()
    if steps < 0 or stages < 1 or not 0 <= recover <= 1:
        raise ValueError(f"steps >= 0, stages >= 1 and recover from 0 to 1, got {steps}, {stages} and {recover}")
    format = Masked() if format is None else as_format(format)
    distill = teacher if isinstance(teacher, Distill) else Distill(teacher)
    work = plan(model, how, where, method)
    final = work.patterns
    batches = gather(calibration, model, work.method.name if work.method.needs else None)
    _densify(final)
    before = None if metric is None else float(metric(model))
    history: list[dict[str, Any]] = []
    sources: dict[str, Weight] = {layer.parameter_name: layer.source for layer in final}
    masks: dict[str, Tensor] = {}
    with progress("gradual", steps, show_progress) as tell:
        for stage, count in enumerate(_shares(steps, stages, recover)):
            now = {layer: _now(pattern, schedule, stage, stages) for layer, pattern in final.items()}
            job = Job(model, dataclasses.replace(work, patterns=now), loss=loss, call=forward or run)
            report = job.run(batches, format=Dense(), show_progress=False)
            masks = job.masks
            entry: dict[str, Any] = {"stage": stage, "patterns": sorted({str(p) for p in now.values()}), "steps": count}
            entry |= {"sparsity": report.sparsity, "error": report.error}
            if metric is not None:
                entry["pruned"] = float(metric(model))
            if on_prune is not None:
                on_prune(stage, {layer.name: pattern for layer, pattern in now.items()})
            kept = [(sources[name].parameter, mask) for name, mask in masks.items()]
            entry["loss"] = _train(model, train_step, distill, kept, count, tell)
            if metric is not None:
                entry["trained"] = float(metric(model))
            history.append(entry)
    for name, mask in masks.items():
        sources[name].become(sources[name].dense(), mask, format)
    made_sparse(model)
    after = history[-1].get("trained")
    seconds = time.perf_counter() - started
    return dataclasses.replace(report, before=before, after=after, seconds=seconds, history=tuple(history))


def _now(pattern: Pattern, schedule: str | Schedule | None, stage: int, stages: int) -> Pattern:
    """What to prune to at a stage."""
    if stage == stages - 1:
        return pattern
    return pattern.towards(as_schedule(schedule or pattern.schedule)((stage + 1) / stages))


def _shares(steps: int, stages: int, recover: float) -> list[int]:
    """Training steps after each stage."""
    last = steps if stages == 1 else round(steps * recover)
    early = [round((steps - last) * (k + 1) / (stages - 1)) for k in range(stages - 1)]
    return [b - a for a, b in zip([0, *early], early, strict=False)] + [last]


def _densify(layers: Iterable[Layer]) -> None:
    """Train in dense tensors: pruned values are set back to zero after each step, which costs little."""
    for layer in layers:
        if layer.source.is_sparse:
            layer.source.become(layer.dense(), None, Dense())


def _train(
    model: nn.Module,
    train_step: TrainStep,
    distill: Distill,
    masks: list[tuple[nn.Parameter, Tensor]],
    count: int,
    tell: Any,
) -> float | None:
    """Train, and keep what is pruned at zero; the mean of the losses that the steps returned."""
    losses: list[float] = []
    for _ in range(count):
        value = train_step(model, distill)
        with torch.no_grad():
            for parameter, mask in masks:
                parameter.mul_(mask)
        if value is not None:
            losses.append(float(value))
            if losses[-1] != losses[-1]:
                raise FloatingPointError("the training step returned a loss of NaN: lower the learning rate")
        tell("", None, 1)
    return sum(losses) / len(losses) if losses else None
