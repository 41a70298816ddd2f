"""Units judged by their joint error, and columns rounded as they are fixed."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.patterns import NM, Blocks, Unstructured
from gossamer.prune import Gram, Known, SparseGPT
from gossamer.prune.factor import factor
from gossamer.prune.sparsegpt import removal_cost


def problem(rows, columns):
    x = torch.randn(4 * columns, columns, dtype=torch.float64) @ torch.randn(columns, columns, dtype=torch.float64)
    return torch.randn(rows, columns, dtype=torch.float64), x.T @ x


def error(new, weight, hessian):
    return float(((new - weight) @ hessian * (new - weight)).sum())


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("columns", [8, 10, 3])
def test_the_cost_of_a_unit_is_that_of_the_best_repair(width, columns):
    """min d^T H d over changes d that zero the unit P and may change what is right of it, nothing left of it."""
    weight, hessian = problem(3, columns)
    r, _ = factor(hessian[None], 0)
    cost = removal_cost(weight.T[None], r, width)[0].T
    for at in range(0, columns, width):
        unit, free = slice(at, min(at + width, columns)), slice(min(at + width, columns), columns)
        for row in range(3):
            d = torch.zeros(columns, dtype=torch.float64)
            d[unit] = -weight[row, unit]
            if free.start < columns:
                d[free] = -torch.linalg.solve(hessian[free, free], hessian[free, unit] @ d[unit])
            torch.testing.assert_close(cost[row, unit].sum(), d @ hessian @ d)


def test_blocks_go_by_their_joint_error():
    """Columns that repeat each other are cheap one by one, and dear together: such a block must stay."""
    same = torch.randn(400, 8, dtype=torch.float64).repeat_interleave(4, 1)  # 8 blocks of columns nearly the same ...
    own = torch.randn(400, 32, dtype=torch.float64)  # ... and 8 of columns that have nothing to do with each other
    x = torch.cat([same + 0.1 * torch.randn_like(same), own], 1)
    hessian = x.T @ x
    weight = torch.randn(16, 64, dtype=torch.float64).sign()
    weight[:, :32] = weight[:, :32:4].repeat_interleave(4, 1)
    known = Known(Gram(hessian[None]))
    joint = SparseGPT().prune(weight, Blocks(0.5, (1, 4)), known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gossamer.prune.sparsegpt.removal_cost", lambda now, here, width: removal_cost(now, here, 1))
        single = SparseGPT().prune(weight, Blocks(0.5, (1, 4)), known)
    assert joint.mask[:, :32].all() and not joint.mask[:, 32:].any()
    assert error(joint.weight, weight, hessian) < 0.5 * error(single.weight, weight, hessian)


@pytest.mark.parametrize("pattern", [NM(2, 4), Unstructured(0.5), Blocks(0.5, (1, 4))], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_weights_are_on_the_grid_of_their_largest(pattern, bits):
    weight, hessian = problem(16, 64)
    levels = 2 ** (bits - 1) - 1
    out = SparseGPT(bits=bits).prune(weight, pattern, Known(Gram(hessian[None])))
    steps = out.weight / (out.weight.abs().amax(1, keepdim=True) / levels)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-9)
    assert (steps.abs().amax(1).round() == levels).all() and not out.weight[~out.mask].any()


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_rounding_inside_beats_rounding_afterwards(bits):
    levels, inside, after = 2 ** (bits - 1) - 1, 0.0, 0.0
    for seed in range(5):
        torch.manual_seed(seed)
        weight, hessian = problem(32, 64)
        known = Known(Gram(hessian[None]))
        inside += error(SparseGPT(bits=bits).prune(weight, NM(2, 4), known).weight, weight, hessian)
        plain = SparseGPT().prune(weight, NM(2, 4), known).weight
        scale = plain.abs().amax(1, keepdim=True) / levels
        after += error((plain / scale).round() * scale, weight, hessian)
    assert inside < after


def test_a_row_of_zeros_and_groups():
    weight, hessian = problem(8, 16)
    weight[3] = 0
    gram = Gram(torch.stack([hessian, 2 * hessian]))
    out = SparseGPT(bits=8).prune(weight, NM(2, 4), Known(gram))
    assert out.weight.isfinite().all() and not out.weight[3].any()


def test_int8_loses_nothing_more():
    model, data = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), [torch.randn(128, 64)]
    gs.prune.oneshot(model, "2:4", data, method=SparseGPT(bits=8))
    dense = [layer.weight.detach().to_dense().clone() for layer in (model[0], model[2])]
    packed = copy.deepcopy(model)
    for layer in (packed[0], packed[2]):
        gs.nn.all_weights(layer)["weight"].become(layer.weight.sparse().to_format(gs.formats.PackedNM(2, 4)))
    packed = gs.quantize_(packed)
    for layer, want in zip((packed[0], packed[2]), dense, strict=True):
        torch.testing.assert_close(layer.dense(), want, rtol=1e-5, atol=1e-7)
