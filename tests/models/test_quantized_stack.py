"""What is known of one weight of quantized experts."""

from types import SimpleNamespace

import pytest
import torch

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.stack import layout_of, stacked
from gossamer.models.quantized_stack import ExpertsWeight, QuantizedStack, arrays_in


def test_where_there_are_kernels(monkeypatch):
    stack = QuantizedStack(Layout("fp8", 64, 8), (2, 64, 64))
    assert stack.refusal(torch.device("meta")) == "there are kernels for a GPU, and this is a META"
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    assert stack.refusal(torch.device("cuda")) is None
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    assert "9.0" in stack.refusal(torch.device("cuda"))


def test_arrays_by_name():
    held = {"up_proj_values": torch.ones(1), "up_proj_meta": torch.ones(2), "down_proj_scale": torch.ones(3)}
    arrays = arrays_in(held, "up_proj")
    assert arrays.values is held["up_proj_values"] and arrays.meta is held["up_proj_meta"] and arrays.scale is None


@pytest.mark.parametrize("m", [4, 8])
def test_a_weight(m):
    dense = torch.stack([gs.sparsify(torch.randn(64, 64), gs.VNM("all", 2, m), format=gs.Dense()) for _ in range(2)])
    layout = layout_of("fp8", 64, m)
    stack, arrays = QuantizedStack(layout, (2, 64, 64)), stacked(dense, layout)
    said = gs.explain(torch.add, torch.ones(1), torch.ones(1))
    experts = SimpleNamespace(
        stacks={"up_proj": stack}, arrays=lambda name: arrays, weights_dtype=torch.bfloat16, explain=lambda *x: said
    )
    weight = ExpertsWeight(experts, "up_proj")
    assert (weight.shape, weight.layout, weight.dense_bytes) == ((2, 64, 64), layout, 2 * 64 * 64 * 2)
    assert weight.nbytes == sum(array.nbytes for array in arrays if array is not None)
    assert weight.weight.dtype is torch.bfloat16 and weight.explain() is said
    assert weight.nnz == int(weight.mask().sum()) <= 2 * 64 * 64 * 2 // m
    torch.testing.assert_close(weight.weight.float(), dense, rtol=0.08, atol=0.02)
