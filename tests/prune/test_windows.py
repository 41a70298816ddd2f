"""Every output is the weight's row times the unfolded inputs: for every kind of convolution."""

import pytest
import torch
from torch import nn

from gossamer.methods import layers_of
from gossamer.models.weights import all_weights
from gossamer.prune import windows
from gossamer.prune.windows import Geometry, columns, geometry


def outputs_match(layer, x):
    how = geometry({"weight": layer.weight, **vars(layer)}, layer.transposed)
    (read,) = layers_of(all_weights(layer)["weight"])
    matrix = read.matrix(read.dense())
    with torch.no_grad():
        out = layer(x)
        if layer.padding_mode == "circular":
            x, how = (
                nn.functional.pad(x, layer._reversed_padding_repeated_twice, "circular"),
                how._replace(padding="valid"),
            )
        cols = torch.cat(list(columns(x, how)), 1)  # groups, tokens, columns
    product = matrix.view(len(cols), -1, cols.shape[2]) @ cols.mT
    want = out - layer.bias.detach().view(1, -1, *[1] * (out.dim() - 2))
    torch.testing.assert_close(
        product.reshape(len(matrix), len(x), -1), want.flatten(2).transpose(0, 1), rtol=1e-4, atol=1e-4
    )


OPTIONS = [
    {}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2},
    {"stride": 2, "padding": 2, "dilation": 2, "groups": 2},
]  # fmt: skip
OTHERS = [{"padding": "same"}, {"padding": "valid"}, {"padding": 1, "padding_mode": "circular"}]


@pytest.mark.parametrize(
    "options",
    [*OPTIONS, {"padding": "same"}, {"padding": "valid"}, {"padding": 1, "padding_mode": "circular"}],
    ids=str,
)
def test_convolutions(options):
    outputs_match(nn.Conv1d(4, 6, 3, **options), torch.randn(2, 4, 12))
    outputs_match(nn.Conv2d(4, 6, (3, 5), **options), torch.randn(2, 4, 9, 11))


@pytest.mark.parametrize("options", [*OPTIONS, {"stride": 3, "output_padding": 1}, {"padding": 2}], ids=str)
def test_transposed_convolutions(options):
    outputs_match(nn.ConvTranspose1d(4, 6, 3, **options), torch.randn(2, 4, 7))
    outputs_match(nn.ConvTranspose2d(4, 6, (3, 2), **options), torch.randn(2, 4, 5, 6))


def test_conv3d_and_depthwise():
    outputs_match(nn.Conv3d(2, 3, 2, stride=2), torch.randn(2, 2, 4, 5, 6))
    outputs_match(nn.ConvTranspose3d(2, 3, 2, stride=2), torch.randn(2, 2, 2, 3, 2))
    outputs_match(nn.Conv2d(6, 6, 3, groups=6, padding=1), torch.randn(2, 6, 5, 5))


def test_a_few_samples_at_a_time(monkeypatch):
    x, how = torch.randn(5, 2, 8), Geometry((3,), (1,), (0,), (1,), 1)
    (full,) = columns(x, how)
    monkeypatch.setattr(windows, "_VALUES", 2 * 2 * 8 * 3)
    parts = list(columns(x, how))
    assert len(parts) == 3 and torch.equal(torch.cat(parts, 1), full)


def test_without_a_batch():
    how = Geometry((2,), (1,), (0,), (1,), 1)
    x = torch.randn(3, 6)
    assert torch.equal(next(columns(x, how)), next(columns(x[None], how)))
