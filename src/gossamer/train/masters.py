"""All values of the weights that straight-through methods train.

Between steps a parameter has the values that the model computes with: zeros outside its mask. For ``optimizer.step()``
it has all values. The two arrays change places, so that nothing is copied and no mask is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.formats import Masked
from gossamer.kernels.clearing import clear_all
from gossamer.models.home import Home, home_of, version_of
from gossamer.models.masked import exchange_memory
from gossamer.models.weights import Weight
from gossamer.train.layers import Layer
from gossamer.train.shards import become_rows, is_sharded, local, rows_of, whole, whole_mask


class Master:
    """All values of one weight. ``layer.extra["dense"]`` of its layers are views of them, or copies.

    Of a weight that FSDP2 has sharded every rank has all values; its rows are copied.

    Parameters
    ----------
    weight
        A masked weight.
    layers
        The matrices in it, with all values in ``extra["dense"]``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(4, 1)
    >>> method = gs.train.STE(model, torch.optim.SGD(model.parameters(), lr=0.1), "2:4")
    >>> master = Master(method.layers[0].source, method.layers)
    >>> master.open()
    >>> int((model.weight != 0).sum())
    4
    >>> master.close()
    >>> int((model.weight != 0).sum())
    2
    """

    def __init__(self, weight: Weight, layers: Sequence[Layer]) -> None:
        self.weight, self.layers = weight, list(layers)
        parameter = weight.parameter
        self.dense = whole(parameter) if is_sharded(parameter) else torch.empty_like(parameter.detach())
        for layer in layers:
            layer.put(self.dense, layer.extra["dense"])
        self._sparse: Tensor | None = None  # what the model computes with, while the parameter has all values
        self._share()

    @property
    def trains(self) -> bool:
        """Is there a gradient for a step, and is the weight still masked? (`gs.densify_` and `gs.pack_` end that.)"""
        parameter: Any = self.weight.parameter
        masked = is_sharded(parameter) or isinstance(self.weight.format, Masked)
        return masked and parameter.grad is not None

    def open(self) -> None:
        """Give the parameter all values."""
        parameter: Any = self.weight.parameter
        if is_sharded(parameter):
            rows = local(parameter)
            self._sparse = rows.clone()
            rows.copy_(rows_of(self.dense, parameter))
            return
        if self.dense.dtype != parameter.dtype or self.dense.device != parameter.device:  # the model was moved
            self.dense = self.dense.to(parameter)
        self._sparse = exchange_memory(parameter, self.dense, whole=True)

    def close(self) -> None:
        """Give the parameter what the model computes with, as it was before :meth:`open`; all values are kept here."""
        parameter: Any = self.weight.parameter
        if self._sparse is None:
            return
        if is_sharded(parameter):
            self.dense = whole(parameter)
            local(parameter).copy_(self._sparse)
        else:
            self.dense = exchange_memory(parameter, self._sparse)
        self._sparse = None
        self._share()

    def _share(self) -> None:
        for layer in self.layers:
            layer.extra["dense"] = layer.matrix(self.dense)

    def gather(self, matrices: Sequence[Tensor]) -> Tensor:
        """One tensor of the weight's shape, from a matrix for each layer."""
        if len(matrices) == 1 and matrices[0].shape == self.dense.shape and not self.layers[0].inputs_first:
            return matrices[0]
        out = torch.zeros_like(self.dense, dtype=matrices[0].dtype)
        for layer, matrix in zip(self.layers, matrices, strict=True):
            layer.put(out, matrix)
        return out


def write(masters: Sequence[Master], values: Sequence[Tensor], masks: Sequence[Tensor | None]) -> None:
    """Let the model compute with these values where the masks are True (None: as before), in few calls for all.

    Parameters
    ----------
    masters
        That are closed.
    values, masks
        Of the shape of each weight.
    """
    together: list[tuple[Tensor, Tensor, Tensor]] = []  # of plain weights: the parameter, its values, its mask
    homes: list[tuple[Home, Tensor, Tensor]] = []  # the mask that the home has, and the new one
    for master, value, mask in zip(masters, values, masks, strict=True):
        parameter = master.weight.parameter
        if is_sharded(parameter):
            become_rows(parameter, value, whole_mask(parameter) if mask is None else mask)
            continue
        home = home_of(parameter)
        assert home is not None and home.mask is not None
        together.append((parameter.detach(), value, home.mask))
        if mask is not None:
            homes.append((home, home.mask, mask))
    if homes:
        torch._foreach_copy_([old for _, old, _ in homes], [new for _, _, new in homes])
    if together:
        parameters, numbers, kept = (list(each) for each in zip(*together, strict=True))
        torch._foreach_copy_(parameters, numbers)
        clear_all(parameters, kept)
    for home, mask, _ in homes:
        home.version = version_of(mask)
