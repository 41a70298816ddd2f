"""The plot and the table of the docs, from the results of benchmarks/cpu.py.

python benchmarks/cpu_plot.py benchmarks/results/cpu-avx512.json docs/explanation/cpu-avx512.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gossamer.app.bench.cpu import gains


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw the gain over dense by number of tokens."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    found = gains([r for r in rows if r["threads"] == 1])
    kinds = (("unstructured", "unstructured"), ("grouped", "grouped n:m"))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axis, (kind, title) in zip(axes, kinds, strict=True):
        for name in dict.fromkeys(r["name"] for r in rows if r["name"].startswith(kind) and "wide" not in r["name"]):
            points = sorted((n, gain) for (_, n, other), gain in found.items() if other == name)
            axis.plot(*zip(*points, strict=True), marker="o", label=name.removeprefix(f"{kind} "))
        torch_csr = sorted((n, gain) for (_, n, other), gain in found.items() if other == "torch CSR 90%")
        if torch_csr:
            axis.plot(*zip(*torch_csr, strict=True), "--", color="gray", label="90%, torch CSR")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=f"{title}, one thread", ylim=(0.9, 30))
        axis.set_xticks([1, 4, 16, 64, 256, 1024, 4096], [1, 4, 16, 64, 256, 1024, 4096], minor=False)
        axis.set_yticks([1, 2, 5, 10, 20], ["1x", "2x", "5x", "10x", "20x"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=9, ncol=3, loc="upper center")
    axes[0].set_ylabel("speedup over dense (MKL)")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def table(rows: list[dict[str, Any]], threads: int = 1) -> str:
    """Return the gains over dense as a table of Markdown."""
    found = {(n, name): gain for (t, n, name), gain in gains(rows).items() if t == threads}
    tokens = sorted({n for n, _ in found})
    lines = ["| | " + " | ".join(map(str, tokens)) + " |", "|---|" + "---|" * len(tokens)]
    for name in dict.fromkeys(name for _, name in found if name != "dense"):
        cells = " | ".join(f"{found[n, name]:.2f}" if (n, name) in found else "" for n in tokens)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    results = json.loads(Path(sys.argv[1]).read_text())
    print(table(results["linear"]))
    plot(results["linear"], Path(sys.argv[2]))
