"""Top-KAST by hand: which weights move, and where they are pulled."""

import pytest
import torch
from torch import nn

import gossamer as gs


def test_top_kast_updates_the_larger_set_only():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.TopKAST(layer, optimizer, 0.75, backward=0.5)
    before = method.layers[0].extra["dense"].clone()
    layer(torch.randn(6, 16)).square().mean().backward()
    optimizer.step()
    method.step()
    assert int((method.layers[0].extra["dense"] != before).sum()) == 64


def test_the_pull_is_stronger_outside():
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    method = gs.train.TopKAST(layer, optimizer, 0.75, backward=0.25, penalty=0.1)
    (layer(torch.zeros(1, 4)) * 0).sum().backward()
    optimizer.step()
    # One weight of four is computed with: density 1/4, so others are pulled four times as much; the last one not.
    torch.testing.assert_close(method.layers[0].extra["dense"], torch.tensor([[3.6, 1.8, 1.2, 1.0]]))


def test_the_larger_set_is_twice_as_large_unless_given():
    def make(**options):
        layer = nn.Linear(16, 8)
        return gs.train.TopKAST(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.7, **options)

    assert make().backward == pytest.approx(0.4)
    with pytest.raises(ValueError, match=r"backward=0\.8 must be from 0 to sparsity=0\.7"):
        make(backward=0.8)
