"""Additions in convolutions in eight bits: where they are fused, with the same bits, and where they can't be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import gossamer as gs
from gossamer import native
from gossamer.models.deploy.graph import fuse
from gossamer.models.deploy.passing import pass_bytes
from gossamer.models.deploy.residual import add_in_convolutions

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
_aten, _conv = torch.ops.aten, torch.ops.gossamer.int8_conv2d.default
_LAST = torch.channels_last


class Block(nn.Module):
    """Two convolutions and an addition, which a function does."""

    def __init__(self, how: Any, stride: int = 1) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 24, 1, stride=stride)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.how(self, x)
        return out


def images(*size: int) -> Tensor:
    return torch.randn(*(size or (2, 24, 9, 7))).contiguous(memory_format=_LAST)


def graph_of(model: nn.Module, x: Tensor) -> GraphModule:
    with torch.no_grad():
        return torch.export.export(model.eval(), (x,)).module()  # type: ignore[return-value]


def additions(graph: GraphModule) -> int:
    return sum(node.target in (_aten.add.Tensor, _aten.add_.Tensor) for node in graph.graph.nodes)


def fused(graph: GraphModule) -> int:
    return sum(node.target is _conv and node.args[3] is not None for node in graph.graph.nodes)


def of_a_resnet(m: Any, x: Tensor) -> Tensor:
    return F.relu(m.second(F.relu(m.first(x))) + x)


def in_place(m: Any, x: Tensor) -> Tensor:
    out = m.second(F.relu(m.first(x), inplace=True))
    out += x
    return F.relu(out, inplace=True)


def the_other_order(m: Any, x: Tensor) -> Tensor:
    return x + m.first(x)


def two_convolutions(m: Any, x: Tensor) -> Tensor:
    return m.first(x) + m.second(x)


def what_is_added_comes_later(m: Any, x: Tensor) -> Tensor:
    return F.gelu(m.second(m.first(x)) + m.second(x))


@pytest.mark.parametrize("how", [of_a_resnet, in_place, the_other_order, two_convolutions, what_is_added_comes_later])
@pytest.mark.parametrize("sparsity", [None, "80%"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_same_bits(how: Any, sparsity: str | None, calibrated: bool) -> None:
    model, x = Block(how), images()
    model = model if sparsity is None else gs.sparsify_(model, sparsity)
    gs.quantize_(model, "int8", calibration=[x] if calibrated else None).requires_grad_(False)
    graph = graph_of(model, x)
    expected = graph(x.clone(memory_format=torch.preserve_format))
    add_in_convolutions(graph)
    assert (additions(graph), fused(graph)) == (0, 1)
    assert torch.equal(graph(x.clone(memory_format=torch.preserve_format)), expected)
    fuse(graph)
    pass_bytes(graph)
    torch.testing.assert_close(graph(x), expected, rtol=1e-5, atol=1e-5)


def test_bytes_are_not_passed_to_what_adds_floats() -> None:
    def reads_twice(m: Any, x: Tensor) -> Tensor:
        y = F.relu(m.first(x))
        return m.second(y) + y  # type: ignore[no-any-return]

    model, x = Block(reads_twice), images()
    gs.quantize_(model, "int8", calibration=[x]).requires_grad_(False)
    graph = graph_of(model, x)
    expected = graph(x)
    fuse(graph)
    pass_bytes(graph)
    assert fused(graph) == 1 and torch.equal(graph(x), expected)


def changed_before(m: Any, x: Tensor) -> Tensor:
    y, z = x * 2, m.first(x)
    y.mul_(3)
    return z + y  # type: ignore[no-any-return]


def changed_itself(m: Any, x: Tensor) -> Tensor:
    y = x * 2
    y += m.first(x)
    return y + y


@pytest.mark.parametrize(
    "how",
    [
        changed_before,
        changed_itself,
        lambda m, x: torch.add(m.first(x), x, alpha=2),
        lambda m, x: m.first(x) + x[:, :, :1],
        lambda m, x: m.first(x) + 1.5,
        lambda m, x: m.first(x) + x.contiguous(),
        lambda m, x: m.first(x) + x.double(),
        lambda m, x: F.relu(m.first(x)) + x,
        lambda m, x: (lambda y: y + y)(m.first(x)),
        lambda m, x: (lambda y: (y + x) * y)(m.first(x)),
        lambda m, x: m.first(x.contiguous()) + x,
    ],
    ids=["changed", "itself", "alpha", "broadcast", "number", "order", "type", "activated", "twice", "read", "planes"],
)
def test_what_can_not_be_fused_is_left_alone(how: Any) -> None:
    model, x = Block(how), images()
    gs.quantize_(model, "int8").requires_grad_(False)
    graph = graph_of(model, x)
    expected = graph(x)
    add_in_convolutions(graph)
    assert torch.equal(graph(x), expected) and fused(graph) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [(), (0,)])
def test_deployed(tmp_path: Path, dynamic: tuple[int, ...]) -> None:
    model, x = nn.Sequential(Block(of_a_resnet), Block(in_place)), images()
    gs.quantize_(gs.sparsify_(model, "70%"), "int8").requires_grad_(False)
    expected = model(x.clone(memory_format=torch.preserve_format))
    served = gs.deploy(model, x.clone(memory_format=torch.preserve_format), tmp_path / "model.pt2", dynamic=dynamic)
    torch.testing.assert_close(served(x), expected, rtol=1e-4, atol=1e-4)
