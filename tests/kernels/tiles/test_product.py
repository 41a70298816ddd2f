"""Products with packed tiles: which calls they take, in layers, with gradients, compiled."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.formats import PackedTiles
from gossamer.kernels.product import Case
from gossamer.kernels.tiles.product import TilesProduct
from tests.kernels.tiles.exact import weight_of

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")


def test_what_it_takes():
    case = Case(PackedTiles, False, torch.bfloat16, "cpu", False, False)
    assert TilesProduct.takes(case) is None
    assert "bfloat16" in TilesProduct.takes(case._replace(dtype=torch.float32))
    assert "transpose" in TilesProduct.takes(case._replace(transpose=True))
    assert "CPU" in TilesProduct.takes(case._replace(device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_other_types_are_right_too(dtype):
    dense = (torch.randn(20, 33) * (torch.rand(20, 33) < 0.5)).to(dtype)
    weight, x = gs.from_dense(dense, PackedTiles()), torch.randn(4, 33).to(dtype)
    with gs.fallback("silent"):
        torch.testing.assert_close(F.linear(x, weight), F.linear(x, dense), rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(x[:, :20] @ weight, x[:, :20] @ dense, rtol=2e-2, atol=2e-2)


def test_a_layer_with_gradients():
    torch.manual_seed(0)
    dense, weight = weight_of(48, 70, 0.5)
    weight.requires_grad_()
    x = torch.randn(5, 70).bfloat16().requires_grad_()
    F.linear(x, weight).float().square().sum().backward()
    same, other = dense.clone().requires_grad_(), x.detach().clone().requires_grad_()
    F.linear(other, same).float().square().sum().backward()
    torch.testing.assert_close(weight.grad.to_dense(), torch.where(dense != 0, same.grad, 0), rtol=0.05, atol=0.5)
    torch.testing.assert_close(x.grad, other.grad, rtol=0.05, atol=0.5)


def model_of():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 40)).bfloat16()
    return gs.sparsify_(model, "60%", format=PackedTiles())


def test_a_model_eager_compiled_exported_and_saved(tmp_path):
    model, x = model_of(), torch.randn(6, 64).bfloat16()
    dense = gs.densify_(model_of())
    with torch.no_grad():
        expected = dense(x)
        torch.testing.assert_close(model(x), expected, rtol=0.02, atol=0.02)
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))
    gs.save(model, tmp_path / "m.safetensors")
    again = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 40)).bfloat16()
    gs.load(again, tmp_path / "m.safetensors")
    assert again[0].weight.format == PackedTiles()
    assert torch.equal(again(x), model(x))


def test_trains_as_the_dense_model_with_a_mask():
    model, x = model_of(), torch.randn(6, 64).bfloat16()
    mask = model[0].weight.mask()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.to_dense().clone()
    model(x).float().square().mean().backward()
    optimizer.step()
    after = model[0].weight.to_dense()
    assert not torch.equal(after, before) and torch.equal(after != 0, (after != 0) & mask)
