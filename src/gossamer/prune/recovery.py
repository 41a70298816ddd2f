"""Recovery: prune a pretrained model and train it towards its original outputs, in one call."""

from __future__ import annotations

import copy
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.io.write import replacing
from gossamer.methods.distill import Distill
from gossamer.patterns import Pattern
from gossamer.progress import progress
from gossamer.prune.calibration import Loss, run
from gossamer.prune.job import Metric
from gossamer.prune.report import LayerReport, Report, merged
from gossamer.train.recipe import Recipe

_LOOKS = 20  # losses in the report's history


def recover(
    model: nn.Module,
    how: float | str | Pattern,
    batches: Iterable[Any],
    *,
    steps: int,
    lr: float = 5e-4,
    teacher: nn.Module | Distill | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int = 500,
    show_progress: bool | None = None,
    **options: Any,
) -> Report:
    """Prune a pretrained model in place, gradually, while it is trained towards its original outputs.

    No labels are needed: the original model is the teacher. Weights are removed by magnitude in the first half of the
    steps. The learning rate rises during the first thirtieth of the steps, and then falls to 0 along a cosine. The
    model is trained in its current mode: call :meth:`torch.nn.Module.eval` first to train without dropout, since the
    teacher has none.

    Call it inside ``torch.autocast`` for training in half precision.

    Parameters
    ----------
    model
        Any module. For models of transformers, all hidden states are compared with the teacher's, and the logits if
        there are any. For others, the output is compared as logits; pass ``loss`` if the outputs are not logits.
    how
        Sparsity or pattern: ``"80%"``, ``"2:4"``, ``gs.VNM("all", 2, 8)``.
    batches
        Inputs to train on: tensors, tuples of arguments, or mappings of keyword arguments. They are used repeatedly; a
        ``DataLoader`` shuffles them each time.
    steps
        Number of optimizer steps.
    lr
        The highest learning rate.
    teacher
        The dense model, if `model` is not dense any more; or a :class:`Distill` with other weights, such as
        ``gs.prune.Distill(dense, attention=1.0)``.
    loss
        ``loss(output, batch)``: your own loss, which is half of the total. None: only the teacher's.
    metric
        ``metric(model)``, computed before and after.
    forward
        ``forward(model, batch)``, if a batch isn't simply the model's arguments.
    checkpoint
        A file. It is written every `save_every` steps; the same call continues from it.
    save_every
        Steps between two writes.
    show_progress
        None: only if standard error is a terminal.
    options
        Options of :class:`gossamer.train.Recipe` and its method: ``optimizer``, ``skip``, ``where``, ``distribution``.

    Returns
    -------
    Report
        ``history`` has the mean loss of each twentieth of the steps.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    >>> batches = torch.randn(8, 32, 64)
    >>> report = gs.prune.recover(model, "80%", batches, steps=40, lr=1e-2)
    >>> round(report.sparsity_of_taken, 2), report.history[-1]["loss"] < report.history[9]["loss"]
    (0.8, True)
    """
    began = time.perf_counter()
    if save_every < 1:
        raise ValueError(f"save_every={save_every} must be a number of steps, from 1")
    distill = teacher if isinstance(teacher, Distill) else Distill(copy.deepcopy(model) if teacher is None else teacher)
    before = None if metric is None else float(metric(model))
    recipe = Recipe(model, how, steps=steps, lr=lr, teacher=distill, **options)
    energies = [layer.dense().detach().square() for layer in recipe.method.layers]
    trainer = _Trainer(model, recipe, loss, forward or run)
    with _asked(distill, model), progress("recover", steps, show_progress) as tell:
        trainer.load(checkpoint)
        for batch in itertools.islice(_again(batches), trainer.done, steps):
            trainer.step(batch)
            tell("", None, 1)
            if checkpoint is not None and (trainer.done % save_every == 0 or trainer.done == steps):
                trainer.save(checkpoint)
    recipe.method.close()
    after = None if metric is None else float(metric(model))
    seconds, left = time.perf_counter() - began, tuple(recipe.method.left)
    return Report("recovery", _rows(recipe, energies), before, after, seconds, history=trainer.history(), left=left)


