"""``gossamer demo``: real data, a dense model, and the same made sparse in three ways. Every figure is measured."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gossamer as gs

WIDTH, EPOCHS, RECOVERY, BATCH = 2048, 6, 3, 128


@dataclass(frozen=True)
class Data:
    """Training and test images of digits, 8 x 8."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    sparsity: float
    accuracy: float
    format: str
    megabytes: float
    micros: dict[int, float]  # by tokens


def digits() -> Data:
    """Return scikit-learn's digits, shuffled by a fixed seed: 1,437 to train, 360 to test."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return Data(x[:1437], y[:1437], x[1437:], y[1437:])


def network() -> nn.Sequential:
    """Return an MLP wide enough that its weights don't fit a cache."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def train(model: nn.Module, data: Data, epochs: int, tick: Callable[[], None]) -> nn.Module:
    """Train in an ordinary loop; nothing in it knows of sparsity."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for batch in torch.randperm(len(data.y), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
            optimizer.step()
        tick()
    return model


def sparse_models(dense: nn.Module, data: Data, tick: Callable[[], None]) -> dict[str, nn.Module]:
    """Return the three sparse models, trained."""
    inner = {"0": None, "4": None, "*": "90%"}  # the first layer and the classifier stay dense
    pruned = train(gs.sparsify_(copy.deepcopy(dense), inner), data, RECOVERY, tick)

    builder = gs.SparsityBuilder(network())
    builder.set_weight("2.weight", initial_sparsifier="90%", out_format=gs.Masked(), every=20)
    anew = train(builder.get_sparse_model(), data, EPOCHS, tick)

    grouped = train(gs.sparsify_(copy.deepcopy(dense), {"0": None, "4": None, "*": "1:4:g8"}), data, RECOVERY, tick)
    return {"pruned 90 %": pruned, "90 %, anew every 20 steps": anew, "grouped 1:4, 75 %": grouped}


def packed(model: nn.Module) -> nn.Module:
    """Let pack_ choose the fastest format; its own table would be one too many here."""
    with contextlib.redirect_stdout(io.StringIO()):
        gs.pack_(model)
    return model


def measure(models: dict[str, nn.Module], tokens: int, rounds: int = 15) -> dict[str, float]:
    """Return microseconds of a forward pass of each model, interleaved: the minimum of some rounds."""
    x = torch.rand(tokens, 64)
    best = dict.fromkeys(models, float("inf"))
    with torch.inference_mode():
        for _ in range(rounds):
            for name, model in models.items():
                start = time.perf_counter()
                for _ in range(3):
                    model(x)
                best[name] = min(best[name], (time.perf_counter() - start) / 3 * 1e6)
    return best


def zeros(model: nn.Module) -> float:
    """Return the share of parameters that are zero, stored or not: pack_ leaves a layer dense where dense wins."""
    kept = sum(int(torch.count_nonzero(p.detach())) for p in model.parameters())
    return 1 - kept / sum(p.numel() for p in model.parameters())


def rows(models: dict[str, nn.Module], data: Data) -> list[Row]:
    """Measure everything the table shows."""
    times = {tokens: measure(models, tokens) for tokens in (1, 256)}
    found = []
    for name, model in models.items():
        with torch.inference_mode():
            accuracy = (model(data.test_x).argmax(1) == data.test_y).float().mean().item()
        about = gs.summary(model)
        speeds = {tokens: times[tokens][name] for tokens in times}
        format = next(row.format for row in about.rows if row.name == "2.weight")
        found.append(Row(name, zeros(model), accuracy, format, about.bytes / 1e6, speeds))
    return found


def table(found: list[Row]) -> Table:
    """Return the table that the demo prints."""
    out = Table(title="sklearn digits, MLP 64-2048-2048-10; microseconds of a forward pass", title_justify="left")
    out.add_column("model")
    out.add_column("format")
    for column in ("sparsity", "accuracy", "MB", "1 token", "gain", "256 tokens", "gain"):
        out.add_column(column, justify="right")
    base = found[0]
    for row in found:
        cells = [f"{row.sparsity:.1%}", f"{row.accuracy:.1%}", f"{row.megabytes:.1f}"]
        for tokens in (1, 256):
            cells += [f"{row.micros[tokens]:,.0f}", f"{base.micros[tokens] / row.micros[tokens]:.1f}x"]
        out.add_row(row.name, row.format.removesuffix("()"), *cells)
    return out


def run() -> list[Row]:
    """Run the demo and print its table."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    torch.manual_seed(0)
    data = digits()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=2 * EPOCHS + 2 * RECOVERY)
        dense = train(network(), data, EPOCHS, lambda: bar.advance(task))
        models = {"dense": dense, **sparse_models(dense, data, lambda: bar.advance(task))}
        bar.update(task, description="measuring")
        found = rows({name: packed(model) for name, model in models.items()}, data)
    console.print(table(found))
    return found
