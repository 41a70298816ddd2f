"""A constant fan-in by hand: which neurons stay, and which inputs each keeps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.train.fan_in import active_neurons, constant_fan_in, fill


def mask_of(rows):
    return torch.tensor([[c == "x" for c in row] for row in rows])


def test_salient_neurons_stay():
    salient = mask_of(["xx..", "x...", "....", "xxx."])
    weight = torch.ones(4, 4)
    assert active_neurons(salient, weight, 8, 0.5).tolist() == [True, True, False, True]
    assert active_neurons(salient, weight, 8, 1.0).tolist() == [True, False, False, True]
    assert active_neurons(salient, weight, 8, 0.0, least=3).tolist() == [True, False, False, True]  # 8 need 2 rows of 4


def test_never_more_neurons_than_weights():
    salient = mask_of(["x...", "x...", "x...", "x..."])
    weight = torch.tensor([[3.0], [1.0], [4.0], [2.0]]).expand(4, 4)
    assert active_neurons(salient, weight, 2, 0.3).tolist() == [True, False, True, False]


def test_surplus_is_cut_at_the_smallest():
    stay = mask_of(["xxxx"])
    weight = torch.tensor([[1.0, 4.0, 2.0, 3.0]])
    assert torch.equal(fill(stay, weight, torch.ones(1, 4), torch.tensor([True]), 2), mask_of([".x.x"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_growth_never_beats_what_stays(dtype):
    stay = mask_of(["x..."])
    weight, grow = torch.tensor([[1e-6, 0, 0, 0]]).to(dtype), torch.tensor([[0, 3e6, 1.0, 2e6]]).to(dtype)
    assert torch.equal(fill(stay, weight, grow, torch.tensor([True]), 2), mask_of(["xx.."]))


def test_srigl_by_hand():
    weight = torch.tensor([[4.0, 3.0, 0.0, 0.0], [0.5, 0.0, 2.0, 0.0], [0.1, 0.0, 0.0, 0.2]])
    grad = torch.tensor([[0.0, 0.0, 1.0, 7.0], [0.0, 8.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]])
    # 6 kept, a third goes: 4, 3, 2 and .5 stay; 8 and 7 are salient gradients. Neuron 2 has no salient weight.
    new = constant_fan_in(weight, weight != 0, grad, 6, 1 / 3, gamma=0.5)
    assert torch.equal(new, mask_of(["xx.x", "xxx.", "...."]))
    # without ablation each neuron has 2; the third keeps none of its own and grows the two of largest gradient
    new = constant_fan_in(weight, weight != 0, grad, 6, 1 / 3, gamma=None)
    assert torch.equal(new, mask_of(["xx..", "x.x.", "xx.."]))


def test_an_ablated_neuron_can_come_back():
    weight = torch.tensor([[4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    grad = torch.tensor([[0.0, 0.0, 0.0, 0.0], [9.0, 8.0, 0.0, 0.0]])
    new = constant_fan_in(weight, weight != 0, grad, 4, 0.5, gamma=0.5)
    assert torch.equal(new, mask_of(["xx..", "xx.."]))


@given(st.integers(1, 9), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.integers(0, 999))
def test_every_active_neuron_has_the_same_fan_in(neurons, inputs, density, fraction, ablated, seed):
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(neurons, inputs, generator=rng) < density
    weight = torch.randn(neurons, inputs, generator=rng) * mask
    grad = torch.randn(neurons, inputs, generator=rng)
    budget = max(int(mask.sum()), neurons)
    new = constant_fan_in(weight, mask, grad, budget, fraction, 0.5 if ablated else None)
    counts = set(new.sum(1).tolist())
    assert len(counts - {0}) == 1 and int(new.sum()) <= budget
    assert ablated or 0 not in counts
