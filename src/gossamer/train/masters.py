"""All values of the weights that straight-through methods train.

Between steps a parameter has the values that the model computes with: zeros outside its mask. For ``optimizer.step()``
it has all values. The two arrays change places, so that nothing is copied and no mask is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.formats import Masked
from gossamer.kernels.choosing import Chooser, Chosen
from gossamer.kernels.clearing import clear_all
from gossamer.kernels.largest import Wanted
from gossamer.models.home import GRAD, Home, home_of, version_of
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
        self._complete = self.dense.numel() == sum(layer.size for layer in self.layers)
        self._chosen: tuple[Any, list[Chosen]] = None, []
        for layer in layers:
            layer.put(self.dense, layer.extra["dense"])
        self.views = True  # are ``extra["dense"]`` views, not copies?
        self._sparse: Tensor | None = None  # what the model computes with, while the parameter has all values
        self._share()

    @property
    def parameter(self) -> Any:
        """The parameter of a masked weight, as the module has it; read in every step, so without settling its mask."""
        module, name = self.weight.places[0]
        return module._parameters.get(name)

    @property
    def trains(self) -> bool:
        """Is there a gradient for a step, and is the weight still masked? (`gs.densify_` and `gs.pack_` end that.)"""
        return self.is_masked and GRAD.__get__(self.parameter) is not None

    @property
    def is_masked(self) -> bool:
        """Has the module still a masked weight?"""
        parameter = self.parameter
        return parameter is not None and (is_sharded(parameter) or isinstance(self.weight.format, Masked))

    @property
    def on_gpu(self) -> bool:
        """Are all values on a GPU, where one call for many weights saves launches?"""
        return self.dense.is_cuda

    @property
    def is_plain(self) -> bool:
        """Are its layers all of a parameter of this process, which has the type and device of all values?"""
        parameter = self.parameter
        if is_sharded(parameter) or self.dense.dtype != parameter.dtype or self.dense.device != parameter.device:
            return False
        return self._complete

    @property
    def owns_gradient(self) -> bool:
        """May its gradient be changed in place?"""
        parameter = self.parameter
        home = home_of(parameter)
        return home is not None and home.owns(GRAD.__get__(parameter))

    def open(self) -> None:
        """Give the parameter all values."""
        parameter = self.parameter
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
        if self._sparse is None:
            return
        parameter = self.parameter
        if is_sharded(parameter):
            self.dense = whole(parameter)
            local(parameter).copy_(self._sparse)
        else:
            self.dense = exchange_memory(parameter, self._sparse)
        self._sparse = None
        if not self.views or self._shared != (self.dense.data_ptr(), self.dense.dtype):
            self._share()

    def _share(self) -> None:
        for layer in self.layers:
            layer.extra["dense"] = layer.matrix(self.dense)
        self._shared = self.dense.data_ptr(), self.dense.dtype
        memory = self.dense.untyped_storage().data_ptr()
        self.views = all(layer.extra["dense"].untyped_storage().data_ptr() == memory for layer in self.layers)

    def matrices(self, home: Home | None, chooser: Chooser) -> list[Chosen]:
        """What a kernel that chooses writes to, for each layer; empty if it can't."""
        mask = None if home is None else home.mask
        if mask is None or not self.views or not self.is_plain:
            return []
        parameter = self.parameter.detach()
        key = chooser.kind, parameter.data_ptr(), self.dense.data_ptr(), mask.data_ptr(), mask.shape, parameter.dtype
        if self._chosen[0] != key:
            whole = parameter.is_contiguous() and mask.is_contiguous()
            found = [Chosen(x.extra["dense"], x.matrix(parameter), x.matrix(mask)) for x in self.layers if whole]
            self._chosen = key, found if all(chooser.takes(one) for one in found) else []
        return self._chosen[1]

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
        parameter = master.parameter
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


def choose(
    masters: Sequence[Master], chooser: Chooser, wanted: Callable[[Layer], Wanted] | None = None
) -> list[Master]:
    """Let the model compute with the weights that a GPU chooses; return the weights that it can't choose in.

    Parameters
    ----------
    masters
        That are closed.
    chooser
        Has the pattern.
    wanted
        How many weights a layer keeps, if the pattern doesn't say.
    """
    matrices: list[Chosen] = []
    layers: list[Layer] = []
    homes: list[Home] = []
    left: list[Master] = []
    for master in masters:
        home = home_of(master.parameter)
        mine = master.matrices(home, chooser)
        if mine:
            matrices += mine
            layers += master.layers
            homes.append(home)  # type: ignore[arg-type]
        else:
            left.append(master)
    if matrices:
        chooser(matrices, None if wanted is None else [wanted(layer) for layer in layers])
    for home in homes:
        home.version = version_of(home.mask)  # type: ignore[arg-type]
    return left
