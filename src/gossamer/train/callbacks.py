"""Callbacks for transformers' Trainer and for Lightning. Neither is imported here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gossamer.train.base import Method

#: (model, optimizer) -> method; called when both exist.
Make = Callable[[Any, Any], Method]


def for_trainer(make: Make | Method) -> Any:
    """Return a callback for ``transformers.Trainer``.

    The method steps after each optimizer step, and its state is saved in the trainer's checkpoints as ``gossamer.pt``.
    To resume, create the model, the optimizer and the method first, and pass the method: its state is loaded when
    training begins.

    Parameters
    ----------
    make
        Called with (model, optimizer) when training begins; or an existing method.

    Examples
    --------
    >>> import gossamer as gs
    >>> def make(model, optimizer):
    ...     return gs.train.SRigL(model, optimizer, sparsity=0.9, every=100, until=15_000)
    >>> def trainer_of(model, data):
    ...     from transformers import Trainer
    ...     return Trainer(model, train_dataset=data, callbacks=[gs.train.callbacks.for_trainer(make)])
    """
    from transformers import TrainerCallback

    return type("SparseTrainerCallback", (_TrainerHooks, TrainerCallback), {})(make)


class _TrainerHooks:
    def __init__(self, make: Make | Method) -> None:
        self.make = make
        self.method: Method | None = make if isinstance(make, Method) else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.method is not None:
            if state.global_step and self.method.steps != state.global_step:
                self.method.load_state_dict(torch.load(_found(args, state), weights_only=True))
            return
        if state.global_step:
            raise ValueError("to resume, make the method before the trainer and call for_trainer(method)")
        assert not isinstance(self.make, Method)
        optimizer = kwargs["optimizer"]
        self.method = self.make(kwargs["model"], getattr(optimizer, "optimizer", optimizer))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.method is not None
        self.method.step()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.method is not None
        path = _saved(args, state)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.method.state_dict(), path)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.method is not None and kwargs.get("logs") is not None:
            density = self.method.log()["density"]
            kwargs["logs"]["density"] = density  # for loggers that come after us
            if getattr(state, "log_history", None):
                state.log_history[-1]["density"] = density  # the trainer has written its own line before it asks us


def _found(args: Any, state: Any) -> Path:
    """The state to resume from: the trainer doesn't say which folder it was given, unless it is in its arguments."""
    given = getattr(args, "resume_from_checkpoint", None)
    places = [_saved(args, state), *([Path(given) / "gossamer.pt"] if isinstance(given, str) else [])]
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f"the trainer resumes at step {state.global_step}, but {' and '.join(map(str, places))} is not there: resume "
        "in the output_dir of the run, or call method.load_state_dict(torch.load('.../gossamer.pt')) before train()"
    )


def _saved(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "gossamer.pt"


def for_lightning(make: Make) -> Any:
    """Return a callback for Lightning's ``Trainer``, with automatic or manual optimization of one optimizer.

    Parameters
    ----------
    make
        Called with (module, optimizer) when fitting starts.

    Examples
    --------
    >>> import gossamer as gs
    >>> def trainer_of(make):
    ...     import lightning
    ...     return lightning.Trainer(callbacks=[gs.train.callbacks.for_lightning(make)])
    """
    rooms = ("lightning.pytorch", "pytorch_lightning")  # one project under two names, whose classes differ
    room = next((name for name in rooms if name in sys.modules), None)
    room = room or next((name for name in rooms if find_spec(name.split(".")[0]) is not None), rooms[0])
    callback = importlib.import_module(f"{room}.callbacks").Callback
    return type("SparseLightningCallback", (_LightningHooks, callback), {})(make)


class _LightningHooks:
    def __init__(self, make: Make) -> None:
        self.make = make
        self.method: Method | None = None
        self._state: Any = None

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        (optimizer,) = trainer.optimizers
        loaded = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.method = self.make(module, optimizer)
        if self._state is not None:  # Lightning has loaded the weights by now, before there were masks
            self.method.load_state_dict(self._state)
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(loaded[name])

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        assert self.method is not None
        self.method.step()  # it knows whether this batch ended with an optimizer step

    def state_dict(self) -> dict[str, Any]:
        return {} if self.method is None else self.method.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state or None
