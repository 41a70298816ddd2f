"""torchao: its quantized layers and our sparse ones in one model, in either order."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).eval()


@pytest.fixture
def quantize():
    api = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install torchao")
    # a sparse layer is a subclass, and left alone by this
    return lambda m: api.quantize_(m, api.Int8WeightOnlyConfig(), filter_fn=lambda layer, _: type(layer) is nn.Linear)


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_after_us(quantize):
    model, x = gs.sparsify_(network(), {"0": "75%", "*": None}), torch.randn(8, 256)
    gs.pack_(model, x, tune=False)
    before, weight = model(x), model[0].weight.to_dense()
    quantize(model)
    assert type(model[2].weight).__module__.startswith("torchao")
    assert torch.equal(model[0].weight.to_dense(), weight)
    assert float((model(x) - before).abs().max() / before.abs().max()) < 0.05


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_before_us(quantize):
    model, x = network(), torch.randn(8, 256)
    quantize(part := nn.ModuleList([model[2]]))
    assert part[0] is model[2]
    expected = copy.deepcopy(model)
    gs.sparsify_(model, {"0": "75%", "*": None})
    assert [layer.name for layer in gs.pack_(model, x, tune=False).layers] == ["0.weight"]
    expected[0].weight.copy_(model[0].weight.to_dense())
    torch.testing.assert_close(model(x), expected(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(TypeError, match="before it is quantized"):
        gs.sparsify_(model, "75%", where="2")
