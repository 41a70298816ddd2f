"""A model trained by SRigL at 90 %, packed, against the dense one, token by token on the CPU.

    python benchmarks/training_tokens.py        writes benchmarks/results/training-tokens.json; a quiet machine, please

An MLP 784-3072-768-10 is trained on images of MNIST for a few epochs, dense and by SRigL: without ablation, with the
published settings, and with ours. Rows of the table, one thread, microseconds of a call of the whole model:

- dense: as it was trained;
- dense, active neurons: an ordinary dense model of the neurons that were not ablated (their rows, and the columns of
  the next layer; what the ablated ones add is in the biases). What ablation alone is worth.
- torch CSR: the sparse weights as torch.sparse_csr;
- packed: ``gs.pack_``.
"""

from __future__ import annotations

import copy
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn

import gossamer as gs
from benchmarks.training_data import Split, load
from benchmarks.training_tasks import METHODS, MODELS, Task, mlp, train
from gossamer.report.timing import interleaved

RESULTS = Path(__file__).with_name("results") / "training-tokens.json"
TASK = Task("mnist5k", "wide MLP", 4, 8, 0.05)
TOKENS = (1, 4, 16)
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "SRigL, no ablation": ("SRigL, no ablation", {}),
    "SRigL, as published": ("SRigL", {"gamma": 0.3, "min_salient": 1}),
    "SRigL": ("SRigL", {}),
}


def trained(name: str, data: Split) -> tuple[nn.Module, dict[str, Any]]:
    """A model trained so, and how that went."""
    made: list[nn.Module] = []
    MODELS[TASK.model] = lambda: made.append(mlp(784, 3072, 768, 10)) or made[-1]  # type: ignore[func-returns-value]
    method, options = TRAINED[name]
    assert method in METHODS
    found = train(TASK, data, method, 0.0 if name == "dense" else 0.9, 0, **options)
    model = made[-1].eval()
    return gs.densify_(model) if name == "dense" else model, found


def active_only(model: nn.Sequential) -> nn.Sequential:
    """A dense model of the neurons that have inputs; the constants that the others send on go into the biases."""
    layers: list[nn.Module] = [nn.Flatten()]
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    columns, constant = torch.arange(linears[0].in_features), torch.zeros(linears[0].in_features)
    for i, layer in enumerate(linears):
        weight, last = layer.weight.detach().to_dense(), i == len(linears) - 1
        bias = layer.bias.detach() + weight @ constant
        rows = torch.arange(len(weight)) if last else weight.any(1).nonzero().view(-1)
        small = nn.Linear(len(columns), len(rows))
        small.weight, small.bias = nn.Parameter(weight[rows][:, columns].contiguous()), nn.Parameter(bias[rows])
        layers += [small, nn.ReLU()]
        constant = bias.relu()
        constant[rows] = 0
        columns = rows
    return nn.Sequential(*layers[:-1])


def csr(model: nn.Sequential) -> Callable[[Tensor], Tensor]:
    """The same model by torch's own sparse matrices."""
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    parts = [(layer.weight.detach().to_dense().to_sparse_csr(), layer.bias.detach()[:, None]) for layer in linears]

    def run(x: Tensor) -> Tensor:
        x = x.flatten(1).t()
        for i, (weight, bias) in enumerate(parts):
            x = weight @ x + bias
            x = x.relu() if i < len(parts) - 1 else x
        return x.t()

    return run


def measure(seconds: float = 1.0) -> list[dict[str, Any]]:
    """Train, pack, check that all compute the same, and time."""
    torch.set_num_threads(1)
    data, rows = load(TASK.data), []
    dense, _ = trained("dense", data)
    for name in [name for name in TRAINED if name != "dense"]:
        model, found = trained(name, data)
        log = found["log"]
        for tokens in TOKENS:
            x = torch.rand(tokens, 28, 28)
            packed = copy.deepcopy(model)
            report = gs.pack_(packed, x)
            kinds = {
                "dense": dense,
                "dense, active neurons": active_only(model),
                "torch CSR": csr(model),
                "packed": packed,
            }
            with torch.no_grad():
                for kind, run in kinds.items():
                    if kind != "dense":
                        torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-3)
                times = interleaved({kind: lambda run=run, x=x: run(x) for kind, run in kinds.items()}, seconds)
            rows.append(
                {
                    "trained": name,
                    "tokens": tokens,
                    "accuracy": round(found["accuracy"], 2),
                    "density": round(log["density"], 4),
                    "neurons": [r["neurons"] - r["ablated"] for r in log["layers"].values()],
                    "formats": [r.format for r in report.layers],
                    "us": {kind: round(1e6 * t, 1) for kind, t in times.items()},
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Gains over dense, of Markdown."""
    kinds = list(rows[0]["us"])
    lines = ["| trained by | neurons | tokens | " + " | ".join(kinds) + " |", "|---|---|---:|" + "---:|" * len(kinds)]
    for row in rows:
        gains = [f"{us:.0f} µs ({row['us']['dense'] / us:.1f}x)" for us in row["us"].values()]
        neurons = "-".join(map(str, row["neurons"]))
        lines.append(f"| {row['trained']} | {neurons} | {row['tokens']} | " + " | ".join(gains) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = measure()
    machine = f"{platform.machine()}, torch {torch.__version__}, one thread"
    RESULTS.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
