"""Attention with a sparse mask: a window, and a few tokens that see all. One transformer layer, three ways.

python examples/sparse_attention.py [--quick]
"""

import argparse
import warnings
from collections.abc import Callable

import torch
from table import race, show

import gossamer as gs

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def mask_of(tokens: int, window: int, everywhere: int) -> torch.Tensor:
    """True where a token may look."""
    near = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() <= window
    near[:, :everywhere] = near[:everywhere] = True
    return near


class Layer(torch.nn.Module):
    """A transformer layer of one head; ``attention`` is how it attends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        q, k, v = (part.contiguous() for part in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(attention(q / q.shape[-1] ** 0.5, k, v))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)
    tokens, width, window = (256, 32, 8) if quick else (4096, 64, 48)
    near = mask_of(tokens, window, 4)
    ones = gs.from_dense(near.float(), gs.CSR())
    pattern = ones.to_torch()

    def by_gossamer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return gs.attention(q, k, v, ones, scale=1.0)

    def by_torch_sparse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.sparse.sampled_addmm(pattern, q, k.t(), beta=0.0)
        return torch.sparse.mm(torch.sparse.softmax(scores.to_sparse_coo(), -1), v)

    def by_dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.t()).masked_fill(~near, float("-inf")), -1) @ v

    ways = {"gossamer": by_gossamer, "torch.sparse": by_torch_sparse, "dense": by_dense}
    layer, x = Layer(width), torch.randn(tokens, width)
    with torch.no_grad():
        outputs = {name: layer(x, way) for name, way in ways.items()}
        worst = max((outputs["dense"] - o).abs().max().item() for o in outputs.values())
        forward = race({name: lambda w=way: layer(x, w) for name, way in ways.items()}, 0.2 if quick else 3)

    def step(way: Attention) -> None:
        layer.zero_grad()
        layer(x, way).square().mean().backward()

    trained = {name: ways[name] for name in ("gossamer", "dense")}
    training = race({name: lambda w=way: step(w) for name, way in trained.items()}, 0.2 if quick else 3)
    print(
        f"attention: {tokens} tokens, {100 * ones.density:.1f} % of the scores; outputs differ by at most {worst:.1e}"
    )
    assert worst < 1e-3
    show("forward, milliseconds (* fastest)", {"one layer": forward})
    show("forward and backward", {"one layer": training})


if __name__ == "__main__":
    main()
