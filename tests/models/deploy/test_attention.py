"""Attention in an exported graph: replaced where our operator takes it, left where it doesn't."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import native
from gossamer.models.deploy.attention import replace_attention

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
ours = torch.ops.gossamer.attention.default


class Attend(nn.Module):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.kwargs = kwargs

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 2, 8).transpose(1, 2) for part in x.split(16, -1))
        out = F.scaled_dot_product_attention(q, k, v, mask, **self.kwargs)
        return out.transpose(1, 2).reshape(*x.shape[:2], 16)


def replaced(model: nn.Module, *inputs: Tensor, **options: Any) -> tuple[torch.fx.GraphModule, int]:
    graph: Any = torch.export.export(model, inputs, **options).module()
    replace_attention(graph)
    return graph, sum(node.target is ours for node in graph.graph.nodes)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_same_results(scale: float | None) -> None:
    model, x = Attend(scale=scale), torch.randn(2, 21, 48)
    mask = torch.rand(2, 1, 21, 21) < 0.7
    for inputs in ((x,), (x, mask)):
        graph, count = replaced(model, *inputs)
        assert count == 1
        torch.testing.assert_close(graph(*inputs), model(*inputs))


def test_what_is_left_to_torch() -> None:
    x = torch.randn(2, 21, 48)
    for model, inputs in (
        (Attend(is_causal=True), (x,)),
        (Attend(), (x.double(),)),
        (Attend(), (x, torch.zeros(2, 1, 21, 21))),  # added to the scores
        (Attend(), (x, torch.ones(2, 2, 21, 21, dtype=torch.bool))),  # a mask for each head
        (Attend(), (x, torch.ones(21, 21, dtype=torch.bool))),
    ):
        graph, count = replaced(model, *inputs)
        assert count == 0
        torch.testing.assert_close(graph(*inputs), model(*inputs))


def test_free_sizes() -> None:
    model, sizes = Attend(), {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2)}
    graph, count = replaced(model, torch.randn(2, 21, 48), dynamic_shapes=(sizes,))
    assert count == 1
    x = torch.randn(5, 40, 48)
    torch.testing.assert_close(graph(x), model(x))
    program = torch.export.export(graph, (torch.randn(2, 21, 48),), dynamic_shapes=(sizes,))
    torch.testing.assert_close(program.module()(x), model(x))
