"""gs.summary and gs.count_flops."""

import torch
from torch import nn

import gossamer as gs


def test_summary_counts_bytes_and_density():
    model = gs.sparsify_(nn.Linear(16, 32), "75%", format=gs.CSR())
    found = gs.summary(model)
    weight, bias = found.rows
    assert (weight.name, weight.shape, weight.format, weight.density) == ("weight", (32, 16), "CSR()", 0.25)
    assert weight.bytes == 128 * 4 + 33 * 4 + 128 * 4
    assert (bias.bytes, found.dense_bytes) == (128, 16 * 32 * 4 + 128)
    assert "75.0%" in str(found)


def test_flops_of_linear_and_convolution():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    gs.sparsify_(model, {"0": "75%", "*": None})
    flops = gs.count_flops(model, torch.randn(1, 1, 4, 4))
    assert flops.layers == {"0": (2 * 4 * 9, 2 * 4 * 36), "2": (64, 64)}
    assert flops.ratio == (72 + 64) / (288 + 64)
