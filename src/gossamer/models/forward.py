"""How layers compute with a stored weight: one product of plain tensors, in eager mode and in traces.

A layer that is called in another way, or for whose formats the user has registered a kernel, computes with the
SparseTensor of its weight, through the table of operators. In a trace it computes with a dense weight that is built
there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import native
from gossamer.core import fallback, table
from gossamer.core.decide import candidates
from gossamer.formats import Dense, Format, Structure
from gossamer.kernels import product as kernels
from gossamer.kernels.product import Product
from gossamer.models.held import Held, Ready
from gossamer.models.routed import for_experts, is_routed
from gossamer.models.stored import structure_of, transforming
from gossamer.ops.convolution import conv2d, convolve, takes_conv2d
from gossamer.ops.linear import linear_sparse
from gossamer.ops.product import kernel_of, product

Forward = Callable[..., Any]
is_compiling, autocasts = torch.compiler.is_compiling, torch._C._is_any_autocast_enabled
is_traced, records = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
in_modes = torch._C._len_torch_dispatch_stack


def for_layer(layer: type[nn.Module]) -> Forward | None:
    """Return the forward function of a kind of layer with a stored weight; None to use its own.

    Examples
    --------
    >>> import torch
    >>> for_layer(torch.nn.LayerNorm) is None
    True
    """
    own: Any = layer.forward
    if own is nn.Linear.forward:
        return _linear(own)
    if own is nn.Conv2d.forward:
        return _conv2d(own)
    if (layer.__module__, layer.__qualname__) == ("transformers.pytorch_utils", "Conv1D"):
        return _conv1d_of_transformers(own)
    if is_routed(layer):
        return for_experts(own)
    return None


def _linear(own: Forward) -> Forward:
    def forward(self: Any, input: Tensor) -> Tensor:
        held, parameters = self._sparse["weight"], self._parameters
        if not is_traced() and held.ready is not None and not records():
            ready = held.ready
            if ready.version == table._version and not fallback._watchers and not self.__dict__.get("_lent"):
                out = ready.call(parameters, self._buffers, input, ready)  # None if something is not as it was
                if out is not None:
                    return out
        if is_compiling():
            return traced(self, input)
        if (
            type(input) is not Tensor
            or fallback._watchers
            or not _is_plain(self, held)
            or autocasts()
            or transforming()
        ):
            return own(self, input)
        if "_together" in self.__dict__ and is_ours(held.format):
            out = _by_group(self, input)
            if out is not None:
                return out
        values = parameters["weight_values"]
        bias = parameters["bias"] if "bias" in parameters else self.bias
        kernel = _kernel(structure_of(self, "weight", held), values)
        dtype = input.dtype
        if kernel is None or input.dim() == 0 or input.shape[-1] != kernel.cols:
            return own(self, input)
        if dtype is not values.dtype or (bias is not None and bias.dtype is not dtype):
            return own(self, input)
        if kernels.needed(input, values, bias):
            return kernels.record(input, values, bias, kernel)
        held.ready = None if "_together" in self.__dict__ else _ready(values, bias, held, kernel)
        return kernel.forward(input, values, bias)

    def traced(self: Any, input: Tensor) -> Tensor:
        if not _is_plain(self, self._sparse["weight"]) or not is_ours(self._sparse["weight"].format):
            return own(self, input)
        if "_together" in self.__dict__ and not autocasts() and (out := _by_group(self, input)) is not None:
            return out
        x, values, bias = _operands(self, input)
        return product(x, values, self.structure_of("weight"), bias)

    return forward


def _by_group(module: Any, x: Tensor) -> Tensor | None:
    """Return the output of a layer that shares its launch with others; None if it is to compute for itself."""
    group, number = module.__dict__["_together"]
    out: Tensor | None = group.output(number, x)
    return out


def _ready(values: Tensor, bias: Tensor | None, held: Held, kernel: Product) -> Ready | None:
    """Return what the next call of a layer needs, if it has the same parameters and buffers."""
    if held.checked is None:
        return None
    arrays, version = held.checked.arrays, table.version()
    if kernel.direct is not None:
        _, number, rows = kernel.direct
        return Ready(values, bias, arrays, number, rows, version, native.direct("layer"))
    operator = kernel.operator(values)
    if operator is None or values.is_inference() or any(array.is_inference() for _, array, _ in arrays):
        return None  # writes to tensors of inference mode are not counted
    call = partial(_by_operator, operator, kernel.cols, values.shape)
    return Ready(values, bias, arrays, 0, kernel.rows, version, call)


def _by_operator(
    operator: Callable[..., Tensor], cols: int, shape: torch.Size, parameters: Any, buffers: Any, x: Any, known: Ready
) -> Tensor | None:
    """Return what an operator gives for a layer whose parameters and buffers are those of ``known``, or None.

    As ``native.direct("layer")``, in Python: half of what the layer needs to look at everything again.
    """
    values, bias = known.values, known.bias
    if type(x) is not Tensor or x.dtype is not values.dtype or x.dim() < 2 or x.shape[-1] != cols:
        return None
    if parameters["weight_values"] is not values or parameters.get("bias") is not bias or values.shape != shape:
        return None
    for name, array, version in known.arrays:
        if buffers[name] is not array or array._version != version:
            return None
    if autocasts() or in_modes() or transforming():
        return None
    return operator(x, values, bias)


def _kernel(structure: Structure, values: Tensor) -> Product | None:
    """Return what multiplies tokens by a weight, if no user has registered another kernel for it; kept with it."""
    known = structure.memo.get("module")
    if known is None or known[0] != table._version or known[1] is not values.dtype:
        kernel = kernel_of(values, values, structure) if is_ours(structure.format) else None
        known = table.version(), values.dtype, kernel
        structure.memo.keep("module", known)
    return known[2]


def _conv1d_of_transformers(own: Forward) -> Forward:
    """Conv1D has a weight [inputs, outputs]."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not is_compiling() or not _is_plain(self, self._sparse["weight"]):
            return own(self, x)
        x, values, bias = _operands(self, x)
        return product(x, values, self.structure_of("weight"), bias, transpose=True)

    return forward


