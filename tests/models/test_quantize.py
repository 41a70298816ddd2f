"""quantize_: which layers are taken, in which layout, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.models.quantize import _quantized_layers, usual
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.weights import all_weights


@pytest.mark.parametrize(
    ("pattern", "fp8", "int4"),
    [
        ("2:4", "fp8 2:4", "int4 weights 2:4"),
        (gs.VNM("all", 2, 8), "fp8 all:2:8", "int4 weights all:2:8"),
        (gs.VNM(64, 2, 8), "fp8 dense", "int4 weights 64:2:8"),
        ("1:4", "fp8 2:4", "int4 weights 2:4"),
        ("60%", "fp8 dense", "None"),
        ("fan-in 90%", "fp8 dense", "None"),
    ],
    ids=str,
)
def test_layouts(pattern: Any, fp8: str, int4: str) -> None:
    torch.manual_seed(0)
    dense = gs.sparsify(torch.randn(128, 256), pattern, format=gs.Dense())
    assert (str(usual(dense, "fp8")), str(usual(dense, "int4"))) == (fp8, int4)
    assert str(usual(dense, "int8")) == fp8.replace("fp8", "int8")


def test_which_layers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
            self.head.weight = self.embed.weight
            self.one, self.conv = nn.Linear(8, 8), nn.Conv1d(8, 8, 1)
            self.again, self.tied = self.one, nn.Linear(8, 8)
            self.tied.weight = self.one.weight
            self.long = nn.Linear(8, 8).double()

    model = gs.quantize_(Model(), "fp8")
    assert type(model.head) is nn.Linear and type(model.conv) is nn.Conv1d and type(model.long) is nn.Linear
    assert isinstance(model.one, QuantizedLinear) and model.again is model.one
    assert model.tied.values is model.one.values and model.tied.bias is not model.one.bias
    only = gs.quantize_(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), "fp8", where="0*")
    assert isinstance(only[0], QuantizedLinear) and type(only[1]) is nn.Linear
    assert isinstance(gs.quantize_(nn.Linear(4, 4), "fp8"), QuantizedLinear)


def test_int4_leaves_other_patterns() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    gs.sparsify_(model, {"0": "2:4", "*": None})
    gs.quantize_(model, "int4")
    assert isinstance(model[0], QuantizedLinear) and type(model[1]) is nn.Linear
    with pytest.raises(ValueError, match="and there are none"):
        gs.quantize_(nn.Sequential(nn.Linear(64, 64)), "int4")


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="has no linear layer"):
        gs.quantize_(nn.Sequential(nn.ReLU()), "fp8")
    with pytest.raises(ValueError, match="must be 'int8 weights', 'int8', 'fp8' or 'int4'"):
        gs.quantize_(nn.Linear(4, 4), "int3")  # type: ignore[arg-type]
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"1\.weight: .*not finite"):
        gs.quantize_(model, "fp8")
    assert type(model[0]) is nn.Linear  # nothing was changed
    weights = all_weights(nn.Linear(8, 8))
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with pytest.raises(ValueError, match=r"fp8 needs compute capability 8\.9.*use int4 or int8"):
        _quantized_layers({"weight": weights["weight"]}, "fp8")
