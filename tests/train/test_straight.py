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
    "HardConcrete": lambda m, o: gs.train.HardConcrete(m, o, price=1e-3, until=6),
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


def test_closures_are_refused():
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    gs.train.STE(layer, optimizer, "2:4")
    with pytest.raises(NotImplementedError, match="doesn't support closures"):
        optimizer.step(lambda: 0.0)
