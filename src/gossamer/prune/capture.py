"""Recording which activations are multiplied with which weight, anywhere in a forward pass.

Layers are recognised by the memory of their weight, not by their class. So every product with a watched weight is
recorded, also with a part of it (one expert) or with several at once (q, k and v), and in modules that use the weights
of others (``nn.MultiheadAttention``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gossamer.prune.gram import Gram
from gossamer.prune.windows import Geometry, columns, geometry

_PRODUCTS = {torch.mm, torch.bmm, torch.matmul, Tensor.mm, Tensor.bmm, Tensor.matmul, Tensor.__matmul__}
_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d, F.conv1d, F.conv2d, F.conv3d}
_TRANSPOSED = {torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d}
_TRANSPOSED |= {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_OF_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_ORDINARY = (Tensor, nn.Parameter)  # others, such as sparse weights, are recognised by being the same object


class Activation(NamedTuple):
    """What a weight is multiplied with, and how a convolution moves over it."""

    x: Tensor
    how: Geometry | None


class _Met(NamedTuple):
    """An activation of the current batch, and its share of X X^T."""

    x: Tensor
    version: int  # an activation that was changed in place is another one
    how: Geometry | None
    part: Gram


class Capture(TorchFunctionMode):
    """While active, accumulate X X^T for every watched weight; call :meth:`end_batch` after each batch.

    Layers with the same activations (query, key and value) share one sum.

    Parameters
    ----------
    weights
        The tensors to watch, by name: views of those that the forward pass will use.
    limit, align
        Bytes that one sum may take, and of what its blocks are a multiple; see :class:`Gram`.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 3)
    >>> with torch.no_grad(), Capture({"w": layer.weight}) as capture:
    ...     _ = layer(torch.tensor([[1.0, 2.0]]))
    >>> capture.end_batch()
    >>> capture.grams["w"].total
    tensor([[[1., 2.],
             [2., 4.]]])
    """

    def __init__(self, weights: Mapping[str, Tensor], limit: float = float("inf"), align: int = 8) -> None:
        super().__init__()
        self.grams: dict[str, Gram] = {}
        self._empty = Gram(limit=limit, align=align)
        self._weights = dict(weights)  # keeps them alive, and so their memory their own
        self._places: dict[int, list[tuple[int, int, str]]] = {}
        self._others = {id(weight): [name] for name, weight in weights.items() if type(weight) not in _ORDINARY}
        for name, weight in weights.items():
            if type(weight) in _ORDINARY:
                storage, first, last = _memory(weight)
                self._places.setdefault(storage, []).append((first, last, name))
        self._met: list[_Met] = []
        self._calls: dict[str, list[int]] = {}
        #: Which tokens of this batch count, [sequences, tokens]; None: all.
        self.tokens: Tensor | None = None
        #: The activations that this batch has in the dense model, in the order in which they are met.
        self.dense: Sequence[Activation] = ()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            # Its products are what we came for: run it under this mode, without its asking the mode once more.
            with self, patch.object(F, "has_torch_function", lambda _: False):
                return func(*args, **kwargs)
        if func is F.linear:
            self._meet(_arg(args, kwargs, 1, "weight"), _arg(args, kwargs, 0, "input"))
        elif func is torch.addmm:
            self._meet(_arg(args, kwargs, 2, "mat2"), _arg(args, kwargs, 1, "mat1"))
        elif func in _PRODUCTS:
            self._product(*args)
        elif func in _CONVOLUTIONS or func in _TRANSPOSED:
            names = _OF_TRANSPOSED if func in _TRANSPOSED else _ARGUMENTS
            given = dict(zip(names, args, strict=False)) | kwargs
            self._meet(given["weight"], given["input"], geometry(given, func in _TRANSPOSED))
        return func(*args, **kwargs)

    def _product(self, x: Any, weight: Any = None) -> None:
        """X @ weight; of three dimensions, every expert meets inputs of its own."""
        if isinstance(weight, Tensor) and weight.dim() == 3 and isinstance(x, Tensor) and x.dim() == 3:
            if self._names(weight) and len(x) == len(weight):
                for each, matrix in zip(x, weight, strict=True):
                    self._meet(matrix, each)
        else:
            self._meet(weight, x)

    def _names(self, weight: Any) -> list[str]:
        """The watched weights within the memory of this one."""
        if type(weight) not in _ORDINARY:
            return self._others.get(id(weight), [])
        storage, first, last = _memory(weight)
        places = self._places.get(storage, ())
        return [name for start, stop, name in places if first <= start and stop <= last]

    def _meet(self, weight: Any, x: Any, how: Geometry | None = None) -> None:
        names = self._names(weight)
        if not names or not isinstance(x, Tensor):
            return
        same = [i for i, m in enumerate(self._met) if m.x is x and m.version == x._version and m.how == how]
        if not same:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                part = self._take_in(x.detach(), how, len(self._met))
            same = [len(self._met)]
            self._met.append(_Met(x, x._version, how, part))
        for name in names:
            self._calls.setdefault(name, []).append(same[0])

    def _take_in(self, x: Tensor, how: Geometry | None, number: int) -> Gram:
        """X X^T of one activation, with that of the dense model where it has the same shape."""
        part = self._empty.copy()
        twin = self.dense[number] if number < len(self.dense) else None
        pieces = columns(counted(x, self.tokens), how)
        if twin is None or twin.how != how or twin.x.shape != x.shape:  # another model, or a token took another route
            for piece in pieces:
                part.add(piece)
        else:
            for piece, dense in zip(pieces, columns(counted(twin.x, self.tokens), how), strict=True):
                part.add(piece, dense)
        return part

    def end_batch(self) -> None:
        """Add the activations of the batch to the sums, once for all layers with the same activations."""
        teams: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for name, calls in self._calls.items():
            teams.setdefault((tuple(calls), id(self.grams.get(name))), []).append(name)
        for (numbers, _), names in teams.items():
            gram = self.grams.get(names[0])
            if gram is None:
                gram = self._empty.copy()
            elif any(other is gram for name, other in self.grams.items() if name not in names):
                gram = gram.copy()  # shared until now, no longer
            for number in numbers:
                gram.merge(self._met[number].part)
            self.grams.update(dict.fromkeys(names, gram))
        self._met.clear()
        self._calls.clear()


class Recorder(Capture):
    """While active, keep the activations that watched weights meet; :meth:`take` them after each batch.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 3)
    >>> with torch.no_grad(), Recorder({"w": layer.weight}) as recorder:
    ...     _ = layer(torch.tensor([[1.0, 2.0]]))
    >>> recorder.order(), recorder.take()
    ({'w': 0}, [Activation(x=tensor([[1., 2.]]), how=None)])
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(weights)
        self._seen: list[Activation] = []

    def _take_in(self, x: Tensor, how: Geometry | None, number: int) -> Gram:
        self._seen.append(Activation(x.clone(), how))  # the model may write to it
        return self._empty

    def order(self) -> dict[str, int]:
        """For each weight that was met, the number of the first activation that it met."""
        return {name: calls[0] for name, calls in self._calls.items()}

    def take(self) -> list[Activation]:
        """The activations since the last call, in their order."""
        seen, self._seen = self._seen, []
        self._met.clear()
        self._calls.clear()
        return seen


def counted(x: Tensor, tokens: Tensor | None) -> Tensor:
    """The activations of the tokens that count; all, where x is not arranged by tokens.

    Examples
    --------
    >>> import torch
    >>> counted(torch.arange(3.0).view(1, 3, 1), torch.tensor([[True, True, False]])).flatten()
    tensor([0., 1.])
    """
    if tokens is None:
        return x
    if x.dim() > 2 and x.shape[:2] == tokens.shape:
        return x[tokens.to(x.device)]
    return x[tokens.reshape(-1).to(x.device)] if x.dim() == 2 and len(x) == tokens.numel() else x


def _arg(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _memory(tensor: Tensor) -> tuple[int, int, int]:
    """Which storage a tensor is in, and its first and last place there."""
    with torch._C.DisableTorchFunction():
        first = int(tensor.storage_offset())
        reach = sum((n - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.untyped_storage().data_ptr(), first, first + reach
