"""Pruning without and with training: which method keeps how much, and how long it takes.

Quick needs scikit-learn alone: a small trained network, and the time of two methods. The rest prunes a really
pretrained transformer; what that needs is in gossamer's extra `bench`.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.table import Table
from torch import nn

import gossamer as gs
from gossamer import prune
from gossamer.app.bench.pruning_data import MiniLM, digits, embed, embedding, pairs, small_cnn
from gossamer.app.bench.show import rows_of
from gossamer.progress import progress

say = logging.getLogger("gossamer.app.bench").info

METHODS: dict[str, Any] = {
    "magnitude": "magnitude",
    "wanda": "wanda",
    "sparsegpt": "sparsegpt",
    "sparsegpt, as published": prune.SparseGPT(target="layer"),
    "obs, hessian": prune.OBS("hessian"),
    "obs, fisher": prune.OBS("fisher"),
}
PLAN = {
    "50%": ["magnitude", "wanda", "sparsegpt, as published", "sparsegpt", "obs, hessian"],
    "60%": ["magnitude", "wanda", "sparsegpt, as published", "sparsegpt"],
    "70%": ["magnitude", "wanda", "sparsegpt, as published", "sparsegpt", "obs, hessian"],
    "2:4": ["magnitude", "wanda", "sparsegpt, as published", "sparsegpt", "obs, hessian", "obs, fisher"],
    "64:2:8": ["magnitude", "wanda", "sparsegpt, as published", "sparsegpt", "obs, hessian", "obs, fisher"],
}
TEST, FRESH = slice(0, 400), slice(400, 800)  # no choice was ever made by looking at the fresh ones
CALIBRATION, TRAINING, CROWD = slice(1000, 1128), slice(2000, 12000), slice(12000, 14600)


# -- a really pretrained transformer


class Judge:
    """How near a pruned MiniLM is to the dense one: cosine of the embeddings, and verses found in the other Bible."""

    def __init__(self, test: slice = TEST, more: slice | None = None) -> None:
        self.bed = MiniLM()
        self.dense = self.bed.model()
        chosen = pairs()[test]
        self.one = self.bed.batches([a for a, _ in chosen], 50)
        crowd = chosen + (pairs()[more] if more else [])  # among whose other halves the right one has to be found
        self.other = self.bed.batches([b for _, b in crowd], 50)
        self.target = embed(self.dense, self.one)
        self.calibration = self.bed.batches([a for a, _ in pairs()[CALIBRATION]], 16)

    def __call__(self, model: nn.Module) -> dict[str, float]:
        here, there = embed(model, self.one), embed(model, self.other)
        found = (here @ there.T).argmax(1) == torch.arange(len(here))
        return {"cosine": float((here * self.target).sum(1).mean()), "found": float(found.float().mean())}


def quality() -> dict[str, Any]:
    """Every method at the same sparsity, without any training."""
    judge = Judge()
    rows = []
    dense = judge(judge.dense)
    for how, methods in PLAN.items():
        for name in methods:
            model = copy.deepcopy(judge.dense)
            report = prune.oneshot(model, how, judge.calibration, method=METHODS[name])
            row = {"pattern": how, "method": name, "sparsity": report.sparsity_of_taken, "error": report.error}
            row |= {"seconds": report.seconds, **judge(gs.densify_(model))}
            rows.append(row)
            say(f"{how:>7} {name:14} cosine {row['cosine']:.3f} found {row['found']:.3f} ({row['seconds']:.0f} s)")
    sentences = CALIBRATION.stop - CALIBRATION.start
    return {"dense": dense, "rows": rows, "test": TEST.stop, "calibration": sentences}


def recovery(steps: int = 240, size: int = 16) -> dict[str, Any]:
    """75 % V:N:M, second order, then a short training towards the dense model's hidden states and embeddings."""
    judge = Judge(FRESH, CROWD)
    model = copy.deepcopy(judge.dense)
    training = [s for pair in pairs()[TRAINING] for s in pair]
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 2e-4)
    done = 0

    def train_step(model: nn.Module, distill: prune.Distill) -> float:
        nonlocal done
        for group in optimizer.param_groups:
            group["lr"] = 2e-4 * min(1.0, (done + 1) / 20) * (1 - done / steps)
        done += 1
        numbers = torch.randint(len(training), (size,), generator=draw).tolist()
        (batch,) = judge.bed.batches([training[i] for i in numbers], size)
        mine = model(**batch, output_hidden_states=True)
        assert distill.teacher is not None
        with torch.no_grad():
            theirs = distill.teacher(**batch, output_hidden_states=True)
        loss = prune.distill_hidden(mine.hidden_states, theirs.hidden_states, batch["attention_mask"])
        loss = loss + 1 - (embedding(mine, batch) * embedding(theirs, batch)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done % 20 == 0:
            say(f"step {done}: loss {float(loss.detach()):.4f}")
        return float(loss.detach())

    seen: dict[str, dict[str, float]] = {}

    def look(name: str) -> None:
        seen[name] = judge(model)
        say(f"{name}, {done} steps: {seen[name]}")

    look("dense")
    report = prune.gradual(
        model, "64:2:8", train_step, steps=steps, stages=2, recover=0.75, method=prune.OBS("hessian"),
        calibration=judge.calibration, teacher=judge.dense, on_prune=lambda stage, _: look("pruned") if stage else None,
    )  # fmt: skip
    look("trained")
    masks = all(
        torch.equal(gs.VNM(64, 2, 8).select(p.mask().float()), p.mask())
        for p in gs.nn.sparse_parameters(model).values()
    )
    return {
        "pattern": "64:2:8", "towards": "hidden states and embeddings", "steps": steps, "batch": size,
        "sparsity": report.sparsity_of_taken, "seconds": report.seconds,
        **seen, "lost": 1 - seen["trained"]["found"] / seen["dense"]["found"], "valid": masks,
        "crowd": TEST.stop + CROWD.stop - CROWD.start, "stages": [h["patterns"] for h in report.history],
    }  # fmt: skip


# -- a really trained convolutional network


def cnn() -> dict[str, Any]:
    """A small network trained on scikit-learn's digits: share of test images it gets right."""
    train, test = digits()
    dense = small_cnn(*train)
    calibration = [train[0][:512]]

    def accuracy(model: nn.Module) -> float:
        return float((model(test[0]).argmax(1) == test[1]).float().mean())

    rows = []
    with torch.no_grad():
        whole = accuracy(dense)
    for how in ("2:4", "70%", "80%", "90%"):
        for name in ("magnitude", "wanda", "sparsegpt", "obs, hessian"):
            model = copy.deepcopy(dense)
            report = prune.oneshot(model, how, calibration, method=METHODS[name])
            with torch.no_grad():
                rows.append({"pattern": how, "method": name, "accuracy": accuracy(model), "error": report.error})
            say(f"{how:>7} {name:14} accuracy {rows[-1]['accuracy']:.3f} error {rows[-1]['error']:.4f}")
    return {"dense": whole, "rows": rows}


# -- how long it takes


def speed(n: int = 4096, rows: int = 768) -> dict[str, Any]:
    """CPU time on one thread, which others on a shared machine hardly touch; and elapsed time on all, where they do."""
    threads = torch.get_num_threads()
    found: dict[str, Any] = {"threads": threads, "elapsed": {"sparsegpt": _sparsegpt(n), "fisher": _fisher(rows)}}
    torch.set_num_threads(1)
    try:
        found["cpu"] = {"sparsegpt": _sparsegpt(n), "fisher": _fisher(rows)}
    finally:
        torch.set_num_threads(threads)
    return found


def _timed(function: Callable[[], Any]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    function()
    return clock() - start


def _sparsegpt(n: int = 4096, rounds: int = 4) -> dict[str, float]:
    x = torch.randn(2 * n, n) @ (torch.eye(n) + 0.3 * torch.randn(n, n) / n**0.5)
    gram = prune.Gram((x.T @ x)[None], len(x))
    weight, a = torch.randn(n, n), torch.randn(n, n)
    known, method, pattern = prune.Known(gram), prune.SparseGPT(), gs.NM(2, 4)
    products, runs = [], []
    for _ in range(rounds):
        products.append(_timed(lambda: torch.mm(a, a)))
        runs.append(_timed(lambda: method.prune(weight, pattern, known)))
    # as published: Cholesky, inverse, Cholesky (n^3 / 3 + 2 n^3 / 3 + n^3 / 3), then rows n^2 for the lazy updates
    flops = 4 / 3 * n**3 + n**3
    reference = min(products) * flops / (2 * n**3)
    say(f"SparseGPT {n}x{n} 2:4: {min(runs):.2f} s, its flops as products {reference:.2f} s")
    ratio = min(runs) / reference
    return {"size": n, "seconds": min(runs), "product": min(products), "reference": reference, "ratio": ratio}


def _fisher(rows: int = 768, columns: int = 3072, count: int = 256) -> dict[str, float]:
    weight, grads = torch.randn(rows, columns), [torch.randn(rows, columns) for _ in range(16)]
    method, pattern = prune.OBS(), gs.VNM(64, 2, 8)
    block = method.collector(pattern, rows, columns, count).block

    def run() -> Any:
        fisher = method.collector(pattern, rows, columns, count)
        for number in range(count):
            fisher.add(grads[number % len(grads)])
        return method.prune(weight, pattern, prune.Known(gradients=fisher))

    seconds = min(_timed(run) for _ in range(2))
    say(f"second-order 64:2:8 of {rows}x{columns}, {count} gradients: {seconds:.1f} s")
    return {"seconds": seconds, "gradients": count, "block": block}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"speed": speed, "cnn": cnn, "quality": quality, "recovery": recovery}
QUICK: dict[str, Callable[[], dict[str, Any]]] = {"speed": lambda: speed(1024, 192), "cnn": cnn}


def run(quick: bool = True, parts: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure: a small network and smaller matrices if `quick`, else all, about ten minutes on two quiet cores."""
    torch.manual_seed(0)
    chosen = QUICK if quick else PARTS
    found: dict[str, Any] = {"torch": torch.__version__}
    with progress("pruning:", len(parts or chosen)) as tell:
        for name in parts or chosen:
            tell(name, None, 0)
            found[name] = chosen[name]()
            tell(name, None, 1)
    return found


def tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield what a user wants to see: what each method keeps, and how long it takes."""
    if part := results.get("cnn"):
        yield _by_method(
            f"digits, a small CNN, no training: accuracy (dense {part['dense']:.1%})", part["rows"], "accuracy"
        )
    if part := results.get("quality"):
        for what, dense in (("cosine", 1.0), ("found", part["dense"]["found"])):
            yield _by_method(f"MiniLM, no training: {what} (dense {dense:.1%})", part["rows"], what)
    if part := results.get("recovery"):
        yield rows_of(
            f"MiniLM at {part['pattern']}, {part['steps']} steps of training",
            [{"": name, **part[name]} for name in ("dense", "pruned", "trained")],
        )
    if part := results.get("speed"):
        rows = []
        clocks = {"CPU time, one thread": "cpu", f"elapsed, threads: {part['threads']}": "elapsed"}
        for clock, found in ((words, part[name]) for words, name in clocks.items()):
            gpt, fisher = found["sparsegpt"], found["fisher"]
            rows += [
                {"what": f"SparseGPT {gpt['size']}x{gpt['size']} to 2:4", "clock": clock, "seconds": gpt["seconds"],
                 "as products": gpt["reference"]},
                {"what": f"OBS by Fisher to 64:2:8, {fisher['gradients']} gradients", "clock": clock,
                 "seconds": fisher["seconds"]},
            ]  # fmt: skip
        yield rows_of("how long it takes; as products: the published algorithm's operations as matrix products", rows)


def _by_method(title: str, rows: list[dict[str, Any]], what: str) -> Table:
    patterns = dict.fromkeys(r["pattern"] for r in rows)
    cells = {(r["pattern"], r["method"]): f"{r[what]:.1%}" for r in rows}
    methods = list(dict.fromkeys(r["method"] for r in rows))
    return rows_of(title, [{"pattern": p} | {m: cells.get((p, m), "") for m in methods} for p in patterns])
