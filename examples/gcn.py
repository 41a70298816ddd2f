"""A graph convolutional network on a random power-law graph: one model, three kinds of adjacency matrix.

python examples/gcn.py [--quick]
"""

import argparse
import warnings

import torch
from table import race, show

import gossamer as gs

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


class GCN(torch.nn.Module):
    """Two layers; ``adjacency`` may be anything that multiplies a matrix."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(features, hidden), torch.nn.Linear(hidden, classes)

    def forward(self, adjacency: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return adjacency @ self.second(torch.relu(adjacency @ self.first(x)))


def graph(nodes: int, mean_degree: int) -> gs.SparseTensor:
    """A symmetric adjacency matrix with self loops, normalised, whose degrees follow a power law."""
    weights = torch.arange(1, nodes + 1).double().pow(-0.7)
    ends = torch.multinomial(weights / weights.sum(), nodes * mean_degree, replacement=True)
    starts = torch.randint(nodes, ends.shape)
    every = torch.arange(nodes)
    row, col = torch.cat([starts, ends, every]), torch.cat([ends, starts, every])
    keys = torch.unique(row * nodes + col)
    degree = torch.bincount(keys // nodes, minlength=nodes).double().rsqrt()
    values = (degree[keys // nodes] * degree[keys % nodes]).float()
    structure, _ = gs.formats.Structure.from_keys(gs.CSR(), keys, (nodes, nodes))
    return gs.SparseTensor(values, structure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)
    nodes, features, hidden, classes = (600, 32, 32, 8) if quick else (8000, 128, 64, 16)
    adjacency = graph(nodes, 8)
    x, labels = torch.randn(nodes, features), torch.randint(classes, (nodes,))
    model = GCN(features, hidden, classes)
    kinds = {"gossamer": adjacency, "torch.sparse": adjacency.to_torch(), "dense": adjacency.to_dense()}

    def step(a: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(a, x), labels)
        loss.backward()
        return loss.detach()

    with torch.no_grad():
        outputs = {name: model(a, x) for name, a in kinds.items()}
        worst = max((outputs["dense"] - o).abs().max().item() for o in outputs.values())
        inference = race({name: lambda a=a: model(a, x) for name, a in kinds.items()}, 0.2 if quick else 3)
    training = race({name: lambda a=a: step(a) for name, a in kinds.items()}, 0.2 if quick else 3)
    print(f"GCN: {nodes:,} nodes, {adjacency.nnz:,} edges; the outputs differ by at most {worst:.1e}")
    assert worst < 1e-3
    show("milliseconds (* fastest)", {"forward": inference, "forward and backward": training})


if __name__ == "__main__":
    main()
