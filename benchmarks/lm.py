"""Sparse training of a language model: every method, dense nets, and smaller dense nets, on one GPU.

    python benchmarks/lm.py train --plan asv:key code:taught:0      quality, many trainings at once
    python benchmarks/lm.py times                                   ms per step and inference time, each alone
    python benchmarks/lm.py table                                   table and picture of the docs from the results

A byte-level GPT of 6 x 512 (19 million weights), AdamW 1e-3 with a warm-up and a cosine to 0, bfloat16 autocast, 64 x
256 bytes a step. Choices are made on the King James Bible ("kjv"), figures reported on the American Standard Version
("asv"). Nets that train on Python sources ("code") are chosen by one package and reported on another. What is trained
stands in src/gossamer/app/bench/lm_*.py; `gossamer bench lm --text book.txt` trains small nets in the same way.
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
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.lm_plans import PLANS  # noqa: E402
from gossamer.app.bench.lm_cases import Case  # noqa: E402
from gossamer.app.bench.lm_model import Text, text_of  # noqa: E402
from gossamer.app.bench.lm_train import Setting, train  # noqa: E402

RESULTS = Path(__file__).with_name("results") / "lm.json"
_TEACHER = "dense"


class Job(NamedTuple):
    """One training, in a process of its own."""

    case: Case
    seed: int
    setting: Setting
    teacher: int
    text: str
    folder: Path
    end: float

    def taught_by(self) -> Path:
        """Where the trained dense net is kept."""
        return self.folder / f"{Path(self.text).stem}-{self.teacher or self.setting.steps}-{self.seed}.pt"


def work(job: Job) -> dict[str, Any]:
    """Train one case; an error is a result too."""
    case, setting, teacher = job.case, job.setting, job.taught_by()
    torch._dynamo.config.recompile_limit = 64  # a process trains nets of many widths
    try:
        dense = None
        if case.distil or case.trained:
            while not teacher.exists() and time.time() < job.end:
                time.sleep(0.5)
            dense = torch.load(teacher, map_location=setting.device, weights_only=True)
        text = Text(*torch.load(job.folder / f"{Path(job.text).stem}.text", mmap=True, weights_only=True))
        found, model = train(case, setting, text, job.seed, dense, job.end)
        if case.name == _TEACHER and found["steps"] == setting.steps:
            save(model.state_dict(), teacher)
    except Exception:
        return {"name": case.name, "seed": job.seed, "error": traceback.format_exc()[-1500:]}
    return {"text": Path(job.text).stem, "of": setting.steps, "rate": case.rate, **found}


def jobs_of(name: str, text: str, setting: Setting, folder: Path, end: float) -> list[Job]:
    """Return the trainings of a plan: "name", "text:name" or "text:name:seeds", such as "code:taught:0,1"."""
    *texts, name, seeds = name.split(":") if name.count(":") == 2 else (*name.split(":"), "")
    plan, text = PLANS[name], texts[0] if texts else text
    wanted = [int(seed) for seed in seeds.split(",")] if seeds else range(plan.seeds)
    setting = replace(setting, steps=plan.steps)
    return [Job(case, seed, setting, plan.teacher, text, folder, end) for seed in wanted for case in plan.cases]


def quality(
    plans: Sequence[str], setting: Setting, text: str, folder: Path, out: Path, workers: int = 12, seconds: float = 1e9
) -> None:
    """Train the cases of plans, several at once, in the order of the plans; results are written as they come.

    Parameters
    ----------
    plans, setting, text
        What is trained.
    folder
        For texts and trained dense nets. Other processes may share it.
    out, workers, seconds
        The file of results, trainings at once, and when all of them end.
    """
    end = time.time() + seconds
    rows: list[dict[str, Any]] = []
    jobs = [job for name in plans for job in jobs_of(name, text, setting, folder, end)]
    for each in {job.text for job in jobs}:
        save(list(text_of(each)), folder / f"{Path(each).stem}.text")
    with multiprocessing.get_context("spawn").Pool(min(workers, len(jobs))) as pool:
        for row in pool.imap_unordered(work, jobs):
            rows.append(row)
            out.write_text(json.dumps(rows, indent=1) + "\n")
            print(row.get("error") or {k: v for k, v in row.items() if k != "curve"}, flush=True)


def save(what: Any, path: Path) -> None:
    """Write a file that is complete as soon as it is there."""
    part = path.with_name(f"{os.getpid()}.part")
    torch.save(what, part)
    part.rename(path)


def main() -> None:
    """Read the arguments and run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "times", "table"])
    parser.add_argument("--text", default="kjv", help='a file, or "kjv", "asv" or "code"')
    plans = f"name, text:name or text:name:seeds, of {', '.join(PLANS)}"
    parser.add_argument("--plan", nargs="+", default=["key"], help=plans)
    parser.add_argument("--compile", action="store_true", help="compile the blocks of the nets")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop all trainings after this time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, help="keep texts and trained dense nets here, for other runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.part == "train":
        setting = Setting(device=arguments.device, looks=3, compiled=arguments.compile)
        with tempfile.TemporaryDirectory() as own:
            folder = arguments.folder or Path(own)
            quality(
                arguments.plan, setting, arguments.text, folder, arguments.out, arguments.workers, arguments.seconds
            )
    elif arguments.part == "times":
        from benchmarks.lm_times import times

        arguments.out.write_text(json.dumps(times(arguments.device), indent=1) + "\n")
    else:
        from benchmarks.lm_tables import publish

        publish()


if __name__ == "__main__":
    main()
