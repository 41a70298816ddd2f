"""gs.report: looks at a model, measures it, and writes a page about it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import native
from gossamer.models.pack.examples import examples_of
from gossamer.progress import progress
from gossamer.report.charts import Curve
from gossamer.report.layers import Weight, facts, weights_in, weights_of
from gossamer.report.model import ModelReport
from gossamer.report.whole import Whole, measured

Models = nn.Module | Mapping[str, nn.Module] | Mapping[str, Tensor]


def make(
    model: Models,
    path: str | os.PathLike[str] | None,
    *,
    example_inputs: Any,
    tokens: Sequence[int],
    accuracy: float | Mapping[str, float] | Iterable[tuple[str, float, float]] | None,
    training: Any,
    curves: Mapping[str, Any] | None,
    pruning: Any,
    title: str | None,
    measure: bool,
    show_progress: bool | None,
) -> ModelReport:
    """Do what :func:`gossamer.report` says."""
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in tokens):
        raise ValueError(f"tokens are counts of at least 1, such as (1, 256); got {tuple(tokens)!r}")
    found = _weights(model, tokens, example_inputs)
    if not any(found.values()):
        raise ValueError(
            f"nothing to report on: {type(model).__name__} has no linear or convolution layer and no sparse weight"
        )
    layers = []
    with progress("measuring" if measure else "looking", sum(map(len, found.values())), show_progress) as tell:
        for name, weights in found.items():
            for weight in weights:
                tell(weight.name, None, 0)
                layers.append(facts(weight, name, 0.02 if measure else 0.0, drawn=True))
                tell(weight.name, None, 1)
    timed, on_cpu = any(x.times for x in layers), all(w.value.device.type == "cpu" for ws in found.values() for w in ws)
    top = native.ceilings(torch.get_num_threads()) if timed and on_cpu else None
    series, rows = _training(training)
    for what, lines in (curves or {}).items():
        series.setdefault(what, {}).update(_lines(what, lines))
    whole = _whole(model, example_inputs) if measure else ()
    made = ModelReport(title or _title(model), machine(), tuple(layers), top, (), series, tuple(rows), whole)
    made = replace(made, points=(*_points(accuracy, made), *_pruned(pruning)))
    if path is not None:
        made.save(path)
    return made


def _whole(model: Models, example: Any) -> tuple[Whole, ...]:
    """How long calls of the models take, dense and as they are; nothing without an example."""
    examples = examples_of(example)
    models = {"": model} if isinstance(model, nn.Module) else model
    modules = [(name, m) for name, m in models.items() if isinstance(m, nn.Module)]
    return tuple(found for name, m in modules for found in (measured(m, name, examples) if examples else ()))


def machine() -> str:
    """Say what this machine is, in a line."""
    from gossamer.models.pack.tune import _machine

    threads = torch.get_num_threads()
    parts = [_machine()[0] or platform.machine(), f"{threads} thread{'s' * (threads > 1)}"]
    parts += [f"kernels for {native.isa()}" if native.load() else "no native kernels", f"torch {torch.__version__}"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def _title(model: Models) -> str:
    return "gossamer report" if isinstance(model, Mapping) else f"{type(model).__name__}, by gossamer"


def _weights(model: Models, tokens: Sequence[int], example: Any) -> dict[str, list[Weight]]:
    if isinstance(model, nn.Module):
        return {"": list(weights_of(model, tokens, example))}
    if not isinstance(model, Mapping):
        raise TypeError(f"give a module, {{name: module}} or {{name: tensor}}, not {type(model).__name__}")
    modules = {name: m for name, m in model.items() if isinstance(m, nn.Module)}
    if len(modules) == len(model):
        return {name: list(weights_of(m, tokens, example)) for name, m in modules.items()}
    tensors = {name: t for name, t in model.items() if isinstance(t, Tensor)}
    if len(tensors) != len(model):
        raise TypeError("a mapping has to hold modules only, or tensors only")
    return {"": list(weights_in(tensors, tokens))}


def _points(given: Any, made: ModelReport) -> list[tuple[str, float, float]]:
    if given is None:
        return []
    if isinstance(given, int | float):
        given = {made.models[0]: given}
    if not isinstance(given, Mapping):
        return [(str(n), float(s), float(a)) for n, s, a in given]
    unknown = [name for name in given if name not in made.models]
    if unknown:
        raise ValueError(f"accuracy names {unknown}, but the models are {list(made.models)}")
    return [(name or made.title, made.sparsity(name), float(value)) for name, value in given.items()]


def _named(given: Any) -> dict[str, Any]:
    """One thing, or {name: thing}."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) and "layers" not in given else {"": given}


def _pruned(given: Any) -> list[tuple[str, float, float]]:
    """Points of pruning reports: the dense model, each stage after its training, and the end."""
    points = []
    for name, report in _named(given).items():
        name = name or report.method
        if report.before is not None:
            points.append((name, 0.0, float(report.before)))
        stages = [(s["sparsity"], s["trained"]) for s in report.history if s.get("trained") is not None]
        if not stages and report.after is not None:
            stages = [(report.sparsity, report.after)]
        points += [(name, float(s), float(a)) for s, a in stages]
    return points


def _training(given: Any) -> tuple[dict[str, dict[str, Curve]], list[dict[str, Any]]]:
    """What methods have logged: churn and density by step, and where each layer stands."""
    series: dict[str, dict[str, Curve]] = {}
    rows: list[dict[str, Any]] = []
    methods = _named(given)
    for name, method in methods.items():
        log, history = _logged(method)
        label = name or log["method"]
        rows += [{"layer": layer, "method": label, **figures} for layer, figures in log["layers"].items()]
        for row in history:
            line = row["layer"] if len(methods) == 1 else f"{label} {row['layer']}"
            for what in ("churn", "explored"):
                series.setdefault(what, {}).setdefault(line, []).append((row["step"], row[what]))  # type: ignore[attr-defined]
    return series, rows


def _logged(method: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The log of a method and the rows of its history; a tuple of both was taken at an earlier time."""
    if isinstance(method, tuple):
        return method
    return (method, []) if isinstance(method, Mapping) else (method.log(), method.history.rows)  # type: ignore[return-value]


def _lines(what: str, given: Any) -> dict[str, Curve]:
    """A curve, or {name: curve}; a curve is numbers, or (step, number)."""
    named = given if isinstance(given, Mapping) else {what: given}
    made: dict[str, Curve] = {}
    for name, line in named.items():
        pairs = [p if isinstance(p, tuple | list) else (i, p) for i, p in enumerate(line)]
        made[str(name)] = [(float(s), float(v)) for s, v in pairs]
    return made
