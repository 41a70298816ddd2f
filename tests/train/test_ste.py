"""STE and SR-STE by hand, their schedules, and what they refuse."""

import pytest
import torch
from torch import nn

import gossamer as gs


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


def steps(layer, optimizer, method, count):
    for _ in range(count):
        optimizer.zero_grad()
        layer(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        method.step()


def test_masks_are_fixed_from_until_on():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    method = gs.train.STE(layer, optimizer, "2:4", until=3)
    steps(layer, optimizer, method, 3)
    mask = layer.weight.mask()
    steps(layer, optimizer, method, 5)
    assert torch.equal(layer.weight.mask(), mask)


def test_masks_are_chosen_every_few_steps():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    method = gs.train.SRSTE(layer, optimizer, "2:4", refresh=3)
    masks = []
    for _ in range(6):
        steps(layer, optimizer, method, 1)
        masks.append(layer.weight.mask())
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[2], masks[4])
    assert not torch.equal(masks[1], masks[2]) and not torch.equal(masks[4], masks[5])


def test_a_schedule_reaches_the_pattern_step_by_step():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.STE(layer, optimizer, "2:8", schedule="linear", until=6)
    kept = []
    for _ in range(7):
        steps(layer, optimizer, method, 1)
        kept.append(int(layer.weight.mask()[0, :8].sum()))
    assert kept == sorted(kept, reverse=True) and kept[0] > 2 and kept[-2:] == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "linear"}, "give until="),
        ({"compute": "fast"}, "must be 'masked' or 'sparse'"),
        ({"refresh": 0}, "refresh=0 must be a number of steps"),
        ({"compute": "sparse"}, "needs '2:4' with transposable=True"),
    ],
)
def test_refused(options, message):
    layer = nn.Linear(16, 8)
    with pytest.raises(ValueError, match=message):
        gs.train.STE(layer, torch.optim.SGD(layer.parameters(), lr=0.1), "2:4", **options)


def test_a_sparsity_is_that_of_each_layer():
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    gs.train.STE(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.75)
    assert [layer.weight.nnz for layer in model] == [32, 8]
