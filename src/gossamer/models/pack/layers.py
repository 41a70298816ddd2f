"""Which layers pack_ takes, how they are called, and by which formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import native
from gossamer.formats import Format, PackedCSR, PackedNear, PackedTiles
from gossamer.kernels.rows.operators import STORED
from gossamer.models.coverage import is_depthwise
from gossamer.models.experts import experts_hold_inputs_first, is_experts
from gossamer.models.modules import dense_class
from gossamer.models.names import inputs_first
from gossamer.models.pack import gpu
from gossamer.models.pack.experts import formats_of_experts, has_experts
from gossamer.models.pack.tune import fitting
from gossamer.models.weights import Weight

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
#: Layers that are given images, not tokens.
OF_IMAGES = (*CONVOLUTIONS, *TRANSPOSED)
_FUNCTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d,
    nn.ConvTranspose1d: F.conv_transpose1d, nn.ConvTranspose2d: F.conv_transpose2d,
    nn.ConvTranspose3d: F.conv_transpose3d,
}  # fmt: skip


def refused(weight: Weight) -> str | None:
    """Why a weight can't be packed; None if it can.

    Examples
    --------
    >>> import gossamer as gs
    >>> from gossamer.models.weights import all_weights
    >>> refused(all_weights(torch.nn.Bilinear(4, 4, 3))["weight"])
    'packed kernels are for Linear, Conv1D, experts and convolutions; this is Bilinear'
    """
    module, parameter = weight.module, weight.parameter
    kind = dense_class(module).__name__
    if not packable(weight):
        return _why_not(weight, kind)
    if parameter.dtype not in STORED or parameter.device.type not in ("cpu", "cuda"):
        where = f"{parameter.dtype} on {parameter.device}"
        return f"packed kernels are for float32 and half precision on a CPU or a CUDA GPU, not {where}"
    for_gpus = isinstance(module, nn.Linear | nn.MultiheadAttention) or is_experts(module, weight.shape)
    if parameter.is_cuda and not for_gpus:
        return f"packed kernels on a GPU are for Linear and experts; this is {kind}"
    return None


def packable(weight: Weight) -> bool:
    """Is it the weight of a layer that multiplies by it, in a way that the kernels know?"""
    module, name = weight.places[0]
    if isinstance(module, nn.MultiheadAttention):
        return name == "in_proj_weight"
    if is_experts(module, weight.shape):
        return True
    if name != "weight":
        return False
    if isinstance(module, OF_IMAGES):
        return module.padding_mode == "zeros" and not is_depthwise(module)
    return isinstance(module, nn.Linear) or inputs_first(module)


def _why_not(weight: Weight, kind: str) -> str:
    module, own = weight.places[0]
    if ".parametrizations." in f".{weight.name}" or own in ("weight_g", "weight_v", "weight_orig"):
        return "the weight is computed from this one (weight_norm, spectral_norm): remove that first"
    if isinstance(module, OF_IMAGES):
        if is_depthwise(module):
            return "depthwise convolutions have one channel in each group: there is little to save"
        return f"packed kernels pad with zeros, not by {module.padding_mode!r}"
    return f"packed kernels are for Linear, Conv1D, experts and convolutions; this is {kind}"


def call_of(module: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the layer as a function of its input and its weight; of experts, one as a function of its matrix."""
    if has_experts(module):
        return torch.matmul if experts_hold_inputs_first(module) else F.linear
    own = module.in_proj_bias if isinstance(module, nn.MultiheadAttention) else module.bias
    bias = None if own is None else own.detach()
    if inputs_first(module):
        return lambda x, weight: torch.addmm(bias, x, weight)  # type: ignore[arg-type]
    if isinstance(module, nn.Linear | nn.MultiheadAttention):
        return lambda x, weight: F.linear(x, weight, bias)
    convolution = _FUNCTIONS[next(kind for kind in OF_IMAGES if isinstance(module, kind))]
    options = options_of(module)
    return lambda x, weight: convolution(x, weight, bias, *options)


def options_of(module: nn.Module) -> tuple[Any, ...]:
    """Return what a call of the layer takes after its bias: stride, padding, dilation, groups of a convolution.

    Examples
    --------
    >>> options_of(torch.nn.Conv2d(4, 8, 3, stride=2)), options_of(torch.nn.Linear(4, 8))
    (((2, 2), (0, 0), (1, 1), 1), ())
    """
    if isinstance(module, TRANSPOSED):
        return (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
    if not isinstance(module, CONVOLUTIONS):
        return ()
    return (module.stride, module.padding, module.dilation, module.groups)


def candidates_of(module: nn.Module, mask: Tensor, dense: Tensor) -> list[Format]:
    """Return the formats with kernels that hold the weight where it is; of experts, the matrix of each."""
    if has_experts(module):
        return formats_of_experts(module, mask, dense.dtype)
    if dense.is_cuda:
        return gpu.fitting(mask.flatten(1), dense.dtype)
    if inputs_first(module):
        return [turned for format in fitting(mask.t()) if (turned := format.transposed())]
    if isinstance(module, TRANSPOSED) and module.groups == 1:
        return [turned for format in fitting(mask.flatten(1).t()) if (turned := format.transposed())]
    if isinstance(module, OF_IMAGES) and module.groups > 1:
        return [PackedCSR()]  # it is multiplied without groups, in this format whatever the pattern (ops/grouped.py)
    if isinstance(module, OF_IMAGES):
        return fitting(mask.flatten(1))
    return _for_this_machine(fitting(mask), dense.dtype)


def _for_this_machine(found: list[Format], dtype: torch.dtype) -> list[Format]:
    """Add what is fast on some processors only, for linear layers."""
    if PackedNear() in found and native.load() and native.isa() != "avx512":
        found = [*found, PackedCSR()]  # for one token: following columns that are delta-encoded takes AVX-512
    return [*found, PackedTiles()] if by_tiles(dtype) else found


def by_tiles(dtype: torch.dtype) -> bool:
    """Are there fast kernels of packed tiles for such a weight on this machine's CPU?

    Examples
    --------
    >>> by_tiles(torch.float32)
    False
    """
    return dtype is torch.bfloat16 and native.load() and native.tiles_isa() != "baseline"


def tokens_of(module: nn.Module, shape: tuple[int, ...]) -> int:
    """How many vectors does the layer multiply by its weight?

    Examples
    --------
    >>> tokens_of(torch.nn.Conv1d(4, 8, 3, stride=2), (2, 4, 9))
    8
    """
    if isinstance(module, TRANSPOSED):  # every pixel of the input
        return torch.Size(shape).numel() // max(module.in_channels, 1)
    if not isinstance(module, CONVOLUTIONS):
        return torch.Size(shape[:-1]).numel()
    kind: Any = next(kind for kind in CONVOLUTIONS if isinstance(module, kind))
    plain = kind(1, 1, module.kernel_size, module.stride, module.padding, module.dilation, device="meta")
    dims = len(module.kernel_size)
    return plain(torch.empty(*shape[: -dims - 1], 1, *shape[-dims:], device="meta")).numel()
