"""Custom backwards: a function registered by :func:`gossamer.implements_backward` is attached to its forward."""

from __future__ import annotations

from typing import Any

import torch

from gossamer.core.table import Function


def with_backward(forward: Function, backward: Function) -> Function:
    """Return the forward function with this backward instead of the one that autograd would derive."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, options: dict[str, Any], *args: Any) -> Any:
            ctx.args = args
            return forward(*args, **options)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            found = backward(*grads, *ctx.args)
            found = found if isinstance(found, tuple) else (found,)
            return (None, *found, *(None,) * (len(ctx.args) - len(found)))

    def run(*args: Any, **kwargs: Any) -> Any:
        return Own.apply(kwargs, *args)

    return run
