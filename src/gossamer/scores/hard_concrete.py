"""l0 regularisation by hard concrete gates (Louizos, Welling and Kingma 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Score, like_weight
from .random import Random


@dataclass(frozen=True)
class HardConcrete(Score):
    """Gates in [0, 1] that are exactly 0 or 1 with positive probability, learned by their log_alpha.

    A gate is a sigmoid stretched to (gamma, zeta) and clipped to [0, 1]. The score is the deterministic gate, so
    `Threshold(0.0)` drops exactly the values whose gate is closed. While training, multiply weights by `sample(...)`
    and add `penalty(...)`, the expected number of open gates, to the loss; both are differentiable.

    Parameters
    ----------
    beta, gamma, zeta
        Temperature and limits of the stretch; the paper's by default.

    Notes
    -----
    Context: `log_alpha`, of the weight's shape.

    Examples
    --------
    >>> import torch
    >>> HardConcrete()(torch.ones(3), log_alpha=torch.tensor([-5.0, 0.0, 5.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """

    beta: float = 2 / 3
    gamma: float = -0.1
    zeta: float = 1.1

    needs: ClassVar[tuple[str, ...]] = ("log_alpha",)

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.gamma < 0 and self.zeta > 1):
            raise ValueError(
                "HardConcrete needs beta > 0, gamma < 0 and zeta > 1, so that gates can be exactly 0 and 1; "
                f"got beta={self.beta!r}, gamma={self.gamma!r}, zeta={self.zeta!r}."
            )

    def rate(self, weight: Tensor, *, log_alpha: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        return self.gate(like_weight("HardConcrete", "log_alpha", log_alpha, weight))

    def gate(self, log_alpha: Tensor) -> Tensor:
        """The gate without noise: what to use after training. Differentiable.

        Examples
        --------
        >>> import torch
        >>> HardConcrete().gate(torch.tensor([0.0]))
        tensor([0.5000])
        """
        return self._stretch(torch.sigmoid(log_alpha))

    def sample(self, log_alpha: Tensor, seed: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Random gates, differentiable in log_alpha.

        Parameters
        ----------
        log_alpha
            The parameters of the gates.
        seed
            With a seed the noise is `Random(seed)`, the same on every machine.
        generator
            Or a torch generator. If neither is given, torch's global generator is used.

        Examples
        --------
        >>> import torch
        >>> z = HardConcrete().sample(torch.zeros(1000), seed=0)
        >>> bool((z >= 0).all() and (z <= 1).all()), bool((z == 0).any()), bool((z == 1).any())
        (True, True, True)
        """
        if seed is not None and generator is not None:
            raise ValueError("HardConcrete.sample takes a seed or a generator, not both.")
        if seed is not None:
            noise = Random(seed)(log_alpha).to(log_alpha.dtype)
        else:
            noise = torch.rand(log_alpha.shape, generator=generator, device=log_alpha.device, dtype=log_alpha.dtype)
        # torch.rand can return 0, and half precision rounds to 1: the logit of either is infinite.
        noise = noise.clamp(torch.finfo(log_alpha.dtype).tiny, 1 - torch.finfo(log_alpha.dtype).eps)
        return self._stretch(torch.sigmoid((torch.logit(noise) + log_alpha) / self.beta))

    def penalty(self, log_alpha: Tensor) -> Tensor:
        """The expected number of open gates (a scalar), to add to a loss. Differentiable.

        Examples
        --------
        >>> import torch
        >>> HardConcrete().penalty(torch.full((10,), 20.0))
        tensor(10.)
        """
        return torch.sigmoid(log_alpha - self.beta * math.log(-self.gamma / self.zeta)).sum()

    def _stretch(self, s: Tensor) -> Tensor:
        return (s * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)
