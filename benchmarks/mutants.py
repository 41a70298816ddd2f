"""Do the tests notice when the core is broken? Faults are put into it, one at a time.

Each entry of ``faults.toml`` changes a line of a source; the tests of that room then run on a copy with the fault, the
mirrored test file first (``src/gossamer/core/table.py``: ``tests/core/test_table.py``), then the room. A fault is found
if a test fails, or if the tests hang. Run ``python benchmarks/mutants.py``; it takes half an hour on two quiet cores,
writes ``benchmarks/results/mutants.json``, and ends with an error if fewer than 57 are found. ``--only models`` runs
the faults of sources whose path has these words.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "mutants.json"
LIST = Path(__file__).parent / "faults.toml"
ENOUGH = 57
LIMIT = 600  # seconds of a test run


class Fault(NamedTuple):
    """One change of one source."""

    source: str  # below src/gossamer
    before: str  # a piece of text that is there once
    after: str
    tests: str = ""  # where to look after the mirrored path


def faults() -> list[Fault]:
    """Return the faults of the list."""
    return [Fault(**fault) for fault in tomllib.loads(LIST.read_text())["fault"]]


def faulty(fault: Fault, text: str) -> str:
    """Return a source with a fault in it."""
    found = text.count(fault.before)
    if found != 1:
        raise ValueError(
            f"{fault.source} has {fault.before!r} {found} times, must be once: bring benchmarks/faults.toml up to date"
        )
    return text.replace(fault.before, fault.after)


def tests_of(fault: Fault) -> list[str]:
    """Return where to look for a test that fails: the mirrored file, what the fault names, then the room."""
    path = Path(fault.source)
    mirrored = Path("tests") / path.parent / f"test_{path.name}"
    room = Path("tests") / path.parts[0]
    places = dict.fromkeys([str(mirrored), fault.tests, str(room)])
    return [place for place in places if place and (ROOT / place).exists()]


def failing(source: Path, places: list[str]) -> str:
    """Return the first test that fails with the sources in a folder; empty if none does."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "CI": "1"}
    for place in places:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", place]
        try:
            ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"{place} hangs"
        if ran.returncode not in (0, 5):  # 5: there is no test
            told = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return told[0].split(" - ")[0] if told else f"{place} can't be run"
    return ""


def main() -> None:
    """Put every fault in, and see whether it is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run faults of sources whose path has these words")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        for fault in faults():
            if asked.only not in fault.source:
                continue
            path = source / "gossamer" / fault.source
            right, started = path.read_text(), time.perf_counter()
            path.write_text(faulty(fault, right))
            test = failing(source, tests_of(fault))
            path.write_text(right)
            rows.append({"source": fault.source, "before": fault.before, "after": fault.after, "found by": test})
            print(f"{time.perf_counter() - started:5.0f} s  {fault.source}: {test or 'NOT FOUND'}", flush=True)
    found = sum(bool(row["found by"]) for row in rows)
    print(f"{found} of {len(rows)} found")
    if not asked.only:
        RESULTS.write_text(json.dumps({"found": found, "of": len(rows), "faults": rows}, indent=1) + "\n")
        sys.exit(found < ENOUGH)


if __name__ == "__main__":
    main()