class _Trainer:
    """A model, its recipe, and how far they are."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, loss: Loss | None, call: Callable[[nn.Module, Any], Any]
    ) -> None:
        self.model, self.recipe, self.loss, self.call = model, recipe, loss, call
        self.done = 0
        self.sums: list[Tensor] = []

    def step(self, batch: Any) -> None:
        output = self.call(self.model, batch)
        own = None if self.loss is None else self.loss(output, batch)
        loss = self.recipe.loss(own, output, *_arguments(batch), **_keywords(batch))
        loss.backward()
        self.recipe.step()
        torch.clear_autocast_cache()  # it would hold the weights of the first step to the end of the caller's context
        part = self.done * _LOOKS // self.recipe.steps
        while len(self.sums) <= part:
            self.sums.append(torch.zeros(2, dtype=torch.float64, device=loss.device))
        self.sums[part] += torch.stack([loss.detach().double(), torch.ones_like(loss, dtype=torch.float64)])
        self.done += 1

    def history(self) -> tuple[dict[str, Any], ...]:
        parts = [part.tolist() for part in self.sums]
        return tuple(
            {"step": round((number + 1) * self.recipe.steps / _LOOKS), "loss": total / count}
            for number, (total, count) in enumerate(parts) if count
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that the same call continues from."""
        state = {"steps": self.recipe.steps, "how": str(self.recipe.how), "done": self.done, "sums": self.sums}
        state |= {"model": self.model.state_dict(), "recipe": self.recipe.state_dict()}
        with replacing(path) as file:
            torch.save(state, file)

    def load(self, path: str | os.PathLike[str] | None) -> None:
        """Continue from a file, if there is one."""
        if path is None or not Path(path).exists():
            return
        home = next(self.model.parameters()).device
        state = torch.load(path, map_location=home, weights_only=True)
        asked = {"steps": self.recipe.steps, "how": str(self.recipe.how)}
        differs = [
            f"{key}={state.get(key)!r} there, {asked[key]!r} now" for key in asked if state.get(key) != asked[key]
        ]
        if differs:
            raise ValueError(
                f"{path} belongs to another run: {', '.join(differs)}. Choose another file, or delete this one."
            )
        self.model.load_state_dict(state["model"])
        self.recipe.load_state_dict(state["recipe"])
        self.done, self.sums = state["done"], state["sums"]


def _arguments(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, Mapping):
        return ()
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def _keywords(batch: Any) -> dict[str, Any]:
    return dict(batch) if isinstance(batch, Mapping) else {}


def _again(batches: Iterable[Any]) -> Iterator[Any]:
    """Go through batches without end."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("there are no batches left to train on: give a list or a DataLoader, not a generator")


@contextmanager
def _asked(distill: Distill, *students: nn.Module) -> Iterator[None]:
    """Let models of transformers return hidden states, and attentions where these are compared."""
    names = [
        name
        for name, weight in (("output_hidden_states", distill.hidden), ("output_attentions", distill.attention))
        if weight
    ]
    configs = [c for m in (distill.teacher, *students) if (c := getattr(m, "config", None)) is not None]
    before = [(config, name, getattr(config, name)) for config in configs for name in names if hasattr(config, name)]
    try:
        for config, name, _ in before:
            setattr(config, name, True)
        yield
    finally:
        for config, name, value in before:
            setattr(config, name, value)


def _rows(recipe: Recipe, energies: list[Tensor]) -> tuple[LayerReport, ...]:
    """Return what became of each weight."""
    rows = []
    for layer, energy in zip(recipe.method.layers, energies, strict=True):
        kept = float((energy * layer.mask).sum() / energy.sum().clamp(min=torch.finfo(energy.dtype).tiny))
        row = LayerReport(layer.parameter_name, tuple(energy.shape), str(recipe.how), 1 - layer.kept / layer.size, kept)
        rows.append((layer, row))
    return merged(rows)
