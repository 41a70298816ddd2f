"""Pruning a trained model in one go, layer after layer, with a few batches of typical inputs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.formats import Format, Masked, as_format
from gossamer.models.names import Where
from gossamer.prune.calibration import Loss, gather, run
from gossamer.prune.job import MEMORY, Job, Metric
from gossamer.prune.plan import By, How, plan
from gossamer.prune.report import Report


def oneshot(
    model: nn.Module,
    how: How | Mapping[str, How],
    calibration: Iterable[Any] | None = None,
    method: By = None,
    *,
    where: Where = None,
    format: Format | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    refine: int = 0,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    device: torch.device | str | None = None,
    offload: bool = False,
    memory: float = MEMORY,
    checkpoint: str | os.PathLike[str] | None = None,
    show_progress: bool | None = None,
) -> Report:
    """Prune a trained model in place, without training: calibrated, layer after layer.

    The model is walked block by block. The inputs of a block come from the blocks before it, already pruned, so later
    layers make up for earlier ones. Linear layers, convolutions, ``nn.MultiheadAttention``, transformers' Conv1D and
    the experts of its mixture-of-experts models are taken; everything else, and every layer not asked for, stays bit
    for bit as it was. The report says what was left and why.

    Parameters
    ----------
    model
        Any module. Its weights end as sparse tensors; their identity as parameters stays.
    how
        A pattern (``gs.NM(2, 4)``), its short form (``"2:4"``), a sparsifier (a pattern with a score), or
        ``{glob of names: one of these or None}``, of which the first that fits decides.
    calibration
        Batches of typical inputs: each a tensor, a tuple of arguments or a dict of keyword arguments, on the model's
        device. A few hundred samples are plenty. "magnitude" needs none.
    method
        "magnitude", "wanda", "sparsegpt", "obs" or the name of another score; :class:`SparseGPT` or :class:`OBS` with
        settings; any score, such as ``gs.Wanda()`` or one of your own, or a sparsifier, for its score; or a
        :class:`Method` of your own. None: the score of the sparsifier that `how` is, or "sparsegpt".
    where
        Names to take: a glob, several, or a predicate of the name; all by default, except for embeddings, output layers
        tied to one and depthwise convolutions, which have to be named.
    format
        ``gs.Masked()`` by default; ``gs.pack_`` makes it fast.
    loss
        ``loss(output, batch)``, for methods that need gradients. By default the output's own ``.loss``; where there is
        none, second-order methods (OBS, Fisher) take the distance to the dense model's outputs.
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
    memory
        Bytes for what is gathered of one layer: its X Xᵀ with what is computed from it, or its Fisher matrix. A layer
        whose X Xᵀ would take more is pruned by diagonal blocks of it, and its notes say so.
    checkpoint
        A folder for finished layers. Stop at any time; the same call continues from there.
    show_progress
        None: if standard error is a terminal.

    Returns
    -------
    Report
        Per layer: sparsity, kept energy, error on the calibration inputs; print it or ``.save("report.json")``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> batches = [torch.randn(64, 16) for _ in range(4)]
    >>> report = gs.prune.oneshot(model, gs.NM(2, 4), batches, method="sparsegpt")
    >>> print(report.taken)
    taken 2 weights, 99.4 % of all parameters; left: 0.6 % because they are vectors
    >>> report.sparsity_of_taken, model[0].weight.sparsity
    (0.5, 0.5)
    """
    started = time.perf_counter()
    work = plan(model, how, where, method)
    place = None if device is None else torch.device(device)
    job = Job(model, work, refine, loss, forward or run, place, offload, memory)
    batches = gather(calibration, model, work.method.name if work.method.needs else None)
    format = Masked() if format is None else as_format(format)
    before = None if metric is None else float(metric(model))
    report = job.run(batches, format=format, checkpoint=checkpoint, show_progress=show_progress)
    after = None if metric is None else float(metric(model))
    return replace(report, before=before, after=after, seconds=time.perf_counter() - started)
