"""Sparse weights from a ``state_dict``: what was saved dense, masked or stored, into a module that holds either.

A stored weight in a ``state_dict`` says its format, and is taken with its pattern; its arrays are checked. A dense
weight may be a masked one, which is saved as an ordinary tensor. If it is zero outside of the module's mask, the mask
stays as it is (a kept weight may be zero). If not, and it is at least as sparse as the module's, it brings its own
pattern, its nonzeros. One that is denser is masked by the module's mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format, as_format
from gossamer.formats.values import cleared
from gossamer.models import stored
from gossamer.ops.sparsify import apply_mask


def load(module: nn.Module, name: str, held: Any, given: dict[str, Any], prefix: str) -> None:
    """Prepare a module for the weight of this name in a ``state_dict``, and the ``state_dict`` for torch's own loading.

    ``given`` is changed: afterwards it has the tensors that the module now has room for.
    """
    key = f"{prefix}{name}"
    tensor = _found(key, given, held.shape)
    if tensor is None or held.format is None:
        return
    if held.is_stored:
        _into_stored(module, name, held, key, tensor, given)
    else:
        _into_masked(module, name, key, tensor, given)


def _found(key: str, given: dict[str, Any], shape: torch.Size) -> Tensor | None:
    """The weight of a ``state_dict``, sparse or dense; the parts of a stored one are taken out of it."""
    if f"{key}_format" not in given:
        return given.get(key)
    format = format_of(given.pop(f"{key}_format"))
    names = [f"{array}{i}" for i, level in enumerate(format.stack(len(shape))) for array in level.arrays]
    missing = [f"{key}_{part}" for part in ("values", *names) if f"{key}_{part}" not in given]
    if missing:
        raise ValueError(f"a weight in {format} lacks {', '.join(missing)}")
    arrays = {part: given.pop(f"{key}_{part}").clone() for part in names}  # of our own: the checked ones are used
    return SparseTensor.from_arrays(format, shape, given.pop(f"{key}_values"), arrays)


def format_of(text: Tensor) -> Format:
    """Return the format whose name is in a buffer ``weight_format``.

    Examples
    --------
    >>> import torch
    >>> format_of(torch.tensor(list(b"CSR()"), dtype=torch.uint8))
    CSR()
    """
    if text.dtype != torch.uint8 or text.dim() != 1 or text.numel() > 1000:
        raise ValueError("the name of a format is at most 1000 bytes of text")
    return as_format(bytes(text.tolist()).decode("utf-8", "replace"))


def pattern_of(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the mask for a weight that is loaded where this mask was.

    Examples
    --------
    >>> import torch
    >>> mask = torch.tensor([True, True, False, False])
    >>> pattern_of(torch.tensor([0.0, 1.0, 0.0, 0.0]), mask)  # fits: a kept value may be 0
    tensor([ True,  True, False, False])
    >>> pattern_of(torch.tensor([0.0, 0.0, 1.0, 1.0]), mask)  # as sparse: its own pattern
    tensor([False, False,  True,  True])
    >>> pattern_of(torch.tensor([1.0, 2.0, 3.0, 4.0]), mask)  # denser: it is masked
    tensor([ True,  True, False, False])
    """
    if isinstance(tensor, SparseTensor):
        return tensor.mask().to(mask.device)
    own = tensor.to(mask.device) != 0
    if not bool((own & ~mask).any()):
        return mask
    return own if int(own.sum()) <= int(mask.sum()) else mask


def _into_masked(module: nn.Module, name: str, key: str, tensor: Tensor, given: dict[str, Any]) -> None:
    mask: Any = module._buffers[f"{name}_mask"]
    dense = tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor
    if tensor.shape == mask.shape:  # if not, torch says what is wrong with it
        pattern = pattern_of(tensor, mask)
        if pattern is not mask:
            mask.copy_(pattern)
        dense = cleared(dense.detach(), mask.to(dense.device))
    given[key] = dense


def _into_stored(module: nn.Module, name: str, held: Any, key: str, tensor: Tensor, given: dict[str, Any]) -> None:
    if tensor.shape != held.shape:
        given[key] = tensor  # torch says what is wrong with it
        return
    parameter: Any = module._parameters[f"{name}_values"]
    if not isinstance(tensor, SparseTensor) or tensor.format != held.format:
        with torch.no_grad():
            own: Any = stored.read(module, name, held)
        mask = pattern_of(tensor, own.mask())
        dense = tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor
        tensor = apply_mask(dense.to(mask.device), mask, held.format)
        given.pop(key, None)
    moved: Any = tensor.to(device=parameter.device, dtype=parameter.dtype)
    stored.store(module, name, moved._values, moved.structure)
    given[f"{key}_values"] = moved._values
    given[f"{key}_format"] = module._buffers[f"{name}_format"]
    for array, values in moved.structure.arrays.items():
        given[f"{key}_{array}"] = values
