"""Packed weights in eight bits: ``gs.quantize_(model, "int8 weights")`` and its layer.

A value is an int8 times the scale of its row, which is the largest value of the row divided by 127. This is symmetric,
so zeros stay zeros and the pattern doesn't change. Activations and sums are float32, so no calibration is needed. A row
with d values and their columns takes 2 d bytes plus 4 for its scale, instead of 5 d.

The error is bounded: a value changes by at most half a scale, so output r of a token x changes by at most
``scale[r] / 2 * sum(|x[c]|)`` over the columns c that row r keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import native
from gossamer.core.table import name_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats.packed import PackedRows
from gossamer.models.modules import dense_class, held_by, hold_stored
from gossamer.models.names import Where, chosen, inputs_first
from gossamer.models.quantized_common import check_tokens, dense_layer, dtype_after, is_transformed, linear_like
from gossamer.models.surgery import put, put_all
from gossamer.ops.explain import Explanation
from gossamer.ops.packed import linear_int8


class Int8Linear(nn.Module):
    """x @ weight.T + bias for a packed weight of int8 values with a scale for each row.

    Made by :func:`gossamer.quantize_`. It is for inference: gradients go through it to ``x``, the weight has none.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> layer = gs.sparsify_(torch.nn.Linear(64, 32), "90%", format=gs.formats.PackedCSR())
    >>> model = gs.nn.quantize_(torch.nn.Sequential(layer))
    >>> model[0].weight.dtype, model[0].scale.shape
    (torch.int8, torch.Size([32]))
    """

    scale: Tensor
    weight: Any  # a property once the weight is sparse

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: nn.Parameter | None,
        inputs_first: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inputs_first, self.dtype = inputs_first, dtype  # of the weight before; as_dense uses it again
        self.kernels = native.load()  # asked once: a trace can't
        plain = weight._values if isinstance(weight, SparseTensor) else weight
        self.register_parameter("weight", nn.Parameter(plain, requires_grad=False))
        self.register_buffer("scale", scale)
        self.bias = bias
        if isinstance(weight, SparseTensor):
            hold_stored(self, "weight", weight.structure)

    @classmethod
    def empty_like(cls, layer: nn.Module) -> Int8Linear:
        """Return one without data, on the meta device, to be filled from a file."""
        turned = inputs_first(layer)
        shape = tuple(layer.weight.shape)  # type: ignore[arg-type]
        weight = torch.empty(shape, dtype=torch.int8, device="meta")
        scale = torch.empty(shape[1 if turned else 0], dtype=torch.float32, device="meta")
        return cls(weight, scale, layer.bias, turned, layer.weight.dtype)  # type: ignore[arg-type]

    @property
    def in_features(self) -> int:
        """Inputs."""
        return self._shape[0 if self.inputs_first else 1]

    @property
    def out_features(self) -> int:
        """Outputs."""
        return self._shape[1 if self.inputs_first else 0]

    @property
    def _shape(self) -> torch.Size:
        held = held_by(self).get("weight")  # reading the weight itself would build a SparseTensor
        return self.weight.shape if held is None else held.shape

    def explain(self, x: Tensor) -> Explanation:
        """Return what computes the layer's output, and why, for :func:`gossamer.explain`."""
        format = str(self.weight.format)
        why = f"the weight is {format} with int8 values; activations are as they are"
        if self.kernels and self.scale.is_cpu:
            return Explanation("linear", (format,), "native", name_of(linear_int8), why)
        reason = native.why_not() if self.scale.is_cpu else "there are kernels for a CPU only"
        return Explanation("linear", (format,), "fallback", "F.linear", f"{why}; {reason}: made dense")

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the type of ``x``."""
        values: Any = self._parameters["weight_values"]
        check_tokens(x, self.in_features)
        if self.kernels and values.device.type == "cpu" and not is_transformed(x):
            return linear_int8(x, values, self.structure_of("weight"), self.scale, self.bias)  # type: ignore[operator]
        return linear_like(x, self.dense(), self.bias)

    def dense(self) -> Tensor:
        """Return the weight as [outputs, inputs] in float32."""
        weight = self.weight.to_dense().float()
        return (weight.t() if self.inputs_first else weight) * self.scale.float()[:, None]

    def as_dense(self) -> nn.Module:
        """Return a dense layer with the same outputs: a Linear, or a Conv1D if it was one."""
        return dense_layer(self.dense().to(self.dtype), self.bias, self.inputs_first).train(self.training)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.dtype = dtype_after(fn, self.dtype, self.scale.device)
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


@dataclass(frozen=True)
class Quantized:
    """An int8 weight and the scales of its rows."""

    weight: SparseTensor
    scale: Tensor


def quantize(weight: SparseTensor) -> Quantized:
    """Return a packed float weight as int8 values with a scale for each packed row.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.from_dense(torch.tensor([[0.0, -2.0, 1.0]]), gs.formats.PackedCSR())
    >>> q = quantize(w)
    >>> q.weight.to_dense().tolist(), q.scale.tolist()
    ([[0, -127, 64]], [0.015748031437397003])
    """
    format = weight.format
    if not isinstance(format, PackedRows):
        raise TypeError(f"a packed weight is needed, not one in {format}: call gs.pack_ first")
    values = weight._values.detach().float()
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the weight has values that are not finite, which int8 can't represent")
    rows, cols = format.matrix_sizes(weight._dense_shape)
    keys, where = weight._structure.entries()
    row = keys % rows if format.order is not None else keys // max(cols, 1)
    kept = values if where is None else values[where]
    scale = torch.zeros(rows).scatter_reduce_(0, row, kept.abs(), "amax") / 127
    scale = torch.where(scale > 0, scale, 1.0)
    bytes = torch.zeros(values.shape, dtype=torch.int8)
    small = (kept / scale[row]).round().clamp(-127, 127).to(torch.int8)
    bytes = small if where is None else bytes.index_put((where,), small)
    return Quantized(SparseTensor(bytes, weight._structure), scale)


def quantize_weights_(model: nn.Module, where: Where) -> nn.Module:
    """Let packed linear layers hold int8 values; see :func:`gossamer.quantize_`."""
    layers: dict[str, Any] = {n: m for n, m in model.named_modules() if _packed(m)}
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no packed linear layer: call gs.pack_ first. It leaves a layer masked if "
            'dense is faster; how="int8" takes such layers too'
        )
    made: dict[int, nn.Module] = {}
    by_weight = {f"{name}.weight" if name else "weight": layer for name, layer in layers.items()}
    for name in chosen(by_weight, where):
        layer = by_weight[name]
        with torch.no_grad():
            small = quantize(layer.weight)
        turned, dtype = inputs_first(layer), layer.weight.dtype
        made[id(layer)] = Int8Linear(small.weight, small.scale, layer.bias, turned, dtype).train(layer.training)
    return put_all(model, made)


def expect_int8(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    """Put an empty Int8Linear where a linear layer of this name is; return the layers that were there, by name."""
    taken = {}
    for name in names:
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            continue  # the caller reports that it is missing
        if dense_class(layer) is nn.Linear or inputs_first(layer):
            put(model, name, Int8Linear.empty_like(layer))
            taken[name] = layer
    return taken


def _packed(module: nn.Module) -> bool:
    held = held_by(module).get("weight")
    layer = dense_class(module) is nn.Linear or inputs_first(module)
    return layer and held is not None and isinstance(held.format, PackedRows)
