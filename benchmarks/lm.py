"""Sparse training of a language model: every method, dense nets, and smaller dense nets, on one GPU.

    python benchmarks/lm.py train --text asv --plan key others      quality, many trainings at once
    python benchmarks/lm.py times                                   ms per step and inference time, each alone
    python benchmarks/lm.py table                                   table and picture of the docs from the results

A byte-level GPT of 6 x 512 (19 million weights), AdamW 1e-3 with a warm-up and a cosine to 0, bfloat16 autocast, 64 x
256 bytes a step. Choices are made on the King James Bible ("kjv"), figures reported on the American Standard Version
("asv"). What is trained stands in src/gossamer/app/bench/lm_*.py; `gossamer bench lm --text book.txt` trains small nets
in the same way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.lm_plans import PLANS, Plan  # noqa: E402
from gossamer.app.bench.lm_cases import Case  # noqa: E402
from gossamer.app.bench.lm_model import text_of  # noqa: E402
from gossamer.app.bench.lm_train import Setting, train  # noqa: E402

RESULTS = Path(__file__).with_name("results") / "lm.json"
_TEACHER = "dense"


def work(job: tuple[Case, int, Setting, int, str, Path, float]) -> dict[str, Any]:
    """Train one case in a process of its own; an error is a result too."""
    case, seed, setting, taught, text, folder, end = job
    teacher = folder / f"{taught or setting.steps}-{seed}.pt"
    try:
        dense = None
        if case.distil or case.trained:
            while not teacher.exists() and time.time() < end:
                time.sleep(0.5)
            dense = torch.load(teacher, map_location=setting.device, weights_only=True)
        found, model = train(case, setting, text_of(text), seed, dense, end)
        if case.name == _TEACHER and found["steps"] == setting.steps:
            part = folder / f"{os.getpid()}.part"
            torch.save(model.state_dict(), part)
            part.rename(teacher)
    except Exception:
        return {"name": case.name, "seed": seed, "error": traceback.format_exc()[-1500:]}
    return {"of": setting.steps, "rate": case.rate, **found}


def quality(
    plans: Sequence[Plan], setting: Setting, text: str, out: Path, workers: int = 12, seconds: float = 1e9
) -> None:
    """Train the cases of plans, several at once, in the order of the plans; results are written as they come."""
    end = time.time() + seconds
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (case, seed, replace(setting, steps=plan.steps), plan.teacher, text, Path(folder), end)
            for plan in plans for seed in range(plan.seeds) for case in plan.cases
        ]  # fmt: skip
        with multiprocessing.get_context("spawn").Pool(min(workers, len(jobs))) as pool:
            for row in pool.imap_unordered(work, jobs):
                rows.append({"text": Path(text).stem, **row})
                out.write_text(json.dumps(rows, indent=1) + "\n")
                print(row.get("error") or {k: v for k, v in row.items() if k != "curve"}, flush=True)


def main() -> None:
    """Read the arguments and run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "times", "table"])
    parser.add_argument("--text", default="kjv", help='a file, or "kjv" or "asv"')
    parser.add_argument("--plan", choices=list(PLANS), nargs="+", default=["key"])
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop all trainings after this time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.part == "train":
        plans = [PLANS[name] for name in arguments.plan]
        quality(
            plans, Setting(device=arguments.device), arguments.text, arguments.out, arguments.workers, arguments.seconds
        )
    elif arguments.part == "times":
        from benchmarks.lm_times import times

        arguments.out.write_text(json.dumps(times(arguments.device), indent=1) + "\n")
    else:
        from benchmarks.lm_tables import publish

        publish()


if __name__ == "__main__":
    main()
