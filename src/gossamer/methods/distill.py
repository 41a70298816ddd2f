"""Learning from the dense model: its outputs and its hidden states as targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def distill_logits(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Divergence of the student's class probabilities from the teacher's, both softened; times temperature squared.

    Examples
    --------
    >>> import torch
    >>> float(distill_logits(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])))
    0.0
    """
    soft = F.log_softmax(student / temperature, -1)
    target = F.log_softmax(teacher.detach() / temperature, -1)
    return (
        F.kl_div(soft, target, reduction="batchmean", log_target=True).clamp(min=0) * temperature**2 / _places(student)
    )


def distill_hidden(student: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    """Mean over the layers of |student - teacher|^2 / |teacher|^2, over the tokens of the mask if one is given.

    Examples
    --------
    >>> import torch
    >>> float(distill_hidden([torch.tensor([[3.0]])], [torch.tensor([[2.0]])]))
    0.25
    """
    if len(student) != len(teacher):
        raise ValueError(f"the student has {len(student)} hidden states, the teacher {len(teacher)}")
    total = student[0].new_zeros(())
    for mine, target in zip(student, teacher, strict=True):
        weight = mine.new_ones(()) if mask is None else mask[..., None].to(mine.dtype)
        gap = ((mine - target.detach()).square() * weight).sum()
        total = total + gap / (target.detach().square() * weight).sum().clamp(min=1e-12)
    return total / len(student)


def distill_attention(student: Sequence[Tensor], teacher: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
    """Mean over layers, heads and tokens of the divergence of the student's attention from the teacher's.

    Attentions are probabilities [batch, heads, tokens, tokens]; with a mask [batch, tokens], only its tokens count.

    Examples
    --------
    >>> import torch
    >>> half, sure = torch.tensor([[[[0.5, 0.5]]]]), torch.tensor([[[[1.0, 0.0]]]])
    >>> float(distill_attention([half], [half])), round(float(distill_attention([half], [sure])), 4)
    (0.0, 0.6931)
    """
    if len(student) != len(teacher):
        raise ValueError(f"the student has {len(student)} attentions, the teacher {len(teacher)}")
    total = student[0].new_zeros(())
    for mine, target in zip(student, teacher, strict=True):
        least, fixed = torch.finfo(mine.dtype).tiny, target.detach()
        gap = (fixed * (fixed.clamp(min=least).log() - mine.clamp(min=least).log())).sum(-1)
        weight = torch.ones_like(gap) if mask is None else mask[:, None].to(gap).expand_as(gap)
        total = total + (gap * weight).sum() / weight.sum().clamp(min=1)
    return total / len(student)


def _places(logits: Tensor) -> int:
    """Positions of a sequence: "batchmean" divides by the batch alone."""
    return max(logits[0, ..., 0].numel(), 1) if logits.dim() > 1 else 1


class Distill:
    """A loss towards a teacher: call it with the student's output and the batch.

    Without a teacher it is zero, so a training step can always add it.

    Parameters
    ----------
    teacher
        The dense model, or None. It is set to evaluation mode and runs without gradients.
    logits, hidden, attention
        Weights of the three parts. Hidden states are compared if both outputs have them (``output_hidden_states=True``
        in transformers), and the last one if there are no logits. Attentions are compared too
        (``output_attentions=True``), unless their weight is 0, the default.
    temperature
        Of the softened class probabilities.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(4, 3)
    >>> distill = gs.prune.Distill(model)
    >>> x = torch.randn(2, 4)
    >>> distill(model(x), x).item()
    0.0
    """

    def __init__(
        self,
        teacher: nn.Module | None,
        *,
        logits: float = 1.0,
        hidden: float = 1.0,
        attention: float = 0.0,
        temperature: float = 2.0,
    ) -> None:
        self.teacher = teacher.eval() if teacher is not None else None
        self.logits, self.hidden, self.attention, self.temperature = logits, hidden, attention, temperature

    def __call__(self, output: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of `output`, which the student gave for these arguments."""
        mine = _parts(output)
        if self.teacher is None:
            return next(t for t in (mine[0], *mine[1]) if t is not None).new_zeros(())
        with torch.no_grad():
            theirs = _parts(self.teacher(*args, **kwargs))
        mask, parts = kwargs.get("attention_mask"), []
        if mine[0] is not None and theirs[0] is not None and self.logits:
            parts.append(self.logits * distill_logits(mine[0], theirs[0], self.temperature))
        if mine[1] and theirs[1] and self.hidden:
            parts.append(self.hidden * distill_hidden(mine[1], theirs[1], mask))
        if mine[2] and theirs[2] and self.attention:
            parts.append(self.attention * distill_attention(mine[2], theirs[2], mask))
        if not parts:
            raise ValueError("student and teacher share no logits, hidden states or attentions to compare")
        loss = parts[0]
        for part in parts[1:]:
            loss = loss + part
        return loss


def _parts(output: Any) -> tuple[Tensor | None, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Logits, hidden states and attentions: a tensor is logits, a transformers output has its fields."""
    if isinstance(output, Tensor):
        return output, (), ()
    logits = getattr(output, "logits", None)
    hidden = getattr(output, "hidden_states", None) or ()
    last = getattr(output, "last_hidden_state", None)
    if logits is None and not hidden and isinstance(last, Tensor):
        hidden = (last,)
    if logits is None and not hidden and isinstance(output, tuple | list) and isinstance(output[0], Tensor):
        logits = output[0]
    if logits is None and not hidden:
        raise TypeError(f"can't find logits or hidden states in an output of type {type(output).__name__}")
    attentions = getattr(output, "attentions", None) or ()
    return logits, tuple(hidden), tuple(each for each in attentions if each is not None)
