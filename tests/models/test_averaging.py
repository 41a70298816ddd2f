"""Averages of a model whose patterns change: exact, in every format, with and without buffers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import gossamer as gs

DECAY = 0.9
AVERAGES: dict[str, dict[str, Any]] = {
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)},
    "ema, one by one": {"avg_fn": get_ema_avg_fn(DECAY)},
    "swa": {},
}
FORMATS = [gs.Masked(), gs.CSR(), gs.formats.PackedCSR(), gs.ELL()]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


@pytest.mark.parametrize("use_buffers", [False, True], ids=["copied buffers", "averaged buffers"])
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_an_average_under_dynamic_training(format: gs.Format, average: str, use_buffers: bool) -> None:
    """By hand: dense weights are averaged, and what the model has dropped is cleared."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method = gs.train.RigL(model, optimizer, 0.75, every=2, until=100, format=format)
    averaged = AveragedModel(model, use_buffers=use_buffers, **AVERAGES[average])
    expected: dict[str, torch.Tensor] = {}
    for number in range(9):
        optimizer.zero_grad()
        model(torch.randn(6, 16)).square().sum().backward()
        optimizer.step()
        method.step()
        averaged.update_parameters(model)
        share = (1 - DECAY) if average != "swa" else 1 / (number + 1)
        for name, weight in gs.nn.all_weights(model).items():
            before = expected.get(name, weight.dense()) * weight.mask()
            expected[name] = before.lerp(weight.dense(), share if number else 1.0)
    for name, weight in gs.nn.all_weights(averaged.module).items():
        torch.testing.assert_close(weight.dense(), expected[name])
        assert torch.equal(weight.mask(), gs.nn.all_weights(model)[name].mask())
    assert gs.summary(averaged.module).density == gs.summary(model).density
    assert averaged.eval()(torch.randn(3, 16)).isfinite().all()
    assert all(buffer in dict(model.named_buffers()) for buffer in dict(averaged.module.named_buffers()))


def test_a_model_that_changes_its_formats() -> None:
    model = gs.sparsify_(network(), "50%")
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    changes: list[Any] = [
        lambda: gs.sparsify_(model, "75%", format=gs.CSR()),
        lambda: gs.densify_(model),
        lambda: gs.sparsify_(model, "2:4"),
    ]
    for change in changes:
        averaged.update_parameters(model)
        change()
        averaged.update_parameters(model)
        for name, weight in gs.nn.all_weights(averaged.module).items():
            other = gs.nn.all_weights(model)[name]
            assert weight.format == other.format and torch.equal(weight.mask(), other.mask())


def test_follow_keeps_the_values_of_a_copy() -> None:
    model = gs.sparsify_(network(), "50%", format=gs.CSR())
    other = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.mul_(2)
    gs.sparsify_(model, "75%")
    before = other[0].weight.to_dense()
    gs.nn.follow_(other, model)
    assert torch.equal(other[0].weight.to_dense(), before * model[0].weight.mask())
    with pytest.raises(ValueError, match="are not those of a copy"):
        gs.nn.follow_(nn.Linear(3, 3), model)


def test_dense_models_are_averaged_by_torch_alone() -> None:
    model = network()
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    assert all(torch.equal(a, b) for a, b in zip(averaged.module.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("numbers", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("average", AVERAGES)
def test_codes_are_not_averaged(numbers: str, average: str) -> None:
    torch.manual_seed(0)
    model = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), "2:4"), numbers)
    averaged = AveragedModel(model, use_buffers=True, **AVERAGES[average])
    for _ in range(3):
        averaged.update_parameters(model)
    x = torch.randn(4, 64)
    with torch.no_grad():
        torch.testing.assert_close(averaged(x), model(x))
