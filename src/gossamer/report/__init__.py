"""The report: one self-contained HTML page about a model.

``page`` writes HTML and ``svg`` plots, from plain data. ``layers`` examines and measures a model, ``masks`` and
``charts`` draw, and ``model`` combines everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gossamer.report.model import ModelReport


def report(
    model: nn.Module | Mapping[str, nn.Module] | Mapping[str, Tensor],
    path: str | os.PathLike[str] | None = "gossamer-report.html",
    *,
    example_inputs: Any = None,
    tokens: Sequence[int] = (1, 256),
    accuracy: float | Mapping[str, float] | Iterable[tuple[str, float, float]] | None = None,
    training: Any = None,
    curves: Mapping[str, Any] | None = None,
    pruning: Any = None,
    title: str | None = None,
    measure: bool = True,
    show_progress: bool | None = None,
) -> ModelReport:
    """Write one HTML page about a model: its layers, how fast they are, and why.

    The page is self-contained. It works offline, in light and dark mode and on a phone, and its tables can be sorted.
    It has a table of layers (pattern, format, sparsity, bytes, dense and sparse time, kernel and why it was chosen),
    pictures of masks, the sparsity of each layer, and a measured roofline; if you pass them, also training curves,
    churn, and accuracy against sparsity. The model is not changed.

    Parameters
    ----------
    model
        A module; several modules to compare, ``{"dense": a, "pruned": b}``; or tensors by name, as in a file.
    path
        Where to write; an existing file is replaced atomically. None writes nothing.
    example_inputs
        The arguments of a call, as for :func:`gossamer.pack_`. With them, the whole model and a dense copy are
        measured, and also each layer with its input sizes. Convolutions are measured only with them.
    tokens
        Linear layers are measured with these numbers of tokens (rows of activations).
    accuracy
        Accuracy of the model; ``{name of model: accuracy}``; or your own points, ``(name, sparsity, accuracy)``.
    training
        A method of ``gs.train``, or ``{name: method}``: shows churn, exploration and ablation of its layers. An earlier
        state works too: ``(method.log(), method.history.rows)``.
    curves
        ``{"loss": values}``, or with steps ``{"loss": [(step, value), ...]}``, or ``{"loss": {"name": values}}``.
    pruning
        A report of ``gs.prune``, or ``{name: report}``: its metric becomes points of accuracy against sparsity.
    title
        Title of the page.
    measure
        If False, times and roofline are omitted.
    show_progress
        None: only if standard error is a terminal.

    Returns
    -------
    ModelReport
        The same as data: print it, read ``layers``, or ``to_dict()``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    >>> found = gs.report(gs.sparsify_(model, {"0": "2:4", "*": None}), path=None, measure=False)
    >>> [(x.name, x.pattern, x.sparsity) for x in found.layers]
    [('0.weight', '2:4', 0.5), ('2.weight', 'dense', 0.0)]
    """
    from gossamer.report.make import make  # opened when it is used: import gossamer stays short

    return make(
        model, path, example_inputs=example_inputs, tokens=tokens, accuracy=accuracy, training=training, curves=curves,
        pruning=pruning, title=title, measure=measure, show_progress=show_progress,
    )  # fmt: skip


__all__ = ["report"]
