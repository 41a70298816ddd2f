"""Models and recipes of the training benchmark. In a task every method, the dense one too, has the same recipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossamer as gs
from benchmarks.training_data import Split

METHODS: dict[str, tuple[type[gs.train.Method], dict[str, Any]]] = {
    "dense": (gs.train.Null, {}),
    "Static": (gs.train.Static, {}),
    "SET": (gs.train.SET, {}),
    "RigL": (gs.train.RigL, {}),
    "SRigL": (gs.train.SRigL, {"gamma": 0.95}),
    "SRigL, no ablation": (gs.train.SRigL, {"ablation": False}),
}


def mlp(*widths: int, first: str = "kaiming") -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    return kaiming(model) if first == "kaiming" else model


def kaiming(model: nn.Module) -> nn.Module:
    """First weights that keep the scale of activations through ReLUs; torch's own shrink it, which costs epochs."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return model


def cnn() -> nn.Module:
    """Three convolutions with batch norm on 28 x 28 images, then two linear layers."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 28))]
    for a, b in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return kaiming(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)))


class Transformer(nn.Module):
    """Seven bands of four rows are seven tokens, 96 wide, through two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(112, 96), nn.Parameter(torch.randn(7, 96) * 0.1)
        block = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x.view(-1, 7, 112)) + self.place)).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP 784-512-256-10": lambda: mlp(784, 512, 256, 10),
    "MLP 784-512-256-10, torch's first weights": lambda: mlp(784, 512, 256, 10, first="torch"),
    "MLP 64-256-256-10": lambda: mlp(64, 256, 256, 10),
    "CNN": cnn,
    "transformer": Transformer,
}


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    data: str
    model: str
    epochs: int
    every: int
    lr: float
    optimizer: str = "sgd"
    batch: int = 128
    decay: float = 1e-4
    smoothing: float = 0.1
    shift: int = 0  # images are shifted by up to so many pixels
    fraction: float = 0.3


TASKS = {
    "mnist5k-mlp": Task("mnist5k", "MLP 784-512-256-10", 60, 16, 0.1, shift=2),
    "mnist5k-mlp, 5 epochs": Task("mnist5k", "MLP 784-512-256-10", 5, 10, 0.1, batch=16),
    "mnist5k-cnn": Task("mnist5k", "CNN", 60, 16, 0.1, shift=2),
    "mnist5k-transformer": Task("mnist5k", "transformer", 60, 16, 4e-3, "adamw", batch=64, shift=2),
    "digits-mlp": Task("digits", "MLP 64-256-256-10", 50, 10, 0.1),
}
#: Only to choose by (benchmarks/training_choice.py): models whose author left the first weights to torch.
MORE = {
    "torch's mlp": replace(TASKS["mnist5k-mlp"], model="MLP 784-512-256-10, torch's first weights"),
    "torch's mlp, 5 epochs": replace(TASKS["mnist5k-mlp, 5 epochs"], model="MLP 784-512-256-10, torch's first weights"),
}


def shifted(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to ``most`` pixels in both directions; what comes in is black."""
    if not most:
        return x
    n, rows, columns = x.shape
    views = F.pad(x, (most,) * 4).unfold(1, rows, 1).unfold(2, columns, 1)
    down, right = torch.randint(2 * most + 1, (2, n), generator=generator).to(x.device)
    return views[torch.arange(n, device=x.device), down, right]


def train(
    task: Task, data: Split, name: str, sparsity: float, seed: int, device: str = "cpu", **options: Any
) -> dict[str, Any]:
    """Train once; accuracy in percent of the last model, the method's log, seconds."""
    start = time.perf_counter()
    kind, own = METHODS[name]
    x, y, judge_x, judge_y = (part.to(device) for part in data)
    torch.manual_seed(seed)
    model = MODELS[task.model]().to(device)
    if task.optimizer == "sgd":
        optimizer: Any = torch.optim.SGD(
            model.parameters(), task.lr, momentum=0.9, weight_decay=task.decay, nesterov=True
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), task.lr, weight_decay=task.decay)
    steps = task.epochs * -(-len(y) // task.batch)
    shared = {"every": task.every, "until": 0.75 * steps, "seed": seed, "fraction": task.fraction}
    method = kind(model, optimizer, sparsity, **{**shared, **own, **options})
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.lr, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(task.epochs):
        for batch in torch.randperm(len(y), generator=generator).split(task.batch):
            batch = batch.to(device)
            optimizer.zero_grad()
            logits = model(shifted(x[batch], task.shift, generator))
            F.cross_entropy(logits, y[batch], label_smoothing=task.smoothing).backward()
            optimizer.step()
            method.step()
            scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = 100 * (model(judge_x).argmax(1) == judge_y).float().mean().item()
    return {"accuracy": accuracy, "log": method.log(), "seconds": time.perf_counter() - start}
