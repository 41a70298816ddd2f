"""Run a decision: notify watchers, warn about a dense copy, compute."""

from __future__ import annotations

from typing import Any

import torch

from gossamer.core import fallback
from gossamer.core.decide import Decision, after_refusal
from gossamer.core.write import write_back


def perform(decision: Decision) -> Any:
    """Run a decision; if its function returns NotImplemented, try the next one."""
    if fallback._watchers and decision.how != "torch" and not torch.compiler.is_compiling():
        fallback.note(decision)
    if decision.how == "fallback":
        fallback.announce(decision)
    result = on_dense(decision) if decision.dense else decision.run()
    return perform(after_refusal(decision)) if result is NotImplemented else result


def compute(decision: Decision) -> Any:
    """Run a decision that is part of another one, which was announced."""
    result = on_dense(decision) if decision.dense else decision.run()
    return perform(after_refusal(decision)) if result is NotImplemented else result


def on_dense(decision: Decision) -> Any:
    """Compute on dense copies. (For Masked that is its own storage, and no copy.)"""
    copies: fallback.Copies = []
    args, kwargs = fallback.densify((decision.args, decision.kwargs), copies)
    out = decision.function(*args, **kwargs)
    return out if torch.compiler.is_compiling() else write_back(decision.name, out, copies)
