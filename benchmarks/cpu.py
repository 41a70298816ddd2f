"""The published grid of the CPU: every format against dense torch, torch CSR and scipy, at many numbers of tokens.

    python benchmarks/cpu.py                    all of it; writes results/cpu-<isa>.json and the plot of the docs
    python benchmarks/cpu.py --quick            three shapes, few tokens, one thread: a minute
    python benchmarks/cpu.py --only training    linear, training or encoder
    python benchmarks/cpu.py --only linear --shape 768x768 --threads 1 --add
                                                a piece, for a machine that is quiet for minutes only; put into the JSON
    python benchmarks/cpu.py --only linear --tokens 1 16 128 1024 --seconds 0.05 --json cpu-xeon.json
                                                all shapes, one thread and two, in two minutes, for another machine

What is measured stands in src/gossamer/app/bench/cpu.py; `gossamer bench cpu` runs the same and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

from rich.console import Console  # noqa: E402

from gossamer import native  # noqa: E402
from gossamer.app.bench import cpu  # noqa: E402


def _compact(results: dict[str, Any]) -> str:
    """JSON with one line a measurement."""
    parts = []
    for key, value in results.items():
        rows = isinstance(value, list)
        text = "[\n" + ",\n".join(json.dumps(_rounded(r)) for r in value) + "\n]" if rows else json.dumps(value)
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 3 if k == "of_dense" else 2) if isinstance(v, float) else v for k, v in row.items()}


def _shape(text: str) -> tuple[int, int]:
    rows, cols = map(int, text.split("x"))
    return rows, cols


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results, in which what was measured again is replaced."""
    merged = old | {key: value for key, value in new.items() if not isinstance(value, list)}
    for part in (key for key, value in new.items() if isinstance(value, list)):
        again = {_what(row) for row in new[part]}
        merged[part] = [row for row in old.get(part, []) if _what(row) not in again] + new[part]
    return merged


def _what(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["threads"], tuple(row.get("shape", ())), row.get("tokens"), row.get("batch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=cpu.PARTS)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--shape", action="append", help="only this one, such as 768x3072; may be repeated")
    parser.add_argument("--tokens", type=int, nargs="*", help="only these numbers of tokens of a linear layer")
    parser.add_argument("--seconds", type=float, help="for each call; 0.1 by default")
    parser.add_argument("--json", type=Path, help="a file for what is measured, and nothing else is written")
    parser.add_argument("--add", action="store_true", help="put what was measured into the JSON that is there")
    parser.add_argument("--out", type=Path, help="folder for the JSON and the plot; benchmarks/results by default")
    options = parser.parse_args()
    shapes = [_shape(text) for text in options.shape] if options.shape else cpu.SHAPES
    parts = [options.only] if options.only else cpu.PARTS
    results = cpu.run(options.quick, parts, options.threads, shapes, options.tokens, options.seconds)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(
        f"{platform.processor() or platform.machine()}, kernels for {results['isa']}, torch {results['torch']}"
    )
    console.print(", ".join(f"{name} {value:.1f}" for name, value in results["ceilings"].items()))
    for table in cpu.tables(results):
        console.print(table)
    if options.json:
        options.json.write_text(_compact(results))
        return
    if options.tokens or options.seconds:
        return
    if not options.add and (options.quick or options.only or options.shape):
        return
    folder = options.out or HERE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"cpu-{native.isa()}.json"
    if options.add and file.exists():
        results = _merged(json.loads(file.read_text()), results)
    file.write_text(_compact(results))
    from benchmarks.cpu_plot import plot  # matplotlib, which a machine may lack

    docs = folder if options.out else HERE.parent / "docs" / "explanation"
    plot(results["linear"], docs / f"cpu-{native.isa()}.svg")


if __name__ == "__main__":
    main()
