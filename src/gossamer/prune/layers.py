"""Weights as matrices: rows are outputs, columns the inputs they meet.

Linear and convolution weights are read as [outputs, inputs x window], as patterns read them. A transformers Conv1D
holds its weight the other way round, and is turned: n:m groups then run along its inputs, which is where they save
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from gossamer.models.modules import dense_class
from gossamer.models.names import inputs_first, layer_weights
from gossamer.models.weights import Weight


@dataclass(frozen=True)
class Layer:
    """A weight that can be pruned: its name, the parameter, how to read it.

    Examples
    --------
    >>> import torch
    >>> layer = prunable(torch.nn.Sequential(torch.nn.Conv1d(4, 6, 3)))["0.weight"]
    >>> layer.matrix(layer.dense()).shape
    torch.Size([6, 12])
    """

    name: str
    source: Weight
    turned: bool  # inputs first: transformers' Conv1D
    calibrated: bool  # do we know which activations its columns meet?

    @property
    def parameter(self) -> nn.Parameter:
        """What is trained."""
        return self.source.parameter

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return tuple(self.source.shape)

    def dense(self) -> Tensor:
        """The weight as an ordinary tensor (a copy only where it is stored)."""
        return self.source.dense()

    def matrix(self, weight: Tensor) -> Tensor:
        """A tensor of the parameter's shape as [outputs, columns]."""
        if self.turned:
            return weight.t()
        return weight.reshape(weight.shape[0], -1) if weight.dim() > 1 else weight.reshape(1, -1)

    def unmatrix(self, matrix: Tensor) -> Tensor:
        """The way back."""
        return matrix.t().contiguous() if self.turned else matrix.reshape(self.shape)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        if self.turned:
            return self.shape[1], self.shape[0]
        return (self.shape[0], prod(self.shape[1:])) if len(self.shape) > 1 else (1, self.shape[0])


def prunable(model: nn.Module) -> dict[str, Layer]:
    """Return the weights of a model that can be pruned, by name.

    Those that :func:`gossamer.sparsify_` takes, less output layers that are tied to an embedding.
    """
    found = {}
    for name, weight in layer_weights(model).items():
        if any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module, _ in weight.places):
            continue
        transposed = dense_class(weight.module).__name__.startswith("ConvTranspose")
        found[name] = Layer(name, weight, inputs_first(weight.module), not transposed)
    return found
