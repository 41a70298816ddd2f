"""How experts with stored weights compute: each multiplies the tokens that are routed to it, one after the other; those
in packed V:N:M together (``grouped.py``).

In transformers, the configuration selects how the experts of a model are computed. Of these implementations only the
plain loop supports sparse weights, and it spends more time on finding the tokens of an expert than on the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.formats import Stacked
from gossamer.models.grouped import grouped, normed, takes
from gossamer.models.held import Held
from gossamer.models.stored import structure_of, transforming
from gossamer.ops.product import product
from gossamer.ops.stacked import matrices_of

Forward = Callable[..., Any]


def is_routed(layer: type[nn.Module]) -> bool:
    """Is it a class of experts that transformers computes in one of several ways?

    Examples
    --------
    >>> is_routed(nn.Linear)
    False
    """
    return "Experts" in layer.__name__ and hasattr(layer.forward, "__wrapped__")


def for_experts(own: Forward) -> Forward:
    """Return the forward function of such a class with stored weights; ``own`` is the one that it has."""
    loop: Forward = own.__wrapped__  # type: ignore[attr-defined]

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        if len(given) == 3 and _in_one_launch(self, given[0]):
            return grouped(self, *given)
        if torch.compiler.is_compiling() or not any(_is_stack(held) for held in self._sparse.values()):
            return own(self, *args, **options)  # in a trace weights are dense, and the routing is not known
        if len(given) != 3 or is_expert_parallel(self) or transforming() or torch._C._is_any_autocast_enabled():
            return loop(self, *args, **options)
        return routed(self, *given)

    return forward


def _in_one_launch(experts: Any, x: Tensor) -> bool:
    """Can all experts multiply their tokens in one launch for each weight?"""
    if is_expert_parallel(experts) or transforming() or torch._C._is_any_autocast_enabled():
        return False
    return takes(experts, x)


def is_expert_parallel(experts: Any) -> bool:
    """Are experts divided among ranks? Older versions of transformers don't say so."""
    return bool(getattr(experts, "_is_expert_parallel", False))


def routed(experts: Any, x: Tensor, index: Tensor, shares: Tensor) -> Tensor:
    """Return the sum of the chosen experts of each token, by their shares.

    Parameters
    ----------
    experts
        The module.
    x
        Tokens [tokens, features].
    index, shares
        [tokens, chosen]: which experts a token goes to, and how much each counts.
    """
    chosen = index.shape[-1]
    expert, order = torch.sort(index.reshape(-1), stable=True)
    counts = torch.bincount(expert, minlength=experts.num_experts).tolist()
    parts = x[order // chosen].split(counts)
    done = [
        _expert(experts, number, part) if number < experts.num_experts else torch.zeros_like(part)  # for none of them
        for number, part in enumerate(parts)
        if len(part)
    ]
    if not done:
        return torch.zeros_like(x)
    weighted = torch.cat(done) * shares.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))
    return weighted[back].view(*index.shape, -1).sum(1).to(x.dtype)


def _expert(experts: Any, number: int, x: Tensor) -> Tensor:
    """Return what one expert makes of its tokens."""
    name = "gate_up_proj" if experts.has_gate else "up_proj"
    up = _projected(experts, name, number, x)
    inner = experts._apply_gate(up) if experts.has_gate else experts.act_fn(up)
    out = _projected(experts, "down_proj", number, inner)
    return normed(experts, out)


def _projected(experts: Any, name: str, number: int, x: Tensor) -> Tensor:
    """Multiply by the matrix of one expert, and add its bias."""
    bias = getattr(experts, f"{name}_bias")[number] if experts.has_bias else None
    held, first = experts._sparse.get(name), experts.is_transposed
    if held is not None and _is_stack(held) and not (held.whole or held.collects):
        structure = structure_of(experts, name, held)
        matrices = matrices_of(structure)
        values = experts._parameters[f"{name}_values"]
        if matrices is not None and x.dtype is values.dtype:
            start, stop, matrix = matrices[number]
            own = values.view(-1)[start:stop].view(matrix.value_shape)
            return product(x, own, matrix, bias, transpose=first)
    weight = getattr(experts, name)[number]
    return F.linear(x, weight.t() if first else weight, bias)


def _is_stack(held: Held) -> bool:
    return isinstance(held.format, Stacked)
