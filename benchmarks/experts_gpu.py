"""Experts of a mixture of experts on a GPU: packed 2:4 and 2:8, against the dense implementations of transformers.

    python benchmarks/experts_gpu.py             writes results/experts-gpu.json and docs/recipes/moe-gpu-table.md
    python benchmarks/experts_gpu.py --tiny      small sizes on any machine: does it still run?

One module of experts, bf16, random weights, masks and routing: the sizes of Mixtral 8x7B and of Qwen3-30B-A3B. Times
are those of CUDA graphs of the eager module: sorting tokens by expert, both products, activation, and the weighted sum.
``compiled`` is the same under ``torch.compile``. Rivals are the implementations of transformers that a graph can
capture: ``grouped_mm`` (torch's grouped matrix product), and for few tokens ``batched_mm``.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.llm import mask_of, shared_columns  # noqa: E402
from gossamer.core.tensor import SparseTensor  # noqa: E402
from gossamer.formats import PackedVNM, Structure  # noqa: E402
from gossamer.models.grouped import format_of  # noqa: E402
from gossamer.models.pack.graphs import replayed  # noqa: E402
from gossamer.models.weights import all_weights  # noqa: E402

#: Features, features inside, experts, and how many of them a token goes to.
SIZES = {"Mixtral 8x7B": (4096, 14336, 8, 2), "Qwen3-30B-A3B": (2048, 768, 128, 8)}
TINY = {"tiny": (64, 128, 4, 2)}
TOKENS = (1, 4, 16, 64, 256, 2048)
COMPILED = {"Mixtral 8x7B": (1, 64)}
BATCHED = 4  # with more tokens, copies of the weights don't fit into memory
TABLE = HERE.parent / "docs" / "recipes" / "moe-gpu-table.md"


def experts_of(size: tuple[int, int, int, int]) -> Any:
    """A module of experts with random weights, in bf16."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    hidden, width, count, chosen = size
    config = MixtralConfig(
        hidden_size=hidden, intermediate_size=width, num_local_experts=count, num_experts_per_tok=chosen,
        num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=1, experts_implementation="grouped_mm",
    )  # fmt: skip
    module = MixtralExperts(config).to(DEVICE, torch.bfloat16).eval().requires_grad_(False)
    for weight in module.parameters():
        weight.normal_(std=0.02)
    return module


def packed(like: Any, m: int) -> Any:
    """The same sizes with random 2:m weights, of two experts in turn."""
    module = copy.deepcopy(like)
    for weight in list(all_weights(module).values()):
        count, rows, cols = weight.shape
        made = []
        for _ in range(2):  # of all experts: times do not depend on values
            dense = torch.randn(rows, cols, device=DEVICE) * 0.02 * mask_of(rows, shared_columns(cols, m, DEVICE), m)
            made.append(gs.from_dense(dense.bfloat16(), PackedVNM("all", 2, m)))
        weight.become(below_each_other(made * (count // 2), rows, m))
    return module


def below_each_other(parts: list[SparseTensor], rows: int, m: int) -> SparseTensor:
    """All experts as one stack: of each step, the tiles of all of them."""
    tiles, shape = rows // 64, torch.Size((len(parts), *parts[0].shape))

    def joined(each: list[Tensor], of_a_tile: int) -> Tensor:
        return torch.cat([one.view(-1, tiles, of_a_tile) for one in each], 1).reshape(-1)

    arrays = {
        "cols2": torch.cat([part.structure.arrays["cols1"] for part in parts[: 1 if m == 4 else None]]),
        "meta2": joined([part.structure.arrays["meta1"] for part in parts], 128),
    }
    values = joined([part.values() for part in parts], 2048)
    return SparseTensor(values, Structure(format_of(rows, m), shape, arrays, values.device))


def routing(tokens: int, count: int, chosen: int) -> tuple[Tensor, Tensor]:
    """Different experts for each token, at random, and their shares."""
    index = torch.rand(tokens, count, device=DEVICE).topk(chosen, 1).indices
    return index, torch.full((tokens, chosen), 1 / chosen, device=DEVICE, dtype=torch.bfloat16)


def contenders(size: tuple[int, int, int, int]) -> dict[str, Any]:
    """Modules by name."""
    dense = experts_of(size)
    batched = copy.copy(dense)
    batched.config = copy.copy(dense.config)
    batched.config._experts_implementation = "batched_mm"
    return {"grouped_mm": dense, "batched_mm": batched, "2:4": packed(dense, 4), "2:8": packed(dense, 8)}


def measured(name: str, size: tuple[int, int, int, int], counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Microseconds of every contender, for each number of tokens."""
    everyone, rows = contenders(size), []
    for tokens in counts:
        given = torch.randn(tokens, size[0], device=DEVICE, dtype=torch.bfloat16), *routing(tokens, *size[2:])
        calls: dict[str, list[Callable[[], Any]]] = {
            who: [partial(module, *given)]
            for who, module in everyone.items()
            if who != "batched_mm" or tokens <= BATCHED
        }
        if tokens in COMPILED.get(name, ()):
            for who in ("grouped_mm", "2:4", "2:8"):
                torch._dynamo.reset()
                made = torch.compile(everyone[who].forward, fullgraph=True, dynamic=False)
                calls[f"{who}, compiled"] = [partial(made, *given)]
        us = {who: round(1e6 * seconds, 1) for who, seconds in replayed(calls).items()}
        rows.append({"size": name, "tokens": tokens, "us": us})
        print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Gains over the fastest dense implementation; those under torch.compile, over the compiled one."""
    lines = ["| experts | tokens | dense, us | 2:4 | 2:8 | compiled: dense, us | 2:4 | 2:8 |", "|---|" + "--:|" * 7]
    for row in rows:
        us = row["us"]
        best = min(us[name] for name in ("grouped_mm", "batched_mm") if name in us)
        cells = [f"{best:,.0f}", *(f"{best / us[m]:.2f}x" for m in ("2:4", "2:8"))]
        rival = us.get("grouped_mm, compiled")
        if rival:
            cells += [f"{rival:,.0f}", *(f"{rival / us[f'{m}, compiled']:.2f}x" for m in ("2:4", "2:8"))]
        cells += [""] * (6 - len(cells))
        lines.append(f"| {row['size']} | {row['tokens']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tried() -> None:
    """Do all contenders give the same as a plain loop over their dense weights?"""
    for name, module in contenders(TINY["tiny"]).items():
        x, (index, shares) = torch.randn(9, 64, device=DEVICE, dtype=torch.bfloat16), routing(9, 4, 2)
        plain = gs.densify_(copy.deepcopy(module))
        plain.config._experts_implementation = "eager"
        with torch.no_grad():
            torch.testing.assert_close(module(x, index, shares), plain(x, index, shares), rtol=3e-2, atol=3e-2)
        print(f"{name}: as the plain loop")


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "experts-gpu.json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tried()
    if arguments.tiny:
        return
    rows = []
    with torch.no_grad():
        for name, size in SIZES.items():
            rows += measured(name, size, TOKENS)
            torch.cuda.empty_cache()
    print(table(rows))
    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    TABLE.write_text(table(rows) + "\n")


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if __name__ == "__main__":
    main()
