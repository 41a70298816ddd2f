"""Bytes between int8 layers: where they are passed, that results are the same bits, and where they can't be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import gossamer as gs
from gossamer import native
from gossamer.kernels.int8.weight import Range, with_range
from gossamer.models.deploy.graph import fuse
from gossamer.models.deploy.passing import pass_bytes

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
_ours = torch.ops.gossamer


def graph_of(model: nn.Module, x: Tensor) -> GraphModule:
    with torch.no_grad():
        graph = torch.export.export(model.eval(), (x,)).module()
    fuse(graph)
    return graph


def types(graph: GraphModule, x: Tensor) -> list[torch.dtype]:
    """The types of the outputs of all int8 products, in the order of the graph."""
    found: list[torch.dtype] = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            out = super().run_node(n)
            if n.target in (_ours.int8_linear.default, _ours.int8_linear_ranged.default, _ours.int8_conv2d.default):
                found.append(out.dtype)
            return out

    with torch.no_grad():
        Watch(graph).run(x)
    return found


def same_bits(graph: GraphModule, x: Tensor, expected: Tensor) -> None:
    with torch.no_grad():
        assert torch.equal(graph(x), expected)


def network(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    if kind == "linear":
        layers: Any = (
            nn.Linear(40, 70),
            nn.GELU(),
            nn.Linear(70, 33),
            nn.ReLU(),
            nn.Linear(33, 20),
            nn.Tanh(),
            nn.Linear(20, 9),
        )
        return nn.Sequential(*layers), torch.randn(30, 40)
    layers = nn.Conv2d(5, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 33, 3, stride=2, padding=1), nn.Conv2d(33, 16, 1)
    x = torch.randn(2, 5, 12, 11)
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Conv2d(16, 8, 2)), x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", ["linear", "images"])
@pytest.mark.parametrize("sparsity", [None, "80%"])
def test_the_same_bits_pass_as_bytes(kind: str, sparsity: str | None) -> None:
    model, x = network(kind)
    model = model if sparsity is None else gs.sparsify_(model, sparsity)
    gs.quantize_(model, "int8", calibration=[x])
    graph = graph_of(model, x)
    with torch.no_grad():
        expected = graph(x)
    assert set(types(graph, x)) == {torch.float32}
    pass_bytes(graph)
    same_bits(graph, x, expected)
    u, f = torch.uint8, torch.float32
    assert types(graph, x) == [u, u, f, f]  # what is behind a Tanh or a MaxPool is rounded by its reader
    wide = x * 3  # saturates
    with torch.no_grad():
        assert torch.equal(graph(wide), graph_of(model, x)(wide))


def test_without_fixed_ranges_nothing_changes() -> None:
    model, x = network("linear")
    graph = graph_of(gs.quantize_(model, "int8"), x)
    before = str(graph.graph)
    pass_bytes(graph)
    assert str(graph.graph) == before


def test_readers_must_agree() -> None:
    class Two(nn.Module):
        def __init__(self, shared: bool) -> None:
            super().__init__()
            self.first, self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.shared = shared

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            return self.one(y) + self.two(y) if self.shared else self.one(y) + y

    x = torch.randn(6, 8)
    cases = (True, None, torch.uint8), (False, None, torch.float32), (True, Range(0.5, 10), torch.float32)
    for shared, other, wanted in cases:
        torch.manual_seed(0)
        model = gs.quantize_(Two(shared), "int8", calibration=[x])
        if other is not None:
            model.two.packed = with_range(model.two.packed, other)
        graph = graph_of(model, x)
        pass_bytes(graph)
        assert types(graph, x)[0] is wanted
        with torch.no_grad():
            torch.testing.assert_close(graph(x), model(x))


def test_contiguous_images_and_half_precision_stay_floats() -> None:
    model, x = network("images")
    gs.quantize_(model, "int8", calibration=[x])
    for images in (x.contiguous(), x.bfloat16()):
        graph = graph_of(model, images)
        pass_bytes(graph)
        assert torch.uint8 not in types(graph, images)


def test_an_output_that_is_not_finite_is_an_error() -> None:
    model, x = network("linear")
    graph = graph_of(gs.quantize_(model, "int8", calibration=[x]), x)
    pass_bytes(graph)
    bad = x.clone()
    bad[3, 3] = float("nan")
    with torch.no_grad(), pytest.raises(RuntimeError, match="not finite"):
        graph(bad)


@pytest.mark.parametrize("kind", ["linear", "images"])
def test_deployed(kind: str, tmp_path: Any) -> None:
    model, x = network(kind)
    gs.quantize_(model.eval(), "int8", calibration=[x])
    served = gs.deploy(model, x, tmp_path / "model.pt2")
    with torch.no_grad():
        torch.testing.assert_close(served(x), model(x), rtol=1e-4, atol=1e-4)
