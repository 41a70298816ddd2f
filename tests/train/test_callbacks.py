"""Callbacks, called in the order in which their trainers do."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gossamer as gs


def make(model, optimizer):
    return gs.train.SRigL(model, optimizer, 0.5, every=2, until=20)


def one_step(model, optimizer, step):
    torch.manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()


def start():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def test_transformers_trainer(tmp_path):
    pytest.importorskip("transformers")
    model, optimizer = start()
    callback = gs.train.callbacks.for_trainer(make)
    args, state = SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=0)
    wrapped = SimpleNamespace(optimizer=optimizer)  # accelerate wraps optimizers
    callback.on_train_begin(args, state, None, model=model, optimizer=wrapped)
    for step in range(4):
        one_step(model, optimizer, step)
        callback.on_optimizer_step(args, state, None, model=model)
        state.global_step += 1
    logs = {}
    callback.on_log(args, state, None, logs=logs)
    assert callback.method.log()["updates"] == 2 and 0.4 < logs["density"] <= 0.5
    callback.on_save(args, state, None)

    again, optimizer = start()
    other = gs.train.callbacks.for_trainer(make(again, optimizer))
    other.on_train_begin(args, state, None, model=again, optimizer=optimizer)
    assert other.method.steps == 4 and torch.equal(again[0].weight.mask(), model[0].weight.mask())
    with pytest.raises(ValueError, match="make the method before the trainer"):
        gs.train.callbacks.for_trainer(make).on_train_begin(args, state, None, model=model, optimizer=optimizer)


def test_lightning(monkeypatch):
    if "lightning" not in sys.modules:
        room = types.ModuleType("lightning.pytorch.callbacks")
        room.Callback = type("Callback", (), {})
        for name in ("lightning", "lightning.pytorch"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", room)
    model, optimizer = start()
    callback = gs.train.callbacks.for_lightning(make)
    callback.on_fit_start(SimpleNamespace(optimizers=[optimizer]), model)
    for step in range(4):
        one_step(model, optimizer, step)
        callback.on_train_batch_end(None, model, None, None, step)
        callback.on_train_batch_end(None, model, None, None, step)  # a batch without an optimizer step
    assert callback.method.steps == 4

    resumed, optimizer = start()
    resumed.load_state_dict({n: p.to_dense() for n, p in model.state_dict().items()})
    other = gs.train.callbacks.for_lightning(make)
    other.load_state_dict(callback.state_dict())
    other.on_fit_start(SimpleNamespace(optimizers=[optimizer]), resumed)
    assert other.method.steps == 4
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a.detach().to_dense(), b.detach().to_dense())
    assert torch.equal(model[0].weight.mask(), resumed[0].weight.mask())
