"""The tables and the picture of benchmarks/llm.py; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs" / "explanation"
TITLES = {
    "compiled": 'torch.compile(mode="reduce-overhead")',
    "graph": "CUDA graph of the eager model",
    "eager": "Eager",
}


ORDER = ("1", "8", "16", "32", "64", "128", "512", "2048", "4 x 2048")


def in_order(cases: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the cases by their number of tokens; some are measured first because they matter most."""
    return {case: cases[case] for case in sorted(cases, key=ORDER.index)}


def table(mode: str, cases: dict[str, dict[str, float]]) -> str:
    """Return Markdown: milliseconds of dense bf16, then the speedups of the others."""
    cases = in_order(cases)
    variants = dict.fromkeys(name for each in cases.values() for name in each)
    lines = [f"| {TITLES[mode]}, tokens | " + " | ".join(cases) + " |", "|---|" + "--:|" * len(cases)]
    lines.append("| dense bf16, ms | " + " | ".join(f"{each['dense bf16']:.3f}" for each in cases.values()) + " |")
    for name in variants:
        if name != "dense bf16":
            gains = (f"{each['dense bf16'] / each[name]:.2f}x" if name in each else "" for each in cases.values())
            lines.append(f"| {name} | " + " | ".join(gains) + " |")
    return "\n".join(lines)


def tables(found: dict[str, Any]) -> str:
    """Return all tables, and on what they were measured."""
    said = (
        f"Measured on {found['gpu']}, torch {found['torch']}, transformers {found['transformers']}; "
        f"{found['layers']} layers. Up to 128 tokens: this many sequences that decode one token each. 512, 2048 and "
        "4 x 2048 are prompts."
    )
    return "\n\n".join([said, *(table(mode, found["ms"][mode]) for mode in TITLES if mode in found["ms"])]) + "\n"


def picture(found: dict[str, Any], path: Path) -> None:
    """Draw the gains over dense bf16 by the number of tokens."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    modes = [mode for mode in ("compiled", "eager") if mode in found["ms"]]
    figure, axes = pyplot.subplots(1, len(modes), figsize=(11, 4.6), sharey=True, squeeze=False)
    for axis, mode in zip(axes[0], modes, strict=True):
        cases = in_order(found["ms"][mode])
        for name in dict.fromkeys(n for each in cases.values() for n in each if n != "dense bf16"):
            at = [i for i, each in enumerate(cases.values()) if name in each]
            gains = [each["dense bf16"] / each[name] for each in cases.values() if name in each]
            axis.plot(at, gains, marker="o", label=name)
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set_xticks(range(len(cases)), list(cases), fontsize=8)
        axis.set_title(TITLES[mode], fontsize=10)
        axis.set_xlabel("tokens")
    axes[0][0].set_ylabel("speedup over dense bf16")
    figure.legend(*axes[0][-1].get_legend_handles_labels(), fontsize=9, ncol=4, loc="lower center")
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(path)


def write(found: dict[str, Any], keep: bool) -> None:
    """Print the tables; write them and the picture into the docs if ``keep``."""
    print(tables(found))
    if keep:
        (DOCS / "llm-table.md").write_text(tables(found))
        try:
            picture(found, DOCS / "llm.svg")
        except ImportError:
            print("no picture: matplotlib is not installed")
