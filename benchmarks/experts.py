"""Experts of a mixture of experts on a CPU: packed, against the dense implementations that transformers has.

    python benchmarks/experts.py             one thread; writes results/experts.json
    python benchmarks/experts.py --quick     one pattern, writes nothing: half a minute

One module of experts (Mixtral's, 8 experts, 2 for each token), eager, without gradients: CPU time, interleaved, the
minimum counts. Rivals: the same weights dense by each implementation that transformers offers on a CPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
from transformers import MixtralConfig, MixtralForCausalLM  # noqa: E402

import gossamer as gs  # noqa: E402
from gossamer import native  # noqa: E402
from gossamer.report.timing import interleaved  # noqa: E402

PATTERNS = ("2:4", "75%", "90%")
TOKENS = (1, 16, 128)
RIVALS = ("eager", "grouped_mm", "batched_mm")
EXPERTS, CHOSEN = 8, 2


def experts_of(hidden: int, width: int) -> Any:
    """A module of experts with random weights."""
    config = MixtralConfig(
        vocab_size=8, hidden_size=hidden, intermediate_size=width, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN,
    )  # fmt: skip
    return MixtralForCausalLM(config).eval().model.layers[0].mlp.experts


def routing(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two different experts for each token, at random, and their shares."""
    index = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)])
    return index, torch.full((tokens, CHOSEN), 1 / CHOSEN)


def measured(hidden: int, width: int, tokens: int, patterns: tuple[str, ...], budget: float) -> dict[str, Any]:
    """Every dense implementation and every pattern, for one number of tokens."""
    dense = experts_of(hidden, width)
    x, (index, shares) = torch.randn(tokens, hidden), routing(tokens)
    modules: dict[str, Any] = {}
    for name in RIVALS if tokens == 1 else RIVALS[:2]:  # batched_mm copies the weights of two experts for each token
        modules[f"dense {name}"] = own = copy.deepcopy(dense)
        own.config._experts_implementation = name
    for pattern in patterns:
        packed = gs.sparsify_(copy.deepcopy(dense), pattern)
        gs.pack_(packed, (x, index, shares), quiet=True)
        modules[pattern] = packed
    calls = {name: (lambda m=module: m(x, index, shares)) for name, module in modules.items()}
    with torch.no_grad():
        seconds = interleaved(calls, budget)
    formats = {name: str(modules[name].gate_up_proj.format) for name in patterns}
    return {
        "size": [hidden, width],
        "tokens": tokens,
        "us": {n: s * 1e6 for n, s in seconds.items()},
        "formats": formats,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Gains over the best dense implementation."""
    names = [name for name in rows[0]["us"] if not name.startswith("dense")]
    lines = [f"| size | tokens | best dense, us | {' | '.join(names)} |", "|---|--:|--:" + "|--:" * len(names) + "|"]
    for row in rows:
        rival, best = min((us, name) for name, us in row["us"].items() if name.startswith("dense"))
        gains = " | ".join(f"{rival / row['us'][name]:.2f}x" for name in names)
        size = " x ".join(map(str, row["size"]))
        lines.append(f"| {size} | {row['tokens']} | {rival:,.0f} ({best.removeprefix('dense ')}) | {gains} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = [(512, 1024)]
    patterns = PATTERNS[2:] if quick else PATTERNS
    rows = [measured(*size, tokens, patterns, 0.2 if quick else 1.0) for size in sizes for tokens in TOKENS]
    print(table(rows))
    if not quick:
        result = {"isa": native.isa(), "torch": torch.__version__, "threads": 1, "rows": rows}
        (HERE / "results" / "experts.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