def _conv2d(own: Forward) -> Forward:
    def forward(self: Any, input: Tensor) -> Tensor:
        held = self._sparse["weight"]
        if not is_compiling() or not _is_plain(self, held) or self.padding_mode != "zeros":
            return own(self, input)
        sizes = (self.stride, self.padding, self.dilation)
        by_patches = takes_conv2d(input, held.shape, *sizes) is None
        if self.groups != 1 or not by_patches or not _by(F.conv2d, conv2d, held.format):
            return own(self, input)
        x, values, bias = _operands(self, input)
        return convolve(x, values, self.structure_of("weight"), bias, *sizes)

    return forward


def _is_plain(module: Any, held: Held) -> bool:
    """Is the weight its own values, and is its gradient wanted at their positions only?"""
    return not (held.collects or held.whole or ("_lent" in module.__dict__ and module._lent))


def _operands(module: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return input, values and bias in the type that autocast wants."""
    values, bias = module.weight_values, module.bias
    if not autocasts() or not torch.is_autocast_enabled(x.device.type):
        return x, values, bias
    dtype = torch.get_autocast_dtype(x.device.type)
    return x.to(dtype), values.to(dtype), None if bias is None else bias.to(dtype)


def is_ours(format: Format) -> bool:
    """Do our kernels compute linear layers with weights of a format: has no user registered others?"""
    return _by(F.linear, linear_sparse, format)


def _by(operator: Any, function: Any, format: Format) -> bool:
    """Does this function compute the operator for a weight of a format: has nobody registered a better one?"""
    return _computes(operator, function, type(format), table.version())


def _computes(operator: Any, function: Any, format: type[Format], version: int) -> bool:
    key = (operator, format)
    known = _KNOWN.get(key)
    if known is None or known[0] != version:
        name = table.operator_of(operator).name
        known = _KNOWN[key] = version, all(_is_first(name, function, (Dense, format, *bias)) for bias in ((), (Dense,)))
    return known[1]


def _is_first(name: str, function: Any, kinds: table.Kinds) -> bool:
    found = candidates(name, kinds).candidates
    return bool(found) and found[0].entry.function is function and table.backward_of(name, kinds) is None


_computes._dynamo_marked_constant = True  # type: ignore[attr-defined]
_KNOWN: dict[Any, tuple[int, bool]] = {}
