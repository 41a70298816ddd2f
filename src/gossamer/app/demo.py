"""``gossamer demo``: real data, a dense model, and the same made sparse in three ways. Every figure is measured."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gossamer as gs
from gossamer import prune
from gossamer import train as sparse_training
from gossamer.app.failing import note
from gossamer.progress import Tell, progress
from gossamer.report.page import Column, Section, tiles
from gossamer.report.page import table as page_table
from gossamer.report.timing import interleaved

WIDTH, EPOCHS, RECOVERY, BATCH = 2048, 14, 60, 128
SPARSITY, GROUPED = 0.95, "1:20:g8"
TOKENS = (1, 256)
SECONDS = 1.0  # of measuring, for each model and number of tokens
INNER = "2.weight"  # the first layer and the classifier stay dense


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


@dataclass
class Story:
    """The models, and what was seen on the way."""

    models: dict[str, nn.Module] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    log: Any = None  # of the dynamic method, before packing
    pruned: Any = None


def digits() -> Data:
    """Return scikit-learn's digits, shuffled by a fixed seed: 1,437 to train, 360 to test."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return Data(x[:1437], y[:1437], x[1437:], y[1437:])


def network() -> nn.Sequential:
    """Return an MLP wide enough that its weights don't fit a cache."""
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def accuracy(model: nn.Module, data: Data) -> float:
    """Return the share of test images that the model gets right."""
    with torch.inference_mode():
        return (model(data.test_x).argmax(1) == data.test_y).float().mean().item()


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, more: Callable[..., Any] | None = None
) -> float:
    """Make one ordinary training step; nothing in it knows of sparsity. `more` is added to the loss."""
    optimizer.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output, y)
    if more is not None:
        loss = loss + more(output, x)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(data: Data, tick: Callable[[], None], dynamic: bool = False) -> tuple[nn.Module, list[float], Any]:
    """Train from scratch: dense, or with a topology that moves, which adds two lines to the loop."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    steps, losses, method = EPOCHS * -(-len(data.y) // BATCH), [], None
    if dynamic:
        method = sparse_training.RigL(
            model, optimizer, SPARSITY, where=INNER, distribution="uniform", every=8, until=0.75 * steps
        )
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    shuffle = torch.Generator().manual_seed(1)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(data.y), generator=shuffle).split(BATCH):
            losses.append(step_of(model, optimizer, data.x[batch], data.y[batch]))
            if method is not None:
                method.step()
            rate.step()
        tick()
    return model, losses, method


def gradual(dense: nn.Module, data: Data, tick: Callable[[], None]) -> tuple[nn.Module, list[float], prune.Report]:
    """Go from dense to grouped n:m in four stages, and train in between, with the dense model as the teacher."""
    model, losses = copy.deepcopy(dense), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, RECOVERY)
    draw = torch.Generator().manual_seed(2)

    def train_step(model: nn.Module, distill: prune.Distill) -> None:
        batch = torch.randint(len(data.y), (BATCH,), generator=draw)
        losses.append(step_of(model, optimizer, data.x[batch], data.y[batch], distill))
        rate.step()
        tick()

    how = {INNER.removesuffix(".weight"): GROUPED, "*": None}
    report = prune.gradual(
        model, how, train_step, steps=RECOVERY, teacher=copy.deepcopy(dense),
        metric=lambda m: accuracy(m, data), show_progress=False,
    )  # fmt: skip
    return model, losses, report


def tell_the_story(data: Data, tell: Tell) -> Story:
    """Train the dense model and make it sparse in three ways."""
    story = Story()

    def ticking(what: str) -> Callable[[], None]:
        tell(what, None, 0)
        return lambda: tell(what, None, 1)

    dense, story.losses["dense"], _ = train(data, ticking("dense"))
    story.models["dense"] = dense
    name = f"dynamic (RigL) {SPARSITY:.0%}"
    story.models[name], story.losses[name], method = train(data, ticking("dynamic sparse"), dynamic=True)
    story.log = (method.log(), method.history.rows)
    method.close()

    name = f"one-shot (SparseGPT) {SPARSITY:.0%}"
    tell("one-shot, second order", None, 0)
    model = copy.deepcopy(dense)
    how = {INNER.removesuffix(".weight"): f"{SPARSITY:.0%}", "*": None}
    prune.oneshot(model, how, [data.x], method="sparsegpt", refine=10, show_progress=False)
    story.models[name] = model
    tell("one-shot, second order", None, 1)

    name = f"gradual, grouped {GROUPED.rpartition(':')[0]}"
    story.models[name], story.losses[name], story.pruned = gradual(dense, data, ticking("gradual, grouped n:m"))
    return story


def packed(model: nn.Module) -> nn.Module:
    """Let pack_ choose what is fastest for one token, where it is hardest; its own table would be one too many here."""
    with contextlib.redirect_stdout(io.StringIO()):
        gs.pack_(model, torch.rand(1, 64), show_progress=False)
    return model


def measure(models: dict[str, nn.Module], tokens: int) -> dict[str, float]:
    """Return microseconds of a forward pass of each model; they take turns, five passes at a time.

    A model that serves has the caches to itself, so one pass in turn with a dense model of 17 MB would tell little.
    """
    x = torch.rand(tokens, 64)
    with torch.inference_mode():
        calls = {name: partial(_five, model, x) for name, model in models.items()}
        return {name: 1e6 * seconds / 5 for name, seconds in interleaved(calls, SECONDS, runs=10).items()}


def _five(model: nn.Module, x: Tensor) -> None:
    for _ in range(5):
        model(x)


def zeros(model: nn.Module) -> float:
    """Return the share of parameters that are zero, stored or not: pack_ leaves a layer dense where dense wins."""
    kept = sum(int(torch.count_nonzero(p.detach())) for p in model.parameters())
    return 1 - kept / sum(p.numel() for p in model.parameters())


def rows(models: dict[str, nn.Module], data: Data) -> list[Row]:
    """Measure everything the table shows."""
    times = {tokens: measure(models, tokens) for tokens in TOKENS}
    found = []
    for name, model in models.items():
        about = gs.summary(model)
        speeds = {tokens: times[tokens][name] for tokens in TOKENS}
        format = next(row.format for row in about.rows if row.name == INNER)
        found.append(Row(name, zeros(model), accuracy(model, data), format, about.bytes / 1e6, speeds))
    return found


def table(found: list[Row]) -> Table:
    """Return the table that the demo prints."""
    title = f"sklearn digits, MLP 64-{WIDTH}-{WIDTH}-10; microseconds of a forward pass"
    out = Table(title=title, title_justify="left")
    out.add_column("model")
    out.add_column("format")
    for column in ("sparsity", "accuracy", "MB", "1 token", "gain", "256 tokens", "gain"):
        out.add_column(column, justify="right")
    base = found[0]
    for row in found:
        cells = [f"{row.sparsity:.1%}", f"{row.accuracy:.1%}", f"{row.megabytes:.1f}"]
        for tokens in TOKENS:
            cells += [f"{row.micros[tokens]:,.0f}", f"{base.micros[tokens] / row.micros[tokens]:.1f}x"]
        out.add_row(row.name, row.format.removesuffix("()"), *cells)
    return out


def section(found: list[Row]) -> Section:
    """Return the same table for the page."""
    base = found[0]
    columns = [Column("model", kind=""), Column("format", kind="code"), Column("sparsity", "{:.1%}".format)]
    columns += [Column("accuracy", "{:.1%}".format), Column("MB", "{:.1f}".format)]
    for tokens in TOKENS:
        words = f"{tokens} token{'s' * (tokens > 1)}"
        columns += [Column(f"{words}, us", "{:,.0f}".format), Column(f"{words}, gain", "{:.1f}x".format)]
    cells = []
    for row in found:
        speeds = [x for t in TOKENS for x in (row.micros[t], base.micros[t] / row.micros[t])]
        cells.append([row.name, row.format.removesuffix("()"), row.sparsity, row.accuracy, row.megabytes, *speeds])
    best = max(found[1:], key=lambda row: base.micros[1] / row.micros[1])
    lead = tiles(
        [(f"{base.micros[t] / best.micros[t]:.1f}x", f"{best.name}, {t} token{'s' * (t > 1)}") for t in TOKENS]
    )
    text = "A forward pass of the whole model, dense against packed, in turns of five. All was measured in this run."
    return Section("The demo", text, type(lead)(lead + page_table(columns, cells)))


def announced(tell: Tell) -> Tell:
    """Return the same, with a line on standard error for each part: in a pipe there is no bar to watch."""
    seen: set[str] = set()

    def both(what: str, loss: float | None, steps: int) -> None:
        if what not in seen:
            note(f"demo: {what}")
        seen.add(what)
        tell(what, loss, steps)

    return both


def run(path: str | os.PathLike[str] | None = "gossamer-report.html", show_progress: bool | None = None) -> list[Row]:
    """Run the demo, and write its page."""
    data = digits()
    total = 2 * EPOCHS + RECOVERY + 3
    with progress("demo:", total, show_progress) as bar:
        tell = bar if sys.stderr.isatty() or show_progress is not None else announced(bar)
        story = tell_the_story(data, tell)
        tell("packing", None, 0)
        models = {name: packed(model) for name, model in story.models.items()}
        tell("measuring", None, 1)
        found = rows(models, data)
        tell("report", None, 1)
        if path is not None:
            made = gs.report(
                models, None, tokens=TOKENS, title="gossamer demo: digits", training={"RigL": story.log},
                curves={"loss": story.losses}, pruning={"gradual, on the way": story.pruned},
                accuracy={row.name: row.accuracy for row in found}, show_progress=False,
            )  # fmt: skip
            made.page(section(found)).save(Path(path))
    return found


def plain(found: list[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain values, ready for JSON."""
    base = found[0]
    return [{**asdict(r), "gain": {t: base.micros[t] / r.micros[t] for t in TOKENS}} for r in found]
