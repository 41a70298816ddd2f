"""Pruning a trained model layer by layer, with a few batches of typical inputs."""

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
    """Prune a trained model in place, without training, layer by layer, with calibration data.

    The model is pruned block by block. The inputs of a block come from the blocks before it, which are already pruned,
    so later layers compensate for earlier ones. Layers that read the same input choose the shared columns of "all:2:8"
    together (except by methods that need gradients). Linear layers, convolutions, ``nn.MultiheadAttention``,
    transformers' Conv1D and the experts of its mixture-of-experts models are pruned. All other parameters, and layers
    that you exclude, are not changed. The report shows what stays dense, and why.

    Parameters
    ----------
    model
        Any module. Its weights become sparse; the parameter objects stay the same.
    how
        A pattern (``gs.NM(2, 4)``), its short form (``"2:4"``), a sparsifier (a pattern with a score), or
        ``{glob of names: one of these or None}``; the first glob that matches decides.
    calibration
        Batches of typical inputs: each a tensor, a tuple of arguments or a dict of keyword arguments, on the model's
        device. A few hundred samples are enough. "magnitude" needs none.
    method
        "magnitude", "wanda", "sparsegpt", "obs" or the name of another score; :class:`SparseGPT` or :class:`OBS` with
        settings; any score, such as ``gs.Wanda()`` or your own; a sparsifier, for its score; or your own
        :class:`Method`. None: the score of `how` if it is a sparsifier, else "sparsegpt".
    where
        Which names: a glob, several globs, or a predicate of the name. All by default, except for embeddings, output
        layers tied to one and depthwise convolutions, which must be named.
    format
        ``gs.Masked()`` by default; call ``gs.pack_`` for speed.
    loss
        ``loss(output, batch)``, for methods that need gradients. By default the output's own ``.loss``. If there is
        none, second-order methods (OBS, Fisher) use the distance to the dense model's outputs.
    metric
        ``metric(model)``, computed before and after, for the report.
    refine
        Steps of layer-wise least squares on the calibration inputs after pruning (about 10 are enough; 0: none).
    forward
        ``forward(model, batch)``, if a batch isn't simply the model's arguments, e.g. ``lambda m, b: m(b[0])``.
    device
        Where to compute. One block at a time is moved there, so the model may be larger than that device.
    offload
        Keep activations between blocks on the CPU (always so with `device`).
    memory
        Bytes for the calibration data of one layer: its X Xᵀ with what is computed from it, or its Fisher matrix. If X
        Xᵀ would take more, only diagonal blocks of it are used, and the report notes it.
    checkpoint
        A folder for finished layers. You can stop at any time; the same call continues.
    show_progress
        None: only if standard error is a terminal.

    Returns
    -------
    Report
        For each layer: sparsity, kept energy, error on the calibration inputs. Print it, or ``.save("report.json")``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> batches = [torch.randn(64, 16) for _ in range(4)]
    >>> report = gs.prune.oneshot(model, gs.NM(2, 4), batches, method="sparsegpt")
    >>> print(report.taken)
    2 sparse weights, 99.4 % of all parameters; dense: 0.6 % vectors
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
