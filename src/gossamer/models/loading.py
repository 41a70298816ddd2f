"""Loading sparse weights from a ``state_dict``: dense, masked or stored, into a module with any of these.

A stored weight in a ``state_dict`` contains its format, and is loaded with its pattern; its arrays are checked. A dense
weight may be a masked one, because these are saved as ordinary tensors. The mask is in the metadata of the
``state_dict``, one bit for each position, where torch keeps the versions of modules: other programs ignore it, and
files of other libraries don't have it. Without this metadata, the first of these rules that applies is used:

1. if the weight is zero outside the module's mask, the mask doesn't change (kept weights may be zero too);
2. if it is at least as sparse as the module's weight, its nonzeros become the new mask;
3. otherwise the module's mask is applied to it.
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


def note_masks(module: nn.Module, weights: dict[str, Any], destination: Any, prefix: str) -> None:
    """Put the masks of masked weights into the metadata of a ``state_dict``."""
    metadata = getattr(destination, "_metadata", None)
    if metadata is None:
        return
    for name in weights:
        mask = module._buffers.get(f"{name}_mask")
        if type(mask) is Tensor and not mask.is_meta:
            metadata.setdefault(prefix[:-1], {})[f"{name}_mask"] = as_bits(mask)


def as_bits(mask: Tensor) -> Tensor:
    """Return a mask as bytes on the CPU, eight positions each, the first in the lowest bit.

    Examples
    --------
    >>> import torch
    >>> as_bits(torch.tensor([[True, False, True], [False, True, False]]))
    tensor([21], dtype=torch.uint8)
    """
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    padded = nn.functional.pad(mask.flatten().view(torch.uint8), (0, -mask.numel() % 8))
    return (padded.view(-1, 8) << places).sum(1, dtype=torch.uint8).cpu()


def from_bits(bits: Any, shape: torch.Size) -> Tensor | None:
    """Return a mask of :func:`as_bits`; None if it isn't one of this shape.

    Examples
    --------
    >>> import torch
    >>> from_bits(torch.tensor([21], dtype=torch.uint8), torch.Size([2, 3]))
    tensor([[ True, False,  True],
            [False,  True, False]])
    """
    size = shape.numel()
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8 or bits.shape != (-(-size // 8),):
        return None
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[:, None] >> places) & 1).bool().flatten()[:size].view(shape)


def load(module: nn.Module, name: str, held: Any, given: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Prepare a module for the weight of this name in a ``state_dict``, and the ``state_dict`` for torch's own loading.

    ``given`` is changed: afterwards it has the tensors that the module now has room for. ``metadata`` is what the
    ``state_dict`` says of the module.
    """
    key = f"{prefix}{name}"
    tensor = _found(key, given, held.shape)
    if tensor is None or held.format is None:
        return
    known = from_bits(metadata.get(f"{name}_mask"), tensor.shape)
    if held.is_stored:
        _into_stored(module, name, held, key, tensor, given, known)
    else:
        _into_masked(module, name, key, tensor, given, known)


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


def pattern_of(tensor: Tensor, mask: Tensor, known: Tensor | None = None) -> Tensor:
    """Return the mask for a weight that is loaded where this mask was; ``known`` is the one it was saved with, if any.

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
    known = None if known is None else known.to(mask.device)
    if known is not None and not bool((own & ~known).any()):  # else the weight has changed since
        return known
    if not bool((own & ~mask).any()):
        return mask
    return own if int(own.sum()) <= int(mask.sum()) else mask


def _into_masked(
    module: nn.Module, name: str, key: str, tensor: Tensor, given: dict[str, Any], known: Tensor | None
) -> None:
    mask: Any = module._buffers[f"{name}_mask"]
    dense = tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor
    if tensor.shape == mask.shape:  # if not, torch says what is wrong with it
        pattern = pattern_of(tensor, mask, known)
        if pattern is not mask:
            mask.copy_(pattern)
        dense = cleared(dense.detach(), mask.to(dense.device))
    given[key] = dense


def _into_stored(
    module: nn.Module, name: str, held: Any, key: str, tensor: Tensor, given: dict[str, Any], known: Tensor | None
) -> None:
    if tensor.shape != held.shape:
        given[key] = tensor  # torch says what is wrong with it
        return
    parameter: Any = module._parameters[f"{name}_values"]
    if tensor.is_floating_point() and not parameter.is_floating_point():
        raise ValueError(f"{key} is {parameter.dtype} in the model and {tensor.dtype} in the file: load, then quantize")
    if not isinstance(tensor, SparseTensor) or tensor.format != held.format:
        with torch.no_grad():
            own: Any = stored.read(module, name, held)
        mask = pattern_of(tensor, own.mask(), known)
        dense = tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor
        tensor = apply_mask(dense.to(mask.device), mask, held.format)
        given.pop(key, None)
    moved: Any = tensor.to(device=parameter.device, dtype=parameter.dtype)
    stored.store(module, name, moved._values, moved.structure)
    given[f"{key}_values"] = moved._values
    given[f"{key}_format"] = module._buffers[f"{name}_format"]
    for array, values in moved.structure.arrays.items():
        given[f"{key}_{array}"] = values
