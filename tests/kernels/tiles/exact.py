"""Products of packed tiles against float64, within the bounds of the number formats."""

import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedTiles
from gossamer.kernels.product import ACTIVATIONS
from gossamer.kernels.tiles.product import TilesProduct

U, HALF = 2.0**-24, 2.0**-8  # rounding errors of float32 and bfloat16


def weight_of(rows, cols, sparsity):
    dense = (torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)).bfloat16()
    return dense, gs.from_dense(dense, PackedTiles())


def check_product(rows, cols, tokens, sparsity, activation=0):
    """k terms are summed in float32, with an error of k u for the sum of their sizes, and rounded once."""
    dense, weight = weight_of(rows, cols, sparsity)
    x, bias = torch.randn(tokens, cols).bfloat16(), torch.randn(rows).bfloat16()
    out = TilesProduct(weight.structure, False).forward(x, weight.values(), bias, activation)
    assert out.dtype == torch.bfloat16 and out.shape == (tokens, rows)
    want = F.linear(x.double(), dense.double(), bias.double())
    sizes = F.linear(x.double().abs(), dense.double().abs(), bias.double().abs())
    function = ACTIVATIONS[activation]
    want = want if function is None else function(want)
    bound = (cols + 8) * 2 * U * sizes + 1.01 * HALF * want.abs() + 2.0**-126
    error = (out.double() - want).abs()
    assert bool((error <= bound).all()), (
        f"{rows} x {cols}, {tokens} tokens: {float((error / bound).max())} of the bound"
    )
