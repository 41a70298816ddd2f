"""What layers in eight bits share: bytes that are checked, repacked and described alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.kernels.int8.layout import Layout
from gossamer.models.int8_layer import Int8Layer

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
LAYERS = {"linear": (nn.Linear(64, 24), (5, 64)), "convolution": (nn.Conv2d(8, 24, 3), (2, 8, 6, 6))}


def small(kind: str) -> tuple[Int8Layer, torch.Tensor]:
    torch.manual_seed(0)
    layer, shape = LAYERS[kind]
    return gs.quantize_(gs.sparsify_(type(layer)(*_sizes(layer)), "75%"), "int8"), torch.randn(shape)  # type: ignore[return-value]


def _sizes(layer: nn.Module) -> tuple[int, ...]:
    return (64, 24) if isinstance(layer, nn.Linear) else (8, 24, 3)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("layout", [Layout("dense"), Layout("bitmap"), Layout("lookup")], ids=str)
def test_repacking_changes_bytes_and_nothing_else(kind: str, layout: Layout) -> None:
    layer, x = small(kind)
    with torch.no_grad():
        before, mask, weight = layer(x), layer.mask(), layer.weight
        layer.repack(layout)
        assert layer.layout == layout and torch.equal(layer(x), before)
    assert torch.equal(layer.mask(), mask) and torch.equal(layer.weight, weight)
    assert layer.nbytes == layer.packed.numel() and layer.dense_bytes == 4 * weight.numel()
    assert str(layout) in repr(layer) and layer.shape == tuple(weight.shape)


@pytest.mark.parametrize("kind", LAYERS)
def test_bytes_are_checked(kind: str) -> None:
    layer, _ = small(kind)
    layer.check()
    with pytest.raises(ValueError, match="no int8 weight"):
        layer.check_bytes(torch.zeros(999, dtype=torch.uint8))
    other, _ = small("convolution" if kind == "linear" else "linear")
    with pytest.raises(ValueError, match="and that of the layer 24 x"):
        layer.check_bytes(other.packed)


@pytest.mark.parametrize("kind", LAYERS)
def test_without_kernels_a_dense_weight_is_used(kind: str) -> None:
    layer, x = small(kind)
    with torch.no_grad():
        exact = layer.compute_dense(x)
        layer.kernels = False
        with torch.autograd.set_detect_anomaly(False), torch.enable_grad():
            torch.testing.assert_close(layer(x), exact)
    assert layer.explain(x).how == "fallback"
