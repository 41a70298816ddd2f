"""After close() a model is an ordinary sparse one: masks hold under every method, and go on holding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs

METHODS: dict[str, dict[str, Any]] = {
    "Static": {"sparsity": 0.75},
    "GMP": {"sparsity": 0.75, "until": 20},
    "SET": {"sparsity": 0.75},
    "RigL": {"sparsity": 0.75},
    "SRigL": {"sparsity": 0.75},
    "ACDC": {"sparsity": 0.75, "until": 20},
    "STE": {"pattern": "2:4"},
    "SRSTE": {"pattern": "2:4"},
    "Movement": {"sparsity": 0.75, "until": 20},
    "TopKAST": {"sparsity": 0.75},
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def method_of(name: str, model: nn.Module, optimizer: Any, **options: Any) -> gs.train.Method:
    return getattr(gs.train, name)(model, optimizer, **{"every": 2, "until": 100, **METHODS[name], **options})


def train(model: nn.Module, optimizer: Any, steps: int, method: Any = None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        if method is not None:
            method.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", METHODS)
def test_a_closed_method_leaves_a_sparse_model(name: str, kind: str) -> None:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    method = method_of(name, model, optimizer)
    train(model, optimizer, 5, method)
    method.close()
    method.close()
    masks = {n: w.mask().clone() for n, w in gs.nn.sparse_weights(model).items()}
    before = {n: w.dense().clone() for n, w in gs.nn.sparse_weights(model).items()}
    train(model, optimizer, 3)
    for n, weight in gs.nn.sparse_weights(model).items():
        assert torch.equal(weight.mask(), masks[n]) and not weight.dense()[~masks[n]].any(), n
        assert not torch.equal(weight.dense(), before[n])
        for value in optimizer.state[weight.parameter].values():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                assert not value[~masks[n]].any()
    gs.densify_(model)
    train(model, optimizer, 2)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "SRigL"])
def test_a_state_of_another_pattern_is_refused(name: str) -> None:
    one, other = {"pattern": "2:4", "sparsity": None}, {"pattern": "1:4", "sparsity": None}
    model, twin = network(), network()
    state = method_of(name, model, torch.optim.SGD(model.parameters(), lr=0.1), **one).state_dict()
    method = method_of(name, twin, torch.optim.SGD(twin.parameters(), lr=0.1), **other)
    with pytest.raises(ValueError, match=r"pattern=NM\(n=2, m=4\), not NM\(n=1, m=4\): use the same one"):
        method.load_state_dict(state)
    same = copy.deepcopy(method.state_dict())
    method.load_state_dict(same)
    del same["pattern"]  # as earlier versions wrote it
    method.load_state_dict(same)
