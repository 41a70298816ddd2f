"""The plot and the tables of the docs, from the results of benchmarks/gpu.py; needs no torch.

python benchmarks/gpu_plot.py benchmarks/results/gpu-h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs" / "explanation"
PLOT = DOCS / "gpu.svg"
#: Gains over cuBLAS that `benchmarks/gpu.py` checks each run against, on the terminal.
SQUARE = {4: 1.4, 8: 2.2, 16: 4.0, 32: 7.0, 100: 15.0}
SMALL = {8: 1.6, 16: 2.5}
FEW = {4: 1.5, 8: 2.6, 16: 4.0}


def floor_of(part: str, row: dict[str, Any]) -> float | None:
    """Return the gain that a row must reach, or None."""
    if part == "few":
        return FEW[row["m"]]
    if part == "mlp":
        return 2.0
    if part != "products":
        return None
    if row["shape"] == [4096, 4096, 4096]:
        if row["v"] == 512:
            return SQUARE[row["m"]]
        return 1.5 if row["v"] == 128 else None
    return SMALL[row["m"]] if row["shape"] != [8192, 8192, 8192] else None


def table(found: dict[str, Any]) -> str:
    """Return the figures as tables of Markdown, below the plot."""
    picture = ["![Gain over cuBLAS by m, by v, and with few tokens](gpu.svg)", ""] if PLOT.exists() else []
    lines = [*picture, f"Measured on {found['gpu']}, torch {found['torch']}, CUDA {found['cuda']}, {found['dtype']}."]
    lt = found.get("cusparselt", {})
    if "products" in found:
        lines += ["", "**Many tokens**, microseconds; activations feature-major, and token-major in brackets.", ""]
        lines += [
            "| rows, cols, tokens | v | 2:m | cuBLAS | cuSPARSELt 2:4 | packed | gain |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
    for r in found.get("products", ()):
        name = "x".join(map(str, r["shape"]))
        dense, other = min(r["cublas"], r["cublas_feature_major"]), lt.get(name)
        cells = (
            ", ".join(map(str, r["shape"])), r["v"], f"2:{r['m']}", f"{dense:.1f}", f"{other:.1f}" if other else "",
            f"{r['packed']:.1f} ({r['packed_token_major']:.1f})", f"{r['gain']:.2f}x ({r['gain_token_major']:.2f}x)",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if "few" in found:
        lines += ["", "**Few tokens**, microseconds; weights come from memory.", ""]
        lines += [
            "| rows, cols | tokens | 2:m | cuBLAS | packed | TB/s | gain |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
    for r in found.get("few", ()):
        rows, cols, tokens = r["shape"]
        lines.append(
            f"| {rows}, {cols} | {tokens} | 2:{r['m']} | {r['cublas']:.1f} | {r['packed']:.1f} | {r['tbytes']:.2f} | "
            f"{r['gain']:.2f}x |"
        )
    for r in found.get("mlp", ()):
        block = " -> ".join(map(str, r["block"]))
        times = f"dense {r['dense']:.0f} us, packed {r['packed']:.0f} us, {r['gain']:.2f}x"
        lines += ["", f"**MLP block** {block}, GELU, {r['tokens']} tokens, {r['v']}:2:{r['m']}: {times}."]
    if "rows" in found:
        own = any("condensed" in r for r in found["rows"])
        lines += ["", "**Unstructured**, 4096 x 4096, microseconds.", ""]
        lines += ["| sparsity | tokens | cuBLAS | torch CSR | CSR |" + (" Condensed |" if own else "")]
        lines += ["|---|--:|--:|--:|--:|" + ("--:|" if own else "")]
    for r in found.get("rows", ()):
        cells = [
            r["sparsity"],
            r["shape"][2],
            *(f"{r[k]:.1f}" for k in ("cublas", "torch_csr", "csr", "condensed") if k in r),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if "overhead" in found:
        each = ", ".join(f"{name} {us:.1f} us" for name, us in found["overhead"].items())
        lines += ["", f"**CPU time of an eager call**: {each}."]
    if "pattern" in found:
        each = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found["pattern"].items())
        lines += ["", f"**4096 x 4096 on the GPU**: {each}."]
    if "ceilings" in found:
        each = ", ".join(f"{name} {us:.1f} us" for name, us in found["ceilings"].items())
        lines += ["", f"**Ceilings**: {each}."]
    if "sustained" in found:
        each = ", ".join(f"{name} {r['us']:.1f} us at {r['clock']}" for name, r in found["sustained"].items())
        lines += ["", f"**For seconds on end**, 4096 x 4096 x 4096, v = 512: {each}."]
    if notes := found.get("notes"):
        lines += ["", "To be read with the tables:", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines)


def plot(found: dict[str, Any], file: Path) -> None:
    """Draw gains over cuBLAS: by m, and by v at 2:8, for 4096 cubed; and for few tokens."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    square = [r for r in found["products"] if r["shape"] == [4096, 4096, 4096]]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4))
    by_m = sorted((r["m"], r["gain"]) for r in square if r["v"] == 512)
    axes[0].plot(*zip(*by_m, strict=True), marker="o", label="packed, V = 512")
    axes[0].plot([m for m, _ in by_m], [m / 2 for m, _ in by_m], "--", color="gray", label="m / 2 (ideal)")
    axes[0].set(xscale="log", yscale="log", xlabel="m of 2:m", ylabel="speedup over cuBLAS", title="4096 x 4096 x 4096")
    by_v = sorted(((4096 if r["v"] == "all" else r["v"]), r["gain"]) for r in square if r["m"] == 8)
    axes[1].plot(*zip(*by_v, strict=True), marker="o", label="2:8")
    axes[1].set(xscale="log", xlabel="v (4096: all rows)", title="4096 x 4096 x 4096, by v")
    for m in sorted({r["m"] for r in found["few"]}):
        points = sorted((r["shape"][2], r["gain"]) for r in found["few"] if r["m"] == m and r["shape"][0] == 14336)
        axes[2].plot(*zip(*points, strict=True), marker="o", label=f"2:{m}")
    axes[2].set(xlabel="tokens", title="14336 x 4096, few tokens")
    axes[0].set_xticks([m for m, _ in by_m], [m for m, _ in by_m])
    axes[0].set_yticks([1, 2, 5, 10, 20, 50], ["1x", "2x", "5x", "10x", "20x", "50x"])
    axes[1].set_xticks([v for v, _ in by_v], [v for v, _ in by_v])
    axes[2].set_xticks([1, 8, 16])
    for axis in axes:
        axis.minorticks_off()
        axis.axhline(1, color="black", linewidth=0.8)
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


if __name__ == "__main__":
    results = json.loads(Path(sys.argv[1]).read_text())
    plot(results, PLOT)
    (DOCS / "gpu-table.md").write_text(table(results) + "\n")
    print(table(results))
