"""Every operator of torch's own database that takes a float tensor, with sparse inputs: right, and how?

    python benchmarks/coverage.py                    all of it: writes the table of the docs and results/coverage.json
    python benchmarks/coverage.py --op 'linalg.*'    only some operators, and nothing is written

What "right" means stands in ``opinfo.py``. Each operator runs in a process of its own, so that one that crashes or
hangs is counted as wrong, and the others go on. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: the processes are the parallelism
ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # not this folder: torch imports numba, which imports a package with the name of this file

import click  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.opinfo import FORMATS, NOTES, Record, check, operators  # noqa: E402 - found by the line above

TIMEOUT = 120  # seconds an operator may take
RESULTS = ROOT / "benchmarks" / "results" / "coverage.json"
PAGE = ROOT / "docs" / "explanation" / "coverage-table.md"
HOW = {
    "native": "functions of gossamer: they work on the stored entries, or give a result that is dense by nature",
    "mixed": "some calls native, others (shapes, options) by fallback: `native / all`",
    "storage": "torch, on the dense tensor that Masked stores anyway: no copy, no warning",
    "fallback": "torch, on dense copies",
    "error": "torch refuses these calls too, with the same error",
    "skipped": "nothing to call; the note says why",
}
Results = dict[str, dict[str, Record]]


# -- running


def run(names: list[str], formats: list[str], jobs: int) -> Iterator[tuple[str, dict[str, Record]]]:
    """Check operators, each in a process of its own, a few at a time."""
    context = multiprocessing.get_context("fork")  # the database is loaded once
    waiting = list(reversed(names))
    running: dict[str, tuple[Any, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(name, formats, there), daemon=True)
            process.start()
            there.close()
            running[name] = (process, here, time.monotonic())
        multiprocessing.connection.wait([pipe for _, pipe, _ in running.values()], timeout=1)
        for name, (process, pipe, since) in list(running.items()):
            records = _collect(process, pipe, since, formats)
            if records is not None:
                del running[name]
                yield name, records


def _work(name: str, formats: list[str], pipe: Any) -> None:
    torch.set_num_threads(1)
    op = next(op for op in operators() if op.full_name == name)
    pipe.send({format: check(op, format) for format in formats})


def _collect(process: Any, pipe: Any, since: float, formats: list[str]) -> dict[str, Record] | None:
    """Return what a process found; None if it still works."""
    if pipe.poll():
        try:
            found: dict[str, Record] = pipe.recv()
            process.join()
            return found
        except EOFError:
            process.join()
            return {format: Record(wrong=[f"crashed with exit code {process.exitcode}"]) for format in formats}
    if time.monotonic() - since > TIMEOUT:
        process.kill()
        process.join()
        return {format: Record(wrong=[f"took more than {TIMEOUT} s"]) for format in formats}
    return None


# -- what it comes to


def totals(results: Results, format: str) -> Counter[str]:
    """Count operators by how they ran, and the wrong ones."""
    counts = Counter(records[format].how for records in results.values())
    counts["wrong"] = sum(bool(records[format].wrong) for records in results.values())
    counts["calls"] = sum(records[format].calls + records[format].errors for records in results.values())
    counts["gradients"] = sum(records[format].gradients for records in results.values())
    return counts


def summary(results: Results, formats: list[str]) -> Table:
    """Counts for the terminal."""
    table = Table(title=f"{len(results)} operators of torch {torch.__version__}")
    columns = [*HOW, "wrong", "calls", "gradients"]
    for name in ("format", *columns):
        table.add_column(name, justify="left" if name == "format" else "right")
    for format in formats:
        counts = totals(results, format)
        table.add_row(format, *(f"{counts[c]:,}" for c in columns))
    return table


def page(results: Results) -> str:
    """Return the table of the docs."""
    lines = [
        "<!-- Made by `python benchmarks/coverage.py`: do not edit. -->",
        "# Coverage: every operator",
        "",
        f"Made by `benchmarks/coverage.py` with gossamer {_version()} and torch {torch.__version__.split('+')[0]}: "
        f"{len(results)} operators of torch's own database, that is all of it that take a float type.",
        "",
        "| format | " + " | ".join([*HOW, "wrong", "calls compared", "gradients compared"]) + " |",
        "|---|" + "--:|" * (len(HOW) + 3),
    ]
    for format in FORMATS:
        counts = totals(results, format)
        numbers = [counts[c] for c in (*HOW, "wrong", "calls", "gradients")]
        lines.append(f"| {FORMATS[format]} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    lines += ["", *(f"- **{how}**: {meaning}" for how, meaning in HOW.items()), ""]
    lines += ["| operator | " + " | ".join(FORMATS) + " | gradients | note |", "|---|" + "---|" * (len(FORMATS) + 2)]
    for name, records in results.items():
        cells = [_cell(records[format]) for format in FORMATS]
        graded = "yes" if any(r.gradients for r in records.values()) else "none in torch"
        lines.append(f"| `{name}` | " + " | ".join(cells) + f" | {graded} | {_note(name, records)} |")
    return "\n".join(lines) + "\n"


def _version() -> str:
    return importlib.metadata.version("gossamer")


def _cell(record: Record) -> str:
    if record.wrong:
        return f"**wrong** ({len(record.wrong)})"
    return f"{record.how} {record.native} / {record.calls}" if record.how == "mixed" else record.how


def _note(name: str, records: dict[str, Record]) -> str:
    notes = {NOTES.get(name, NOTES.get(name.rsplit(".", 1)[0], "")), *(r.reason for r in records.values())}
    return "; ".join(sorted(notes - {""}))


def as_json(results: Results) -> str:
    """Return all records, with the versions that they are of."""
    records = {
        name: {format: {"how": r.how, **asdict(r)} for format, r in found.items()} for name, found in results.items()
    }
    return json.dumps({"torch": torch.__version__, "gossamer": _version(), "operators": records}, indent=1) + "\n"


@click.command(help=__doc__)
@click.option("--op", "globs", multiple=True, help="Only operators whose name matches, such as 'linalg.*'.")
@click.option("--format", "formats", multiple=True, type=click.Choice(list(FORMATS)), help="Only these formats.")
@click.option("--json", "target", type=click.Path(path_type=Path), help=f"Where to write the records [{RESULTS.name}].")
@click.option("--jobs", default=os.cpu_count() or 2, show_default=True, help="Processes at a time.")
def main(globs: tuple[str, ...], formats: tuple[str, ...], target: Path | None, jobs: int) -> None:
    """Run it all, print what came of it, and write the table."""
    torch.set_num_threads(1)
    names = [op.full_name for op in operators()]
    names = [n for n in names if not globs or any(fnmatch.fnmatchcase(n, g) for g in globs)]
    used = list(formats) or list(FORMATS)
    console = Console(width=None if sys.stdout.isatty() else 120)
    shown = track(run(names, used, jobs), "operators", len(names), console=console, disable=not console.is_terminal)
    found = dict(shown)
    results = {name: found[name] for name in names}
    for name, records in results.items():
        for format, record in records.items():
            for problem in record.wrong:
                console.print(f"wrong: {name} in {format}: {problem}", markup=False, soft_wrap=True)
    console.print(summary(results, used))
    if target is not None or not (globs or formats):
        (target or RESULTS).parent.mkdir(parents=True, exist_ok=True)
        (target or RESULTS).write_text(as_json(results))
    if not (globs or formats):
        PAGE.write_text(page(results))
    sys.exit(any(record.wrong for records in results.values() for record in records.values()))


if __name__ == "__main__":
    main()
