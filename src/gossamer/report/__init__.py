"""The report: one HTML page about a model, which needs nothing else and works offline.

``page`` writes HTML and ``svg`` plots, of plain data; ``layers`` looks at a model and measures it, ``recognise`` names
the pattern of a mask, ``masks`` and ``charts`` draw, ``model`` puts it all together.
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
    """Write one HTML page about a model: what its layers hold, how fast they are, and why.

    The page needs nothing else: it works offline, in light and dark, on a phone, and its tables sort by a click. It has
    the table of layers (pattern, format, sparsity, bytes, dense and sparse time, kernel and why), masks as pictures,
    sparsity by layer and a roofline below what this machine was measured to do; and, where given, training curves,
    churn, and accuracy against sparsity. The model is left as it is.

    Parameters
    ----------
    model
        A module; several, ``{"dense": a, "pruned": b}``, to see side by side; or tensors by name, as a file has them.
    path
        Where to write; a file that is there is replaced in one go. None writes nothing.
    example_inputs
        What the model is called with, as for :func:`gossamer.pack_`: layers are measured on what it brings to them,
        too. Convolutions are measured only with it.
    tokens
        Linear layers are measured with these numbers of rows of activations.
    accuracy
        Of the model; ``{name of model: accuracy}``; or points of your own, ``(name, sparsity, accuracy)``.
    training
        A method of ``gs.train``, or ``{name: method}``: churn, explored and ablated of its layers. What it had to say
        at an earlier time does as well: ``(method.log(), method.history.rows)``.
    curves
        ``{"loss": values}``, or with steps ``{"loss": [(step, value), ...]}``, or ``{"loss": {"name": values}}``.
    pruning
        What ``gs.prune`` returned, or ``{name: report}``: its metric becomes points of accuracy against sparsity.
    title
        Of the page.
    measure
        False leaves out times and roofline.
    show_progress
        None: if standard error is a terminal.

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
