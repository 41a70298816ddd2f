"""``gossamer bench MODEL``: a saved model compared with dense float32 and torch's dynamic int8, interleaved."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gossamer.app.failing import note
from gossamer.app.kinds import groups
from gossamer.app.opening import Opened, open_model
from gossamer.models import densify_, summary
from gossamer.models.dynamic_int8 import DynamicInt8Linear
from gossamer.report.timing import interleaved

if TYPE_CHECKING:
    from rich.table import Table

SECONDS = 2.0  # of measuring, for each contender


def measure(path: str, tokens: int) -> dict[str, Any]:
    """Return the milliseconds of a model and of its alternatives; for a file, of its layers."""
    note(f"reading {path}")
    opened = open_model(path)
    tokens = opened.fitting(tokens)
    note("measuring")
    with torch.inference_mode():
        rows = _models(opened, tokens) if opened.folder else _layers(opened, tokens)
    used = None if opened.reads_images else tokens
    return {"model": path, "tokens": used, "threads": torch.get_num_threads(), "rows": rows}


def table(found: dict[str, Any]) -> Table:
    """Return the measurements as a rich table, layers by kind."""
    from rich.table import Table

    threads, tokens = found["threads"], found["tokens"]
    size = "1 image" if tokens is None else f"{tokens} token{'s' * (tokens != 1)}"
    title = f"{found['model']}, {size}, {threads} thread{'s' * (threads != 1)}"
    if "contender" in found["rows"][0]:
        out = Table("model", title=title, title_justify="left")
        for column in ("ms", "gain over dense float32"):
            out.add_column(column, justify="right")
        for row in found["rows"]:
            out.add_row(row["contender"], f"{row['ms']:,.2f}", f"{row['gain']:.2f}x")
        return out
    out = Table(title=title, title_justify="left")
    out.add_column("layers", overflow="fold")
    out.add_column("format")
    for column in ("number", "sparsity", "dense ms", "ms", "gain"):
        out.add_column(column, justify="right")
    for (kind, format), same in groups(found["rows"], "format").items():
        dense, ours = sum(row["dense_ms"] for row in same), sum(row["ms"] for row in same)
        sparsity = sum(row["sparsity"] for row in same) / len(same)
        figures = (f"{sparsity:.1%}", f"{dense:,.3f}", f"{ours:,.3f}", f"{dense / ours:.2f}x")
        out.add_row(kind, format, str(len(same)), *figures)
    return out


def _models(opened: Opened, tokens: int) -> list[dict[str, Any]]:
    inputs = opened.example(tokens)
    dense = densify_(copy.deepcopy(opened.model))
    contenders: dict[str, nn.Module] = {}
    if (dtype := _dtype(dense)) != torch.float32:
        contenders[f"dense {str(dtype).removeprefix('torch.')}"] = dense
        dense = copy.deepcopy(dense).float()
    contenders["dense float32"] = dense
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends torchao for it; this one runs everywhere
        contenders["torch, dynamic int8"] = torch.ao.quantization.quantize_dynamic(dense, {nn.Linear})
    contenders[f"this model ({1 - summary(opened.model).density:.0%} sparse)"] = opened.model
    seconds = interleaved({name: _call(model, inputs) for name, model in contenders.items()}, SECONDS)
    base = seconds["dense float32"]
    return [{"contender": name, "ms": 1e3 * s, "gain": base / s} for name, s in seconds.items()]


def _call(model: nn.Module, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    given = {name: x.to(_dtype(model)) if x.is_floating_point() else x for name, x in inputs.items()}
    return lambda: model(**given)


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _layers(opened: Opened, tokens: int) -> list[dict[str, Any]]:
    rows = []
    for name, layer in opened.model.named_modules():
        if not hasattr(layer, "in_features"):
            continue
        weight: Any = layer.weight
        dense = nn.Linear(layer.in_features, layer.out_features, device=weight.device)
        x = torch.randn(tokens, layer.in_features)
        seconds = interleaved({"dense": lambda d=dense, x=x: d(x), "ours": lambda m=layer, x=x: m(x)}, 0.1)  # type: ignore[misc]
        format, sparsity = repr(getattr(weight, "format", "Dense")).strip("'"), float(getattr(weight, "sparsity", 0))
        if isinstance(layer, DynamicInt8Linear):
            format, sparsity = str(layer.layout), 1 - layer.nnz / max(weight.numel(), 1)
        times = {"dense_ms": 1e3 * seconds["dense"], "ms": 1e3 * seconds["ours"]}
        rows.append({"name": name or "weight", "format": format, "sparsity": sparsity, **times})
    if not rows:
        raise ValueError(f"{opened.path} has no linear layer to measure")
    return rows
