"""Small networks to prune."""

import torch
from torch import nn

import gossamer as gs

METHODS = ["magnitude", "wanda", "sparsegpt", "obs", gs.prune.OBS("hessian")]


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4))


def batches(count=4, size=32):
    mix = torch.randn(16, 16)
    return [torch.randn(size, 16) @ mix for _ in range(count)]


def distance(model, dense, data):
    with torch.no_grad():
        return float(sum((model(x) - dense(x)).square().sum() for x in data))
