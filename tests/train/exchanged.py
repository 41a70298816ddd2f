"""One exchange of weights, whose numbers are known."""

import torch
from torch import nn


def update(kind, seed):
    """One exchange of 2 of 4 kept weights; returns the mask before and after."""
    layer = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    method = kind(layer, optimizer, 0.5, every=1, until=100, fraction=0.5, init=None, seed=seed)
    with torch.no_grad():
        method.layers[0].parameter.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0], [8.0, 7.0, 6.0, 5.0]]))
        method.layers[0].parameter.mul_(method.layers[0].mask)
    before = layer.weight.mask()
    (layer(torch.eye(4)) * torch.tensor([[1.0, 8.0], [2.0, 7.0], [3.0, 6.0], [4.0, 5.0]])).sum().backward()
    optimizer.step()
    method.step()
    return before, layer.weight.mask()
