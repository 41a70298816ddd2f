"""Seeing which activations meet which weight, wherever in a forward pass that happens.

Layers are recognised by their weight, not by their class: whoever calls ``F.linear``, ``torch.addmm`` or a convolution
with a weight that is watched is seen, so modules that reach into others (``nn.MultiheadAttention``) are too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gossamer.prune.curvature import Gram

_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d, F.conv1d, F.conv2d, F.conv3d}


class _Met(NamedTuple):
    """An activation of the current batch, and its share of X X^T."""

    x: Tensor
    version: int  # an activation that was changed in place is another one
    how: tuple[Any, ...]
    part: Gram


class Capture(TorchFunctionMode):
    """While active, add up X X^T for every watched weight; call :meth:`end_batch` after each batch.

    Layers that are given the very same activations (query, key and value) share one sum.

    Parameters
    ----------
    weights
        The tensors to watch, as the forward pass will see them, by name.

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

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.grams: dict[str, Gram] = {}
        self._names = {id(weight): name for name, weight in weights.items()}
        self._weights = dict(weights)  # keeps them alive, and so their ids their own
        self._met: list[_Met] = []
        self._calls: dict[str, list[int]] = {}

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
        elif func in _CONVOLUTIONS:
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            given = dict(zip(names, args, strict=False)) | kwargs
            self._meet(given["weight"], given["input"], given)
        return func(*args, **kwargs)

    def _meet(self, weight: Any, x: Any, convolution: dict[str, Any] | None = None) -> None:
        name = self._names.get(id(weight))
        if name is None or not isinstance(x, Tensor):
            return
        how = () if convolution is None else _geometry(convolution)
        same = [i for i, m in enumerate(self._met) if m.x is x and m.version == x._version and m.how == how]
        if not same:
            part = Gram()
            with torch._C.DisableTorchFunction(), torch.no_grad():
                part.add(columns(x.detach(), how))
            same = [len(self._met)]
            self._met.append(_Met(x, x._version, how, part))
        self._calls.setdefault(name, []).append(same[0])

    def end_batch(self) -> None:
        """Add what the batch has brought to the sums, once for all layers that met the same activations."""
        teams: dict[tuple[tuple[int, ...], int], list[str]] = {}
        for name, calls in self._calls.items():
            teams.setdefault((tuple(calls), id(self.grams.get(name))), []).append(name)
        for (numbers, _), names in teams.items():
            gram = self.grams.get(names[0])
            if gram is None:
                gram = Gram()
            elif any(other is gram for name, other in self.grams.items() if name not in names):
                gram = gram.copy()  # shared until now, no longer
            for number in numbers:
                gram.merge(self._met[number].part)
            self.grams.update(dict.fromkeys(names, gram))
        self._met.clear()
        self._calls.clear()


def _arg(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _geometry(given: dict[str, Any]) -> tuple[Any, ...]:
    """Window, stride, padding, dilation and groups of a convolution, comparable."""
    window = tuple(given["weight"].shape[2:])

    def each(name: str, default: int) -> Any:
        value = given.get(name, default)
        if isinstance(value, str):
            return value
        return (value,) * len(window) if isinstance(value, int) else tuple(value) * (len(window) // len(value))

    return window, each("stride", 1), each("padding", 0), each("dilation", 1), given.get("groups", 1)


def columns(x: Tensor, how: tuple[Any, ...] = ()) -> Tensor:
    """Activations as [groups, tokens, columns]: what each output of the layer is a weighted sum of.

    Examples
    --------
    >>> import torch
    >>> columns(torch.arange(4.0).view(1, 1, 4), ((2,), (1,), (0,), (1,), 1))
    tensor([[[0., 1.],
             [1., 2.],
             [2., 3.]]])
    """
    if not how:
        return x.reshape(1, -1, x.shape[-1])
    window, stride, padding, dilation, groups = how
    if x.dim() == len(window) + 1:
        x = x[None]
    x = _padded(x, window, padding, dilation)
    for d, (size, step, gap) in enumerate(zip(window, stride, dilation, strict=True)):
        x = x.unfold(d + 2, (size - 1) * gap + 1, step)[..., ::gap]
    batch, channels = x.shape[:2]
    places = x.shape[2 : 2 + len(window)]
    x = x.reshape(batch, groups, channels // groups, places.numel(), -1)
    return x.permute(1, 0, 3, 2, 4).reshape(groups, batch * places.numel(), -1)


def _padded(x: Tensor, window: Any, padding: Any, dilation: Any) -> Tensor:
    if padding == "valid":
        return x
    sides: list[int] = []
    for d in reversed(range(len(window))):
        if padding == "same":
            total = dilation[d] * (window[d] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [padding[d], padding[d]]
    return F.pad(x, sides)
