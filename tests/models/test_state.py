"""Optimizer state follows a weight through every change of mask and format."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats.values import scatter
from tests.ops.test_training import OPTIMIZERS
from tests.support import masks

KINDS = {
    "dense": lambda w, mask: w.become(w.dense(), None, gs.Dense()),
    "masked": lambda w, mask: w.become(w.dense(), mask, gs.Masked()),
    "CSR": lambda w, mask: w.become(w.dense(), mask, gs.CSR()),
    "ELL": lambda w, mask: w.become(w.dense(), mask, gs.ELL()),  # which has padding
    "packed": lambda w, mask: w.become(w.dense(), mask, gs.formats.PackedCSR()),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    model(x).square().mean().backward()
    optimizer.step()


def in_dense(weight: gs.nn.Weight, value: torch.Tensor) -> torch.Tensor:
    """State of a weight as a dense tensor."""
    if value.shape == weight.shape:
        return value
    return scatter(value, weight.structure)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(KINDS, 2)), ids="-".join)
def test_a_change_of_kind_is_masked_dense_training(optimizer: str, before: str, after: str) -> None:
    """Change a weight in mid-training; a dense model whose state is cleared by hand must go the same way."""
    mask = torch.rand(12, 16, generator=torch.Generator().manual_seed(1)) < 0.4
    model, plain = network(), network()
    weight = gs.nn.all_weights(model)["0.weight"]
    KINDS[before](weight, mask)
    ours, theirs = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](plain.parameters())
    sparse = before != "dense"

    def clear() -> None:
        with torch.no_grad():
            plain[0].weight.mul_(mask)

    if sparse:
        clear()
    for number in range(6):
        if number == 3:
            KINDS[after](weight, mask)
            sparse = after != "dense"
            for value in theirs.state[plain[0].weight].values() if sparse else ():
                if isinstance(value, torch.Tensor) and value.shape == mask.shape:
                    value.mul_(mask)
            if sparse:
                clear()
        step(model, ours, number)
        theirs.zero_grad()
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        plain(x).square().mean().backward()
        if sparse:
            plain[0].weight.grad.mul_(mask)
        theirs.step()
        if sparse:
            clear()
        torch.testing.assert_close(weight.dense(), plain[0].weight.detach(), rtol=1e-9, atol=1e-11)
        assert weight.dense().isfinite().all()
    if after != "dense":
        assert not weight.dense()[~mask].any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()], ids=str)
def test_densify_goes_on_learning_everywhere(optimizer: str, format: gs.Format) -> None:
    model = network()
    ours = OPTIMIZERS[optimizer](model.parameters())
    step(model, ours, 0)
    gs.sparsify_(model, "50%", format=format)
    step(model, ours, 1)
    gs.densify_(model)
    before = model[0].weight.detach().clone()
    for number in (2, 3):
        step(model, ours, number)
    assert model[0].weight.isfinite().all()
    assert ((model[0].weight != before).float().mean() > 0.9).item()
    assert type(model[0].weight) is nn.Parameter


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_sparse_checkpoint_into_a_dense_model_and_back(optimizer: str) -> None:
    sparse = gs.sparsify_(network(), "50%")
    ours = OPTIMIZERS[optimizer](sparse.parameters())
    for number in range(2):
        step(sparse, ours, number)
    dense = network()
    theirs = OPTIMIZERS[optimizer](dense.parameters())
    dense.load_state_dict(sparse.state_dict())
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    for number in (2, 3):
        step(dense, theirs, number)
    assert all(p.isfinite().all() for p in dense.parameters())
    before = masks(sparse)
    sparse.load_state_dict(dense.state_dict())  # denser than its mask: it is masked
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for number in (4, 5):
        step(sparse, ours, number)
    for name, mask in masks(sparse).items():
        assert torch.equal(mask, before[name])
        assert not sparse.get_parameter(name)[~mask].any() and sparse.get_parameter(name).isfinite().all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rigl_closed_and_dense(optimizer: str) -> None:
    model = network()
    ours = OPTIMIZERS[optimizer](model.parameters())
    method = gs.train.RigL(model, ours, 0.5, every=2, until=100)
    for number in range(5):
        step(model, ours, number)
        method.step()
    method.close()
    kept = masks(model)
    step(model, ours, 5)
    assert all(torch.equal(mask, kept[name]) for name, mask in masks(model).items())
    gs.densify_(model)
    before = model[0].weight.detach().clone()
    for number in (6, 7):
        step(model, ours, number)
    assert model[0].weight.isfinite().all() and (model[0].weight != before).float().mean() > 0.9


def test_state_of_the_same_size_is_not_taken_for_that_of_another_pattern() -> None:
    """Two patterns with as many entries: momentum must move with the positions, not with the numbers of entries."""
    model = nn.Linear(4, 1, bias=False)
    weight = gs.nn.all_weights(model)["weight"]
    left, right = torch.tensor([[True, True, False, False]]), torch.tensor([[False, True, True, False]])
    weight.become(torch.ones(1, 4), left, gs.CSR())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    model(torch.tensor([[1.0, 2.0, 4.0, 8.0]])).sum().backward()
    optimizer.step()
    assert optimizer.state[weight.parameter]["momentum_buffer"].tolist() == [1.0, 2.0]
    weight.become(torch.ones(1, 4), right, gs.CSR())
    optimizer.zero_grad()
    model(torch.zeros(1, 4)).sum().backward()
    optimizer.step()
    assert optimizer.state[weight.parameter]["momentum_buffer"].tolist() == pytest.approx([1.8, 0.0])


def test_an_optimizer_that_fills_is_cleared() -> None:
    """Muon orthogonalises its update, so that every position moves."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = gs.sparsify_(nn.Linear(16, 16, bias=False).double(), "75%")
    mask = model.weight.mask()
    optimizer = torch.optim.Muon(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    for number in range(2):
        step(model, optimizer, number)
    assert not model.weight[~mask].any() and not torch.equal(model.weight, before)


def test_clipping_sees_the_kept_gradient() -> None:
    """In the step before an update the gradient at every position is collected; its norm is that of the kept ones."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gs.train.RigL(model, optimizer, 0.75, every=1, until=10)
    model(torch.randn(8, 16, dtype=torch.float64)).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    kept = [w.parameter.grad for w in gs.nn.all_weights(model).values()]
    torch.testing.assert_close(norm, torch.cat([g.flatten() for g in kept]).norm())
    for weight in gs.nn.sparse_weights(model).values():
        assert not weight.parameter.grad[~weight.mask()].any()
        assert weight.held.collected[~weight.mask()].any()
