"""Means, tables and floors of the training benchmark, from its runs; needs no torch."""

from __future__ import annotations

import statistics
from typing import Any

ORDER = ("dense", "Static", "SET", "RigL", "SRigL", "SRigL, no ablation")
SPARSITIES = (0.8, 0.9, 0.95, 0.99)


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a task, method and sparsity: mean and deviation over the seeds."""
    groups: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda r: r["seed"]):
        if "accuracy" in run:
            groups.setdefault((run["task"], run["method"], run["sparsity"]), []).append(run)
    return [{"task": t, "method": m, "sparsity": s, **_figures(found)} for (t, m, s), found in groups.items()]


def _figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    found = [run["accuracy"] for run in runs]
    return {
        "seeds": len(found),
        "mean": round(statistics.mean(found), 3),
        "deviation": round(statistics.stdev(found), 3) if len(found) > 1 else 0.0,
        "accuracies": found,
        "density": round(statistics.mean(run["density"] for run in runs), 5),
        "ablated": round(statistics.mean(run["ablated"] for run in runs), 4),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Tables of Markdown, one a task."""
    lines: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = {(r["method"], r["sparsity"]): r for r in rows if r["task"] == task}
        sparsities = sorted({s for _, s in mine if s})
        seeds = sorted({r["seeds"] for r in mine.values()})
        lines += ["", f"**{task}**, {' to '.join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))} seeds", ""]
        lines += [
            "| method | " + " | ".join(f"{s:.0%}" for s in sparsities) + " |",
            "|---|" + "---:|" * len(sparsities),
        ]
        for method in [m for m in ORDER if any(m == other for other, _ in mine)]:
            row = [mine.get((method, s), mine.get((method, 0.0))) for s in sparsities]
            shown = [f"{r['mean']:.1f} ± {r['deviation']:.1f}" if r else "–" for r in row]
            lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return "\n".join(lines).strip() + "\n"


def floors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What SRigL must reach, task by task and sparsity by sparsity: differences of means in points."""
    mean = {(r["task"], r["method"], r["sparsity"]): r["mean"] for r in rows}
    out = []
    for (task, method, sparsity), found in mean.items():
        if method != "SRigL":
            continue
        dense, static, rigl = (mean.get(key) for key in (
            (task, "dense", 0.0), (task, "Static", sparsity), (task, "RigL", sparsity)
        ))  # fmt: skip
        for other, least, what in (
            (dense if sparsity == 0.9 else None, -1.0, "within 1 of dense"),
            (rigl, -0.5, "not 0.5 below RigL"),
            (static, 0.0, "above Static"),
        ):
            if other is not None:
                gap = round(found - other, 2)
                met = gap > least if least == 0 else gap >= least
                out.append({"what": f"{task} {sparsity:.0%}: {what}", "found": gap, "met": met})
    return out
