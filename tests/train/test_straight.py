"""Straight-through methods: all weights train, the model computes with the sparse ones."""

import pytest
import torch
from torch import nn

import gossamer as gs

KINDS = {
    "STE": lambda m, o: gs.train.STE(m, o, "2:4"),
    "SRSTE": lambda m, o: gs.train.SRSTE(m, o, "50%"),
    "TopKAST": lambda m, o: gs.train.TopKAST(m, o, 0.75, backward=0.5),
    "Movement": lambda m, o: gs.train.Movement(m, o, 0.75, until=4),
    "HardConcrete": lambda m, o: gs.train.HardConcrete(m, o, 1e-3, until=6),
}


def one_step(model, optimizer, method, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(6, 16)).square().mean().backward()
    optimizer.step()
    method.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_weights_outside_of_the_mask_live_on(kind, optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8))
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    method = KINDS[kind](model, optimizer)
    for step in range(8):
        one_step(model, optimizer, method, step)
        for layer in method.layers:
            values = layer.parameter.detach().to_dense()
            assert not values[~layer.mask].any()
            assert torch.equal(layer.weight, method.values(layer).masked_fill(~layer.mask, 0))
            assert (layer.extra["dense"] != 0).all()
    if kind not in ("HardConcrete",):
        assert method.log()["density"] == pytest.approx(0.5 if "STE" in kind else 0.25, abs=0.01)
    optimizer.zero_grad()
    model.eval()
    assert model(torch.randn(2, 16)).shape == (2, 8)


def test_ste_by_hand():
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.9]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.STE(layer, optimizer, "1:2")
    assert layer.weight.to_dense().tolist() == [[1.0, 0.0]]
    layer(torch.tensor([[1.0, -1.0]])).sum().backward()  # gradient [1, -1]: 1 falls to 0.9, 0.9 rises to 1
    optimizer.step()
    method.step()
    torch.testing.assert_close(layer.weight.detach().to_dense(), torch.tensor([[0.0, 1.0]]))


def test_srste_pulls_what_is_out():
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.5]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    method = gs.train.SRSTE(layer, optimizer, "1:2", decay_out=0.1)
    (layer(torch.zeros(1, 2)) * 0).sum().backward()
    optimizer.step()
    method.step()
    torch.testing.assert_close(method.layers[0].extra["dense"], torch.tensor([[1.0, 0.45]]))


def test_movement_keeps_what_moves_away_from_zero():
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0, 1.0, -1.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.Movement(layer, optimizer, 0.5, until=1)
    layer(torch.tensor([[-1.0, -1.0, 1.0, 1.0]])).sum().backward()  # descent: + for 0 and 1, - for 2 and 3
    optimizer.step()
    method.step()
    assert layer.weight.mask().tolist() == [[True, False, False, True]]


def test_top_kast_updates_the_larger_set_only():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.TopKAST(layer, optimizer, 0.75, backward=0.5)
    before = method.layers[0].extra["dense"].clone()
    one_step(layer, optimizer, method, 0)
    assert int((method.layers[0].extra["dense"] != before).sum()) == 64


def test_closures_are_refused():
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    gs.train.STE(layer, optimizer, "2:4")
    with pytest.raises(NotImplementedError, match="no closure"):
        optimizer.step(lambda: 0.0)
