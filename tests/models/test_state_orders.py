"""Optimizer state through random orders of changes: a dense model whose state is cleared by hand goes the same way."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from tests.ops.test_training import OPTIMIZERS

ALL = OPTIMIZERS | {
    "Rprop of another lr": lambda p: torch.optim.Rprop(p, lr=0.02),
    "Adagrad that starts at 0.3": lambda p: torch.optim.Adagrad(p, lr=0.02, initial_accumulator_value=0.3),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}
#: State of new weights that isn't zero.
FIRST = {("Rprop", "step_size"): "lr", ("Adagrad", "sum"): "initial_accumulator_value"}
FORMATS = [
    gs.Masked(), gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.BSR((2, 2)), gs.ELL(), gs.formats.PackedCSR(),
    gs.formats.Condensed(), gs.Format("dense", "bitmap"),
]  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 8)).double()


def step(model: nn.Module, optimizer: Any, number: int, masks: dict[str, Tensor] | None = None) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number), dtype=torch.float64)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        for name, mask in (masks or {}).items():
            model.get_parameter(name).grad.mul_(mask)
        return loss

    optimizer.step(closure)


def change(rng: random.Random, model: nn.Module, optimizer: Any, kind: str) -> tuple[nn.Module, Any, str]:
    """Change a model in one way, or go on with a copy of it; return what was done, too."""
    done = rng.choice(
        ["sparsify_", "another mask", "densify_", "become", "pack_", "state_dict", "copy", "other weights"]
    )
    if done == "sparsify_":
        gs.sparsify_(model, rng.choice(["50%", "75%", "2:4"]), format=rng.choice(FORMATS))
    elif done == "another mask":
        gs.sparsify_(model, rng.choice(["60%", "80%"]))
    elif done == "densify_":
        gs.densify_(model)
    elif done == "pack_":
        gs.pack_(model, quiet=True)
    elif done == "become":
        weight = gs.nn.all_weights(model)[rng.choice(["0.weight", "2.weight"])]
        kept = torch.rand(weight.shape, generator=torch.Generator().manual_seed(rng.randrange(99))) < 0.5
        weight.become(weight.dense().clone(), kept, rng.choice(FORMATS))
    elif done == "other weights":
        model.load_state_dict(network().state_dict())
    else:
        other = copy.deepcopy(model) if done == "copy" else model
        follower = ALL[kind](other.parameters()) if done == "copy" else optimizer
        state = copy.deepcopy(optimizer.state_dict())
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        follower.load_state_dict(state)
        model, optimizer = other, follower
    return model, optimizer, done


@torch.no_grad()
def follow_by_hand(plain: nn.Module, optimizer: Any, weights: dict[str, gs.nn.Weight]) -> None:
    """Give a dense model the weights of ours, and its state the masks."""
    for name, weight in weights.items():
        parameter = plain.get_parameter(name)
        parameter.copy_(weight.dense())
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                setting = FIRST.get((type(optimizer).__name__, key))
                value.masked_fill_(~weight.mask(), 0.0 if setting is None else optimizer.defaults[setting])


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_changes_is_masked_dense_training(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    model, plain = network(), network()
    ours, theirs = ALL[kind](model.parameters()), ALL[kind](plain.parameters())
    exact, log = kind not in ("LBFGS", "Adafactor"), []
    for number in range(8):
        model, ours, done = change(rng, model, ours, kind)
        log.append(done)
        weights = gs.nn.all_weights(model)
        masks = {name: weight.mask().clone() for name, weight in weights.items()}
        follow_by_hand(plain, theirs, weights)
        if exact:
            step(plain, theirs, number, masks)
        step(model, ours, number)
        for name, weight in weights.items():
            values = weight.dense()
            assert values.isfinite().all() and not values[~masks[name]].any(), (log, name)
            if exact:
                expected = plain.get_parameter(name).detach() * masks[name]
                torch.testing.assert_close(values, expected, rtol=1e-7, atol=1e-9, msg=f"{log}, {name}")


@pytest.mark.parametrize("kind", ALL)
def test_an_exchange_of_weights_keeps_the_masks(kind: str) -> None:
    """LBFGS remembers directions of the weights that it had: they must not fill what was dropped."""
    model = network()
    optimizer = ALL[kind](model.parameters())
    step(model, optimizer, 0)
    method = gs.train.RigL(model, optimizer, 0.5, every=1, until=100)
    for number in range(1, 5):
        step(model, optimizer, number)
        method.step()
        for weight in gs.nn.sparse_weights(model).values():
            assert not weight.dense()[~weight.mask()].any() and weight.dense().isfinite().all()
    method.close()
    masks = {name: weight.mask().clone() for name, weight in gs.nn.sparse_weights(model).items()}
    step(model, optimizer, 5)
    assert all(not gs.nn.all_weights(model)[name].dense()[~mask].any() for name, mask in masks.items())


def test_a_new_weight_of_rprop_moves_as_far_as_one_of_a_new_model() -> None:
    layer = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.Rprop(layer.parameters(), lr=0.25)
    weight = gs.nn.all_weights(layer)["weight"]
    for format in (gs.CSR(), gs.Masked()):
        weight.become(torch.ones(1, 4), torch.tensor([[True, True, False, False]]), format)
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        gs.densify_(layer)
        before = layer.weight.detach().clone()
        optimizer.zero_grad()
        layer(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        assert (before - layer.weight)[0, 2:].tolist() == [0.25, 0.25]
