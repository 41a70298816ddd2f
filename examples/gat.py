"""A graph attention layer as one einsum: scores at the edges, their softmax and the sum over neighbours.

python examples/gat.py [--quick]
"""

import argparse

import torch
from gcn import graph
from table import race, show

import gossamer as gs

gs.function("leaky", "where(x > 0, x, 0.2 * x)")
LAYER = "sum(ij * exp(leaky(i + j)) * jk) / sum(il * exp(leaky(i + l))) -> ik"


def by_einsum(edges: gs.SparseTensor, source: torch.Tensor, target: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One expression over the edges. No maximum is subtracted first, so large scores would overflow."""
    return gs.einsum(LAYER, edges, source, target, x, edges, source, target)


def by_dense(edges: torch.Tensor, source: torch.Tensor, target: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same by torch, with a score for every pair of nodes."""
    scores = torch.nn.functional.leaky_relu(source[:, None] + target, 0.2)
    return scores.masked_fill(edges == 0, -torch.inf).softmax(1) @ x


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)
    nodes, features = (600, 32) if quick else (6000, 64)
    edges = gs.mask(graph(nodes, 8))
    x, source, target = torch.randn(nodes, features), torch.randn(nodes), torch.randn(nodes)
    leaves = [t.requires_grad_() for t in (source, target, x)]
    ways = {"gossamer": (by_einsum, edges), "dense": (by_dense, edges.to_dense())}

    def step(name: str) -> list[torch.Tensor]:
        layer, a = ways[name]
        return list(torch.autograd.grad(layer(a, *leaves).square().sum(), leaves))

    with torch.no_grad():
        worst = (by_einsum(edges, *leaves) - by_dense(ways["dense"][1], *leaves)).abs().max().item()
        forward = race({name: lambda f=f, a=a: f(a, *leaves) for name, (f, a) in ways.items()}, 0.2 if quick else 3)
    pairs = zip(step("gossamer"), step("dense"), strict=True)
    slope = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    training = race({name: lambda name=name: step(name) for name in ways}, 0.2 if quick else 3)
    print(f"GAT: {nodes:,} nodes, {edges.nnz:,} edges; outputs differ by {worst:.1e}, gradients by {slope:.1e}")
    assert worst < 1e-3 and slope < 1e-3
    show("milliseconds (* fastest)", {"forward": forward, "forward and backward": training})


if __name__ == "__main__":
    main()
