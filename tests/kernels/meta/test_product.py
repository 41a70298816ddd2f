"""Shapes of products on the meta device."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats import PackedCSR, PackedNM
from gossamer.kernels.meta.product import MetaProduct


def test_shapes_by_hand():
    t = gs.from_dense(torch.ones(3, 5), gs.CSR())
    product = MetaProduct(t.structure, transpose=False)
    assert product.forward(torch.empty(2, 7, 5, device="meta"), t.values(), None).shape == (2, 7, 3)
    assert product.back(torch.empty(7, 3, device="meta"), t.values()).shape == (7, 5)
    assert product.sample(torch.empty(7, 3), torch.empty(7, 5)).shape == (15,)
    assert MetaProduct(t.structure, transpose=True).rows == 5


@pytest.mark.parametrize(
    "format", [gs.CSR(), gs.COO(), gs.ELL(), gs.BSR((2, 4)), gs.Masked(), PackedCSR(), PackedNM(2, 4)], ids=repr
)
def test_a_model_on_the_meta_device(format):
    model = gs.sparsify_(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), {"0": "2:4"}, format=format)
    state, x = model.state_dict(), torch.randn(3, 8)
    expected = model(x)
    model.to("meta")
    out = model(x.to("meta"))
    assert (out.shape, out.device.type) == ((3, 4), "meta")
    out.sum().backward()
    model.to_empty(device="cpu").load_state_dict(state)
    torch.testing.assert_close(model(x), expected)
