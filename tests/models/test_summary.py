"""gs.summary and gs.count_flops."""

import torch
from torch import nn

import gossamer as gs
from gossamer.kernels.int8.layout import Layout


def test_summary_counts_bytes_and_density():
    model = gs.sparsify_(nn.Linear(16, 32), "75%", format=gs.CSR())
    found = gs.summary(model)
    weight, bias = found.rows
    assert (weight.name, weight.shape, weight.format, weight.density) == ("weight", (32, 16), "CSR()", 0.25)
    assert weight.bytes == 128 * 4 + 33 * 4 + 128 * 4
    assert (bias.bytes, found.dense_bytes) == (128, 16 * 32 * 4 + 128)
    assert found.density == (128 + 32) / (512 + 32)  # the bias is dense
    assert "75.0%" in str(found) and f"{1 - found.density:.1%}" in str(found)


def test_a_model_without_parameters_is_not_sparse():
    assert gs.summary(nn.ReLU()).density == 1.0
    assert "the model is 0.0 % sparse" in str(gs.pack_(nn.ReLU()))


def test_flops_of_linear_and_convolution():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    gs.sparsify_(model, {"0": "75%", "*": None})
    flops = gs.count_flops(model, torch.randn(1, 1, 4, 4))
    assert flops.layers == {"0": (2 * 4 * 9, 2 * 4 * 36), "2": (64, 64)}
    assert flops.ratio == (72 + 64) / (288 + 64)


def test_an_int8_layer_has_the_sparsity_of_its_pattern_in_every_layout() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    layer.weight.data[0, 0] = 100.0  # so that the rest of this row is rounded to 0
    model = gs.quantize_(gs.sparsify_(nn.Sequential(layer), "50%"), "int8")
    for kind in ("lookup", "dense"):
        model[0].repack(Layout(kind))
        (row,) = [r for r in gs.summary(model).rows if "packed" in r.name]
        assert row.density == 0.5 and model[0].nnz == int(model[0].mask().sum()) == 1024
        assert gs.pack_(model, tune=False).layers[0].sparsity == 0.5
    whole = gs.quantize_(nn.Sequential(nn.Linear(64, 32)), "int8")
    assert gs.summary(whole).rows[-1].density == 1.0
