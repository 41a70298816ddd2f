"""HardConcrete with a wanted sparsity, beside GMP and Movement: MNIST images and a small language model, on a CPU.

    python benchmarks/gates.py                 what the docs report, and what the default learning rate was chosen by
    python benchmarks/gates.py --part report

Images: the MLP of ``benchmarks/training.py`` ("mnist5k-mlp, 5 epochs"), accuracy. Language: the byte-level GPT of
``gossamer bench lm``, three blocks of 128, 400 steps of 16 x 64 bytes at 90 %, bits per byte. To choose, images are
judged by the validation set, and the text is the King James Bible; figures are reported for the test set and for the
American Standard Version. One thread. Writes ``benchmarks/results/gates.json`` after each training.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402 - found by the lines above
from benchmarks import training_tasks as tasks  # noqa: E402
from benchmarks.training_data import load  # noqa: E402
from gossamer.app.bench.lm_cases import Case  # noqa: E402
from gossamer.app.bench.lm_model import Text, text_of  # noqa: E402
from gossamer.app.bench.lm_train import Setting, train  # noqa: E402

RESULT = HERE / "results" / "gates.json"
SETTING = Setting(steps=400, batch=16, context=64, layers=3, device="cpu", looks=1)
TASK = "mnist5k-mlp, 5 epochs"
#: Learning rates of the gates to choose from, times the square root of the steps until masks are fixed.
RATES = (0.5, 2.0, 8.0)
METHODS: dict[str, Any] = {"GMP": gs.train.GMP, "Movement": gs.train.Movement, "HardConcrete": gs.train.HardConcrete}


def images(name: str, sparsity: float, seed: int, validation: bool, rate: float | None = None) -> dict[str, Any]:
    """Return the accuracy of one training."""
    data, task = load("mnist5k", validation=validation), tasks.TASKS[TASK]
    steps = 0.75 * task.epochs * -(-len(data.y) // task.batch)
    tasks.METHODS.setdefault(name, (METHODS.get(name, gs.train.Null), {}))
    options = {} if rate is None else {"lr": rate / int(steps) ** 0.5}
    found = tasks.train(task, data, name, sparsity, seed, **options)
    return {"accuracy": round(found["accuracy"], 2), "density": round(found["log"].get("density", 1.0), 5)}


def language(name: str, seed: int, text: str, rate: float | None = None) -> dict[str, Any]:
    """Return the bits per byte of one training."""
    options: dict[str, Any] = {} if rate is None else {"lr": rate / (0.75 * SETTING.steps) ** 0.5}
    how, options = ("", {}) if name == "dense" else ("90%", {"until": 0.75, **options})
    train_on, held, _ = text_of(text)
    case = Case(name, how and name, how, options, width=128)
    found, _ = train(case, SETTING, Text(train_on, held[:100_000]), seed)
    return {"bits": found["bits"], "weights": found["weights"]}


def rows(part: str) -> Iterator[dict[str, Any]]:
    """Train everything."""
    if part != "report":
        for rate in RATES:
            one = {"part": "choose", "method": "HardConcrete", "rate": rate, "seed": 0}
            yield {"task": "language", **one, **language("HardConcrete", 0, "kjv", rate)}
            for sparsity in (0.9, 0.98):
                found = images("HardConcrete", sparsity, 0, True, rate)
                yield {"task": "images", "sparsity": sparsity, **one, **found}
    if part != "choose":
        for seed in range(2):
            for name in ("dense", *METHODS):
                one = {"part": "report", "method": name, "seed": seed}
                yield {"task": "language", **one, **language(name, seed, "asv")}
                for sparsity in (0.9, 0.98)[: 1 if name == "dense" else 2]:
                    yield {"task": "images", "sparsity": sparsity, **one, **images(name, sparsity, seed, False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("all", "choose", "report"), default="all")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done: list[dict[str, Any]] = []
    for row in rows(arguments.part):
        done.append(row)
        print(row, flush=True)
        machine = platform.processor() or platform.machine()
        arguments.out.write_text(json.dumps({"machine": machine, "rows": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
