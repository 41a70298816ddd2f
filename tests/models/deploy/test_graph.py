"""Fusion in an exported graph: activations move into int8 products, products of one input become one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.models.deploy.graph import fuse

int8 = torch.ops.gossamer.int8_linear.default


def exported(model: nn.Module, x: Tensor) -> torch.fx.GraphModule:
    with torch.no_grad():
        return torch.export.export(model, (x,)).module()  # type: ignore[return-value]


def products(graph: torch.fx.GraphModule) -> list[tuple[int, int]]:
    """Rows and activation of each."""
    return [(node.args[3], node.args[4]) for node in graph.graph.nodes if node.target is int8]


class Heads(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, n, bias=bias) for n in (24, 24, 17))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("how", [None, "2:4", "block 1x4 75%", "90%"])
def test_layers_of_one_input_become_one(how: str | None, bias: bool) -> None:
    model, x = Heads(bias), torch.randn(3, 24)
    model = gs.quantize_(model if how is None else gs.sparsify_(model, how), "int8").requires_grad_(False)
    graph = exported(model, x)
    fuse(graph)
    assert products(graph) == [(65, 0)]
    for got, want in zip(graph(x), model(x), strict=True):
        assert torch.equal(got, want)  # sums are exact


def test_layers_in_other_layouts_stay_alone() -> None:
    model, x = Heads(), torch.randn(3, 24)
    model = gs.quantize_(gs.sparsify_(model, {"v": "50%"}), "int8").requires_grad_(False)
    graph = exported(model, x)
    fuse(graph)
    assert sorted(products(graph)) == [(17, 0), (48, 0)]


@pytest.mark.parametrize(("layer", "code"), [(nn.ReLU(), 1), (nn.GELU(), 2), (nn.SiLU(), 3), (nn.GELU("tanh"), 0)])
def test_the_activation_that_follows(layer: nn.Module, code: int) -> None:
    model, x = nn.Sequential(nn.Linear(24, 40), layer, nn.Linear(40, 8)), torch.randn(5, 24)
    graph = exported(gs.quantize_(model, "int8").requires_grad_(False), x)
    want = graph(x)
    fuse(graph)
    assert products(graph) == [(40, code), (8, 0)]
    torch.testing.assert_close(graph(x), want, atol=0.02, rtol=0)


def test_an_output_that_something_else_reads_is_not_activated() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return torch.relu(y) + y

    x = torch.randn(2, 8)
    model = gs.quantize_(Twice(), "int8").requires_grad_(False)
    graph = exported(model, x)
    fuse(graph)
    assert products(graph) == [(8, 0)]
    assert torch.equal(graph(x), model(x))
