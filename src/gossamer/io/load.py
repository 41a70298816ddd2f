"""gs.load: load a saved model into a module, one tensor at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense
from gossamer.io.read import File
from gossamer.io.write import state_of
from gossamer.kernels.quantized.stack import check_stack
from gossamer.kernels.quantized.weight import Arrays, check
from gossamer.models.dynamic_int8 import check_packed, expect_packed
from gossamer.models.int8 import expect_int8
from gossamer.models.quantize import expect_quantized
from gossamer.models.quantize_experts import expect_experts
from gossamer.models.quantized import PARTS, QuantizedLinear
from gossamer.models.quantized_experts import QuantizedExperts, quantized_weights
from gossamer.models.quantized_stack import arrays_in
from gossamer.models.surgery import made_sparse, put
from gossamer.models.weights import Weight, all_weights, check_model

#: Bytes of a file that is read once and held, rather than read twice.
_SMALL = 1 << 26


def load(
    model: nn.Module, path: str | os.PathLike[str], *, strict: bool = True, device: torch.device | str | None = None
) -> nn.Module:
    """Load a file of :func:`gossamer.save` into a model, in place; sparse tensors keep their formats.

    The file is read and checked completely before the model is changed: every tensor must have the saved bytes, satisfy
    the rules of its format, and fit the model. Tensors get the dtype and device of the model, and are read one by one,
    so this needs extra memory for one tensor only (files of up to 64 MB are kept in memory and read only once). If the
    file has quantized weights, linear layers become quantized layers, as by :func:`gossamer.quantize_`.

    Parameters
    ----------
    model
        A model with the saved names and shapes; dense, sparse or on the meta device.
    path
        The file.
    strict
        If False, names that only the file or only the model has are skipped.
    device
        The device for a model that is on the meta device; the CPU by default.

    Returns
    -------
    nn.Module
        The same model.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.save(gs.sparsify_(torch.nn.Linear(8, 8), "75%"), "masked.safetensors")
    >>> with torch.device("meta"):
    ...     model = torch.nn.Linear(8, 8)
    >>> gs.load(model, "masked.safetensors").weight.sparsity
    0.75
    """
    check_model(model)
    with File(path) as file:
        small = os.path.getsize(path) <= _SMALL
        before = expect_int8(model, file.int8_layers()) | expect_packed(model, file.packed_layers())
        try:
            before |= (small_layers := expect_quantized(model, file.quantized_layers()))
            before |= expect_experts(model, file.quantized_experts())
            _check_quantized(model, file, small_layers)
            state = state_of(model)
            names = _fitting(file, state, strict)
            held = {}
            for name in names:
                tensor = file[name]  # a broken tensor raises an error before the model is changed
                check_packed(model, name, tensor)
                if name not in file.tied and (small or state[name].device.type == "meta"):
                    held[name] = tensor  # in a meta model it takes the place that it will have
                del tensor
        except BaseException:
            for name, layer in before.items():
                put(model, name, layer)
            raise
        weights = {name: weight for weight in all_weights(model).values() for name in weight.names}
        done: set[int] = set()
        for name in names:
            if id(state[name]) not in done:
                done.add(id(state[name]))
                tensor = held.pop(name) if name in held else file[name]
                _put(model, name, weights.get(name), state[name], tensor, device)
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear | QuantizedExperts):
            layer.settle()  # it may come from a machine with another GPU, or a model of another type
    made_sparse(model)
    return model


def _check_quantized(model: nn.Module, file: File, names: Iterable[str]) -> None:
    """Raise ValueError if arrays of the file are no weight of the layer that they are for."""
    for name in names:
        layer: Any = model.get_submodule(name)
        path = f"{name}." if name else ""
        check(Arrays(*(file.get(path + part) for part in PARTS)), layer.layout, layer.shape)  # type: ignore[arg-type]
    for name, weight in quantized_weights(model).items():
        if f"{name}_values" in file and f"{name}_scale" in file:
            check_stack(arrays_in(file, name), weight.layout, weight.shape)


def _fitting(file: File, state: dict[str, Any], strict: bool) -> list[str]:
    """Names that both have, once it is clear that they fit."""
    missing, unknown = [n for n in state if n not in file], [n for n in file if n not in state]
    if strict and (missing or unknown):
        raise ValueError(
            f"the file and the model differ: {_some('not in the file', missing)}"
            f"{'; ' if missing and unknown else ''}{_some('not in the model', unknown)}. strict=False leaves them out"
        )
    names = [name for name in file if name in state]
    by_tensor: dict[int, str] = {}
    for name in names:
        if not isinstance(state[name], Tensor):
            raise ValueError(f"{name!r} of the model is a {type(state[name]).__name__}, not a tensor")
        if tuple(state[name].shape) != file.shape(name):
            raise ValueError(f"{name!r} is {tuple(state[name].shape)} in the model and {file.shape(name)} in the file")
        first = by_tensor.setdefault(id(state[name]), name)
        if file.digest(first) != file.digest(name) and not _same_values(file[first], file[name]):
            raise ValueError(f"the model ties {first!r} and {name!r}, and the file holds two different tensors")
    return names


def _same_values(a: Tensor, b: Tensor) -> bool:
    """Are two tensors equal as dense ones? Files of 1.0.0rc1 have a tied masked weight twice: masked and dense."""
    one, other = (t.to_dense() if isinstance(t, SparseTensor) else t for t in (a, b))
    return torch.equal(one, other)


def _some(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what} {'is' if len(names) == 1 else 'are'} {', '.join(names[:5])}{more}" if names else ""


@torch.no_grad()
def _put(
    model: nn.Module,
    name: str,
    weight: Weight | None,
    target: Tensor,
    tensor: Tensor,
    device: torch.device | str | None,
) -> None:
    empty = target.device.type == "meta"
    tensor = tensor.to(device=(device or "cpu") if empty else target.device, dtype=target.dtype)
    if weight is None:
        if not empty:
            target.copy_(tensor)
            return
        path, _, last = name.rpartition(".")
        model.get_submodule(path)._buffers[last] = tensor
    elif isinstance(tensor, SparseTensor):
        weight.become(tensor)
    else:
        weight.become(tensor, format=Dense())
