"""What the demo does: all-MiniLM-L6-v2 as published, the same in 2:4, and in 1:4 with a little training."""

from __future__ import annotations

import contextlib
import copy
import io
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer import prune
from gossamer.app.bench.pruning import CALIBRATION, TRAINING, Judge
from gossamer.app.bench.pruning_data import embedding, pairs
from gossamer.app.demo.show import SIZES, Row
from gossamer.progress import Tell
from gossamer.report.timing import interleaved

TEST = slice(0, 100)  # verses; none of them is used to prune or to train
VERSES = 64  # to calibrate with
STEPS, BATCH, RATE = 24, 16, 2e-4
SECONDS = 0.5  # of measuring, for each model and size
PARTS = 3 + STEPS + 3
DENSE, INT8, HALF, QUARTER = "dense float32", "dense int8", "2:4 int8", "1:4 int8, trained"


@dataclass
class Story:
    """The models, who judges them, and the loss while one was trained."""

    judge: Judge
    models: dict[str, nn.Module] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def tell_the_story(tell: Tell) -> Story:
    """Load the model, prune it in two ways, and train the sparser one."""
    tell("loading all-MiniLM-L6-v2 and verses of two Bibles", None, 0)
    story = Story(Judge(TEST))
    dense = story.judge.dense
    verses = [verse for verse, _ in pairs()[CALIBRATION]][:VERSES]
    batches = story.judge.bed.batches(verses, BATCH)
    tell("pruning to 2:4 by SparseGPT", None, 1)
    half = pruned(dense, "2:4", batches)
    tell("pruning to 1:4 by SparseGPT", None, 1)
    quarter = pruned(dense, "1:4", batches)
    tell("training 1:4 towards the dense model", None, 1)
    story.losses = train(quarter, story.judge, tell)
    story.models = {DENSE: dense, INT8: copy.deepcopy(dense), HALF: half, QUARTER: quarter}
    return story


def pruned(dense: nn.Module, pattern: str, batches: list[dict[str, Tensor]]) -> nn.Module:
    """Return a pruned copy; SparseGPT knows that its values will be rounded to eight bits."""
    model = copy.deepcopy(dense)
    prune.oneshot(model, pattern, batches, method=prune.SparseGPT(bits=8), show_progress=False)
    return model


def train(model: nn.Module, judge: Judge, tell: Tell) -> list[float]:
    """Train in an ordinary loop: pruned values stay zero, and nothing here knows of it."""
    texts = [verse for pair in pairs()[TRAINING] for verse in pair]
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=max(STEPS, 4), pct_start=0.2)
    losses = []
    for step in range(STEPS):
        chosen = torch.randint(len(texts), (BATCH,), generator=draw).tolist()
        (batch,) = judge.bed.batches([texts[i] for i in chosen], BATCH)
        losses.append(step_of(model, judge.dense, optimizer, batch))
        rate.step()
        tell(f"training 1:4 towards the dense model, step {step + 1} of {STEPS}", None, 1)
    return losses


def step_of(model: nn.Module, teacher: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> float:
    """Make one training step: the teacher's hidden states and embeddings are the target."""
    mine = model(**batch, output_hidden_states=True)
    with torch.no_grad():
        theirs = teacher(**batch, output_hidden_states=True)
    loss = prune.distill_hidden(mine.hidden_states, theirs.hidden_states, batch["attention_mask"])
    loss = loss + 1 - (embedding(mine, batch) * embedding(theirs, batch)).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def example(batch: int, length: int) -> dict[str, Tensor]:
    """Return random tokens: values make no difference to the time."""
    tokens = torch.randint(100, 1000, (batch, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def small(name: str, model: nn.Module) -> nn.Module:
    """Round to int8 and let pack_ measure at the first size; its own table would be one too many here."""
    if name == DENSE:
        return model
    gs.quantize_(model, "int8")
    with contextlib.redirect_stdout(io.StringIO()):
        gs.pack_(model, example(*SIZES[0]), show_progress=False)
    return model


def rows(models: dict[str, nn.Module], story: Story) -> list[Row]:
    """Measure everything that the table shows; models take turns, and the fastest run of each counts."""
    times = {}
    with torch.inference_mode():
        for size in SIZES:
            calls = {name: partial(model, **example(*size)) for name, model in models.items()}
            times[size] = interleaved(calls, SECONDS)
    found = []
    for name, model in models.items():
        about, quality = gs.summary(model), story.judge(model)
        speeds = {size: 1e3 * times[size][name] for size in SIZES}
        found.append(Row(name, zeros(model), quality["cosine"], quality["found"], about.bytes / 1e6, speeds))
    return found


def zeros(model: nn.Module) -> float:
    """Return the share of zeros in the weights of linear layers, in whatever format they are."""
    layers = gs.report(model, None, measure=False, show_progress=False).layers
    return sum(x.sparsity * x.size for x in layers) / sum(x.size for x in layers)
