"""The range of activations over calibration batches, and layers that use it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.kernels.int8.weight import Range
from gossamer.models.observe import observe

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")


def test_by_hand() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model[0].weight.data = torch.eye(2)
    found = observe(model, [model[0]], [(torch.tensor([[-4.0, 0.0]]),), {"input": torch.tensor([[250.0, 1.0]])}])
    assert found == {model[0]: Range(1.0, 4)}
    assert model.training and not model[0]._forward_pre_hooks


def test_what_is_refused() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no batch"):
        observe(layer, [layer], [])
    with pytest.raises(ValueError, match="not finite"):
        observe(layer, [layer], [torch.tensor([[float("nan"), 1.0]])])
    with pytest.raises(ValueError, match="calibration is for how='int8'"):
        gs.quantize_(layer, "int8 weights", [torch.ones(1, 2)])


@pytest.mark.parametrize("how", [None, "2:4", "block 1x4 75%"])
def test_static_and_dynamic_agree_where_the_range_is_that_of_the_token(how: str | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 33))
    if how is not None:
        gs.sparsify_(model, how)
    x = torch.randn(1, 64)
    static, dynamic = gs.quantize_(copy.deepcopy(model), "int8", [x]), gs.quantize_(model, "int8")
    with torch.no_grad():
        torch.testing.assert_close(static(x), dynamic(x), atol=1e-6, rtol=1e-6)
        assert float((static(x / 7) - dynamic(x / 7)).abs().max()) > 1e-5
    assert static[0].range is not None and dynamic[0].range is None
    assert "activations" in repr(static[0])


def test_values_outside_saturate() -> None:
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    small = gs.quantize_(nn.Sequential(layer), "int8", [torch.tensor([[-1.0, 1.0, 0.0, 0.0]])])
    with torch.no_grad():
        out = small(torch.tensor([[-1000.0, 1000.0, 0.0, 0.0], [float("nan"), 1.0, 0.0, 0.0]]))
    torch.testing.assert_close(out[0], torch.tensor([-1.0, 1.0]), atol=1e-6, rtol=0)
    assert bool(out[1].isnan().all())  # as with a range of its own


def test_a_layer_that_no_batch_reaches_has_no_range() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = gs.quantize_(Half(), "int8", [torch.ones(2, 4)])
    assert model.used.range is not None and model.unused.range is None  # type: ignore[union-attr]


def test_it_is_packed_saved_and_trained_through(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = gs.sparsify_(nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 8)), "75%")
    x = torch.randn(5, 64)
    plain = copy.deepcopy(model)
    small = gs.quantize_(model, "int8", [x])
    kept = small[0].range
    gs.pack_(small, x, tune=False)
    assert small[0].range == kept
    gs.save(small, tmp_path / "model.safetensors")
    again = gs.load(nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 8)), tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(again(x), small(x))
        assert float((small(x) - plain(x)).norm() / plain(x).norm()) < 0.05
    y = x.clone().requires_grad_()
    small(y).sum().backward()
    assert y.grad is not None and bool(y.grad.isfinite().all())
