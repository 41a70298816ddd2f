"""Consecutive packed layers: activations in their kernels, and no transposes between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import PackedVNM
from gossamer.models.modules import SparseModule, dense_class, held_by, rebase
from gossamer.ops.linear import Activation, linear, linear_in_order
from gossamer.ops.product import product

#: Above this many tokens, packed V:N:M reads activations feature by feature.
_MANY = 64


class FusedLinear(nn.Linear):
    """A linear layer that also applies an activation; created by :func:`fuse_`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
    >>> model = fuse_(gs.sparsify_(model, "2:4", format=gs.formats.PackedVNM("all", 2, 4)))
    >>> isinstance(model[0], FusedLinear), model[0].activation
    (True, 'relu')
    """

    activation: Activation | None = None
    #: Is it the first, or the last, of a chain of packed layers?
    first = last = False

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and isinstance(self, SparseModule):
            values: Any = self.weight_values
            return product(input, values, self.structure_of("weight"), self.bias, self.activation)
        if not (self.first or self.last) or input.numel() <= _MANY * self.in_features:
            return linear(input, self.weight, self.bias, self.activation)
        return linear_in_order(input, self.weight, self.bias, self.activation, turned=not self.last)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


def fuse_(model: nn.Module) -> nn.Module:
    """Fuse packed V:N:M layers of every ``nn.Sequential`` with the activation that follows, in place.

    The activation's module becomes ``nn.Identity``, so names don't change. With two or more such layers in a row and
    many tokens, the first one converts to feature-major order, the others keep it, and the last one converts back.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    >>> fuse_(gs.sparsify_(model, "2:4", format=gs.formats.PackedVNM("all", 2, 4)))[1]
    Identity()
    """
    for module in list(model.modules()):
        if isinstance(module, nn.Sequential):
            _fuse_one(module)
    return model


def _fuse_one(chain: nn.Sequential) -> None:
    run: list[FusedLinear] = []
    for i in range(len(chain)):
        module = chain[i]  # as it is now: an activation may have become an identity
        if _packed(module):
            after = _activation(chain[i + 1]) if i + 1 < len(chain) else None
            rebase(module, FusedLinear)
            module.activation = after  # type: ignore[assignment]
            if after is not None:
                chain[i + 1] = nn.Identity()
            run.append(module)  # type: ignore[arg-type]
        elif not isinstance(module, nn.Identity):
            _close(run)
            run = []
    _close(run)


def _close(run: list[FusedLinear]) -> None:
    if len(run) > 1:
        run[0].first = run[-1].last = True


def _packed(module: nn.Module) -> bool:
    held = held_by(module).get("weight")
    return held is not None and dense_class(module) is nn.Linear and isinstance(held.format, PackedVNM)


def _activation(module: nn.Module) -> Activation | None:
    """The activation that a module is, if kernels have it; one with hooks of its own is left alone."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return None
    if type(module) is nn.GELU:
        return "gelu" if module.approximate == "none" else None
    return {nn.ReLU: "relu", nn.SiLU: "silu"}.get(type(module))  # type: ignore[return-value]
